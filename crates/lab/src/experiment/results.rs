//! A record, asked for what it shows.

use super::change::{Change, FEW};
use super::record::{Configuration, Record, Repetition};
use super::{Point, Size};
use crate::statistics::Summary;

/// The results in a record: only repetitions that are whole, and of those that others disturbed
/// only where there is none else.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// The record itself.
    pub record: &'a Record,
}

impl<'a> Results<'a> {
    /// The results of a record.
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

    /// Whether all repetitions that count for a point were disturbed.
    pub fn disturbed(&self, point: usize) -> bool {
        self.counted(point).iter().any(|one| one.disturbed)
    }

    /// Why its figures bear out no statement, if they do not: the run is not one that measures, is
    /// not through, or others were at work in more than a quarter of what was to be measured at
    /// some point.
    pub fn doubt(&self) -> Option<&'static str> {
        let Configuration { points, size, rounds, .. } = &self.record.configuration;
        let rounds = *rounds as usize;
        let quiet = |point: usize| self.counted(point).iter().filter(|one| !one.disturbed).count();
        let lacking = |point: usize| rounds.saturating_sub(quiet(point)) * 4 > rounds;
        match size {
            Size::Tiny => Some("too little was measured to say"),
            _ if self.record.finished.is_none() => Some("the run is not finished"),
            _ if rounds < FEW => Some("too few repetitions to say"),
            _ if (0..points.len()).any(lacking) => Some("too few undisturbed repetitions to say"),
            _ => None,
        }
    }

    /// A figure at a point, by its number.
    pub fn at(&self, point: usize, figure: &str) -> Option<Summary> {
        let values = self
            .counted(point)
            .into_iter()
            .filter_map(|one| one.outcome.figures.get(figure).copied());
        Summary::of(values.filter(|value| value.is_finite()).collect())
    }

    /// The sum of figures at a point, as far as it has them, by its number.
    pub fn sum_at(&self, point: usize, figures: &[&str]) -> Option<Summary> {
        let sum = |one: &Repetition| {
            figures
                .iter()
                .filter_map(|figure| one.outcome.figures.get(*figure))
                .copied()
                .reduce(|a, b| a + b)
        };
        Summary::of(
            self.counted(point).into_iter().filter_map(sum).filter(|sum| sum.is_finite()).collect(),
        )
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

    /// A figure at one place, of a series and x, against the same at another.
    pub fn change(
        &self,
        (from_series, from_x): (&str, f64),
        (to_series, to_x): (&str, f64),
        figure: &str,
    ) -> Option<Change> {
        Some(Change {
            from: self.summary(from_series, from_x, figure)?,
            to: self.summary(to_series, to_x, figure)?,
        })
    }

    /// A figure of one series against the same of another, in the mean over all places that both
    /// have: by how many times the second is more, in each round that has all of them, against
    /// once.
    pub fn change_overall(&self, from: &str, to: &str, figure: &str) -> Option<Change> {
        let pair = |(from, point): (usize, &Point)| {
            Some((from, self.points(to).find(|(_, other)| other.x == point.x)?.0))
        };
        let pairs: Vec<(usize, usize)> = self.points(from).filter_map(pair).collect();
        let value = |point: usize, round: u32| {
            let counted = self.counted(point).into_iter().find(|one| one.round == round)?;
            counted.outcome.figures.get(figure).copied()
        };
        let mean = |round: u32| {
            let ratios =
                pairs.iter().map(|(from, to)| Some(value(*to, round)? / value(*from, round)?));
            Some(ratios.sum::<Option<f64>>()? / pairs.len() as f64).filter(|mean| mean.is_finite())
        };
        // A file may claim more rounds than were measured.
        let rounds = self.record.configuration.rounds.min(self.record.repetitions.len() as u32);
        let means: Vec<f64> = (0..rounds).filter_map(mean).collect();
        Some(Change { from: Summary::of(vec![1.0; means.len()])?, to: Summary::of(means)? })
    }

    /// A figure of a series over its points that have one: x and what it is there.
    pub fn curve(&self, series: &str, figure: &str) -> Vec<(f64, Summary)> {
        self.points(series)
            .filter_map(|(number, point)| Some((point.x, self.at(number, figure)?)))
            .collect()
    }

    /// The place of a curve where the median is highest, and what it is there.
    pub fn peak(&self, series: &str, figure: &str) -> Option<(f64, f64)> {
        let curve = self.curve(series, figure).into_iter().map(|(x, summary)| (x, summary.median));
        curve.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The other places of a curve that are as good as its peak, as far as repetitions can tell.
    pub fn as_good(&self, series: &str, figure: &str) -> Vec<f64> {
        let Some((best, _)) = self.peak(series, figure) else { return Vec::new() };
        let level = |x: &f64| {
            self.change((series, best), (series, *x), figure).is_some_and(|it| !it.differs())
        };
        let others = self.points(series).map(|(_, point)| point.x).filter(|x| *x != best);
        others.filter(level).collect()
    }

    /// The mean of a list at a point over its repetitions, element by element, as long as the
    /// shortest.
    pub fn list(&self, series: &str, x: impl Into<f64>, name: &str) -> Option<Vec<f64>> {
        let x = x.into();
        let (number, _) = self.points(series).find(|(_, point)| point.x == x)?;
        let counted = self.counted(number);
        let lists: Vec<&Vec<f64>> =
            counted.iter().filter_map(|one| one.outcome.lists.get(name)).collect();
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
    fn disturbed_repetitions_count_only_without_others() {
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
        assert_eq!(
            (results.median("one", 3, "throughput"), results.median("one", 1, "else")),
            (None, None)
        );
        assert_eq!(results.peak("one", "throughput"), Some((1.0, 5.0)));
        // One repetition each: the scatter is not known.
        assert_eq!(results.as_good("one", "throughput"), [2.0]);
    }

    /// Three rounds of either point, undisturbed and through.
    fn whole() -> Record {
        let mut record = empty();
        (record.configuration.size, record.configuration.rounds, record.finished) =
            (Size::Quick, 3, Some(1));
        let of = |point| {
            (0..3)
                .map(move |round| repetition(point, round, f64::from(round) + 10.0 * point as f64))
        };
        record.repetitions = (0..2).flat_map(of).collect();
        record
    }

    #[test]
    fn inconclusive_figures_are_doubted() {
        let doubt = |change: fn(&mut Record)| {
            let mut record = whole();
            change(&mut record);
            Results::new(&record).doubt()
        };
        assert_eq!(doubt(|_| {}), None);
        assert_eq!(doubt(|record| record.finished = None), Some("the run is not finished"));
        assert_eq!(
            doubt(|record| record.configuration.size = Size::Tiny),
            Some("too little was measured to say")
        );
        assert_eq!(
            doubt(|record| record.configuration.rounds = 2),
            Some("too few repetitions to say")
        );
        // One of three at one point was disturbed, or is missing.
        assert_eq!(
            doubt(|record| record.repetitions[4].disturbed = true),
            Some("too few undisturbed repetitions to say")
        );
        assert_eq!(
            doubt(|record| drop(record.repetitions.pop())),
            Some("too few undisturbed repetitions to say")
        );
    }

    #[test]
    fn series_are_compared_round_by_round() {
        let mut record = whole();
        record.configuration.points[1] = Point::new("other", 1);
        let of = |point, factor: f64| {
            (0..3).map(move |round| repetition(point, round, factor * f64::from(round + 1)))
        };
        record.repetitions = of(0, 1.0).chain(of(1, 2.0)).collect();
        let overall =
            |record: &Record| Results::new(record).change_overall("one", "other", "throughput");
        let change = overall(&record).unwrap();
        // The rounds differ by more than the series do, but each says the same.
        assert_eq!((change.ratio(), change.differs(), change.to.count()), (2.0, true, 3));
        record.repetitions.pop();
        assert_eq!(overall(&record).unwrap().to.count(), 2);
        assert_eq!(Results::new(&record).change_overall("one", "none", "throughput"), None);
    }

    #[test]
    fn the_best_is_separated_from_equals() {
        let mut record = whole();
        assert!(Results::new(&record).as_good("one", "throughput").is_empty());
        record.repetitions[0].outcome.figure("throughput", 11.0);
        let results = Results::new(&record);
        assert_eq!(
            (results.peak("one", "throughput").unwrap().0, results.as_good("one", "throughput")),
            (2.0, vec![1.0])
        );
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
