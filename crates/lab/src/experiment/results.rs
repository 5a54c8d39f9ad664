//! A record, asked for what it shows.

use super::Point;
use super::record::{Record, Repetition};
use super::statistics::Summary;

/// What a record shows: only repetitions that are whole, and of those that others disturbed only where there is none else.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// The record itself.
    pub record: &'a Record,
}

impl<'a> Results<'a> {
    /// Of a record.
    pub fn new(record: &'a Record) -> Results<'a> {
        Results { record }
    }

    /// The names of all series, in the order of the points.
    pub fn series(&self) -> Vec<&'a str> {
        let mut all: Vec<&str> = Vec::new();
        for point in &self.record.configuration.points {
            if !all.contains(&point.series.as_str()) {
                all.push(&point.series);
            }
        }
        all
    }

    /// The points of a series, in order.
    pub fn points(&self, series: &str) -> impl Iterator<Item = (usize, &'a Point)> {
        let points: &'a [Point] = &self.record.configuration.points;
        points.iter().enumerate().filter(move |(_, point)| point.series == series)
    }

    /// The repetitions of a point that count.
    pub fn counted(&self, point: usize) -> Vec<&'a Repetition> {
        let all: &'a [Repetition] = &self.record.repetitions;
        let whole = || all.iter().filter(|one| one.point == point && one.fault().is_none());
        match whole().any(|one| !one.disturbed) {
            true => whole().filter(|one| !one.disturbed).collect(),
            false => whole().collect(),
        }
    }

    /// Whether all that counts of a point was disturbed.
    pub fn disturbed(&self, point: usize) -> bool {
        self.counted(point).iter().any(|one| one.disturbed)
    }

    /// A figure at a point, by its number.
    pub fn at(&self, point: usize, figure: &str) -> Option<Summary> {
        let values = self.counted(point).into_iter().filter_map(|one| one.outcome.figures.get(figure).copied());
        Summary::of(values.filter(|value| value.is_finite()).collect())
    }

    /// A figure of a series at `x`.
    pub fn summary(&self, series: &str, x: impl Into<f64>, figure: &str) -> Option<Summary> {
        let x = x.into();
        let (number, _) = self.points(series).find(|(_, point)| point.x == x)?;
        self.at(number, figure)
    }

    /// The median of a figure of a series at `x`.
    pub fn median(&self, series: &str, x: impl Into<f64>, figure: &str) -> Option<f64> {
        self.summary(series, x, figure).map(|summary| summary.median)
    }

    /// A figure of a series over its points that have one: x and what it is there.
    pub fn curve(&self, series: &str, figure: &str) -> Vec<(f64, Summary)> {
        self.points(series).filter_map(|(number, point)| Some((point.x, self.at(number, figure)?))).collect()
    }

    /// The place of a curve where the median is highest.
    pub fn peak(&self, series: &str, figure: &str) -> Option<(f64, f64)> {
        let curve = self.curve(series, figure).into_iter().map(|(x, summary)| (x, summary.median));
        curve.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The mean of a list at a point over its repetitions, element by element, as long as the shortest.
    pub fn list(&self, series: &str, x: impl Into<f64>, name: &str) -> Option<Vec<f64>> {
        let x = x.into();
        let (number, _) = self.points(series).find(|(_, point)| point.x == x)?;
        let counted = self.counted(number);
        let lists: Vec<&Vec<f64>> = counted.iter().filter_map(|one| one.outcome.lists.get(name)).collect();
        let length = lists.iter().map(|list| list.len()).min()?;
        let mean = |n: usize| lists.iter().map(|list| list[n]).sum::<f64>() / lists.len() as f64;
        Some((0..length).map(mean).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{empty, repetition};
    use super::*;

    #[test]
    fn disturbed_repetitions_count_only_where_there_is_nothing_else() {
        let mut record = empty();
        let disturbed = |one| Repetition { disturbed: true, ..one };
        let failed = |one| Repetition { failed: Some("x".into()), ..one };
        record.repetitions = vec![
            disturbed(repetition(0, 0, 1.0)),
            repetition(0, 0, 5.0),
            failed(repetition(0, 1, 9.0)),
            disturbed(repetition(1, 0, 2.0)),
        ];
        let results = Results::new(&record);
        assert_eq!(results.series(), ["one"]);
        assert_eq!(results.summary("one", 1, "throughput").unwrap().values, [5.0]);
        assert_eq!(results.median("one", 2, "throughput"), Some(2.0));
        assert_eq!((results.disturbed(0), results.disturbed(1)), (false, true));
        assert_eq!((results.median("one", 3, "throughput"), results.median("one", 1, "else")), (None, None));
        assert_eq!(results.peak("one", "throughput"), Some((1.0, 5.0)));
    }

    #[test]
    fn lists_are_averaged_element_by_element() {
        let mut record = empty();
        for (round, list) in [vec![1.0, 2.0, 9.0], vec![3.0, 4.0]].into_iter().enumerate() {
            let mut one = repetition(0, round as u32, 1.0);
            one.outcome.list("shares", list);
            record.repetitions.push(one);
        }
        let results = Results::new(&record);
        assert_eq!(results.list("one", 1, "shares"), Some(vec![2.0, 3.0]));
        assert_eq!(results.list("one", 2, "shares"), None);
    }
}
