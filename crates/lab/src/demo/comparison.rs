//! Several rounds over the same datapaths in turn: the first of them beside each of the others.

use super::Series;
use super::point::Point;
use crate::statistics::{Centre, Summary};
use crate::table::aligned;

/// The rounds as text: for each number of queues, medians and ranges, and the first datapath's
/// ratio to each other one. A ratio is the median of those of the single rounds. Nothing where
/// there is nothing to compare.
pub(super) fn table(rounds: &[Vec<Series>]) -> Option<String> {
    let (last, number) = (rounds.last()?, rounds.len());
    let first = last.first()?;
    if number < 2 && last.len() < 2 {
        return None;
    }
    let titles =
        ["queues", "over", "Gb/s", "ratio", "bound", "ns per kB", "ratio", "guests, ns per kB"];
    let mut rows = vec![titles.map(str::to_owned)];
    for (at, point) in first.points.iter().enumerate() {
        for (which, series) in last.iter().enumerate() {
            let all = |which, figure| values(rounds, which, at, figure);
            let median = |figure: Figure| {
                Summary::of(all(which, figure)).map_or("-".into(), |it| it.said(Centre::Median))
            };
            // The ratio of one figure of the first datapath to another of this one.
            let ratio = |ours: Figure, theirs: Figure| {
                let pairs = all(0, ours).into_iter().zip(all(which, theirs));
                let ratios = pairs.map(|(ours, theirs)| ours / theirs).collect();
                let ratio = (which > 0).then(|| Summary::of(ratios)).flatten();
                ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median))
            };
            let rate: Figure = |point| Some(point.gbps);
            rows.push([
                point.queues.to_string(),
                series.over.title().to_owned(),
                median(rate),
                ratio(rate, rate),
                ratio(Point::bound, rate),
                median(Point::beyond_per_kilobyte),
                ratio(Point::beyond_per_kilobyte, Point::beyond_per_kilobyte),
                median(Point::guests_per_kilobyte),
            ]);
        }
    }
    Some(format!(
        "{}  medians of {number} rounds (least-most); ratio: {first} to this datapath, median of \
         the rounds' ratios\n  bound: the ratio if {first} took no CPU time, and the guests used it \
         as the rest of theirs\n",
        aligned(&rows),
        first = first.over.title()
    ))
}

/// A figure of a point, if it is known.
type Figure = fn(&Point) -> Option<f64>;

/// A figure in each round, of the datapath and the point with these places.
fn values(rounds: &[Vec<Series>], which: usize, at: usize, figure: Figure) -> Vec<f64> {
    let value = |round: &Vec<Series>| figure(round.get(which)?.points.get(at)?);
    rounds.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::Over;

    fn series(over: Over, gbps: f64, beyond: f64) -> Series {
        let point = Point {
            queues: 1,
            gbps,
            daemon: None,
            frames_per_interrupt: None,
            sender: Vec::new(),
            receiver: Vec::new(),
            others: 0.0,
            beyond: Some(beyond),
            guests: Some(1.0),
            profile: None,
        };
        Series { over, points: vec![point] }
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        let round = |ours, theirs| {
            vec![series(Over::Ringmain, ours, 0.1), series(Over::Bridge, theirs, 0.2)]
        };
        let text = table(&[round(1.0, 1.0), round(3.0, 2.0), round(2.0, 8.0)]).unwrap();
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..4], ["1", "Ringmain", "2.00", "(1.00-3.00)"], "{text}");
        let other = ["1", "Linux", "bridge", "2.00", "(1.00-8.00)", "1.00", "1.10"];
        assert_eq!(rows[2][..7], other, "{text}");
    }

    #[test]
    fn one_series_is_compared_with_nothing() {
        assert_eq!(table(&[vec![series(Over::Ringmain, 1.0, 0.1)]]), None);
    }
}
