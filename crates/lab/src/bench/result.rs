//! Figures, their medians, and how they are shown.

use std::fmt::Write as _;

use serde::Serialize;

use super::point::{Point, Unit};

/// Figures of one peer at one point.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// One for each run, in their order.
    pub runs: Vec<f64>,
    /// Of the runs.
    pub median: Option<f64>,
    /// The lowest of them.
    pub least: Option<f64>,
    /// The highest of them.
    pub most: Option<f64>,
}

impl Series {
    pub(super) fn of(runs: Vec<f64>) -> Self {
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = match sorted.len() {
            0 => None,
            n if n % 2 == 1 => Some(sorted[n / 2]),
            n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
        };
        Self { runs, median: middle, least: sorted.first().copied(), most: sorted.last().copied() }
    }

    /// Median, and the spread around it.
    fn show(&self) -> String {
        match (self.median, self.least, self.most) {
            (Some(median), Some(least), Some(most)) => {
                format!("{} ({}-{})", figure(median), figure(least), figure(most))
            }
            _ => "failed".into(),
        }
    }
}

/// One figure of one point, for all peers.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the point.
    pub point: &'static str,
    /// What kind of traffic that is.
    pub title: &'static str,
    /// The generator's options.
    pub options: &'static str,
    /// What was measured.
    pub unit: Unit,
    /// Ringmain's figures.
    pub ringmain: Series,
    /// OVS-DPDK's, if it was measured.
    pub ovs_dpdk: Option<Series>,
    /// How much better Ringmain is, round by round, each with the other's run next to its own: machines have moods that last longer
    /// than a run. Above 1 is better, whatever the unit.
    pub ratio: Option<Series>,
    /// Runs among these that were disturbed each time they were tried.
    pub disturbed: u32,
    /// Runs that were repeated because something disturbed them.
    pub repeated: u32,
    /// What went wrong in runs that are missing.
    pub failures: Vec<String>,
}

/// What the runs of one point have given.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The point.
    pub point: Point,
    /// For each peer, Ringmain first, the rounds that succeeded, and their figures in the order of the point's units.
    pub figures: [Vec<(u32, Vec<f64>)>; 2],
    /// Runs that were kept although something disturbed them.
    pub disturbed: u32,
    /// Runs that were repeated.
    pub repeated: u32,
    /// What went wrong.
    pub failures: Vec<String>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(point: Point) -> Self {
        Self { point, figures: Default::default(), disturbed: 0, repeated: 0, failures: Vec::new() }
    }

    /// One row for each unit; `compared` says whether OVS-DPDK was measured.
    pub fn rows(&self, compared: bool) -> Vec<Row> {
        let row = |(i, unit): (usize, &Unit)| {
            let runs = |peer: usize| -> Vec<(u32, f64)> {
                let rounds = self.figures.get(peer).into_iter().flatten();
                rounds.filter_map(|(round, figures)| Some((*round, *figures.get(i)?))).collect()
            };
            let series = |runs: &[(u32, f64)]| Series::of(runs.iter().map(|(_, figure)| *figure).collect());
            let (ours, theirs) = (runs(0), runs(1));
            Row {
                point: self.point.name,
                title: self.point.title,
                options: self.point.options,
                unit: *unit,
                ratio: compared.then(|| Series::of(ratios(*unit, &ours, &theirs))),
                ringmain: series(&ours),
                ovs_dpdk: compared.then(|| series(&theirs)),
                disturbed: self.disturbed,
                repeated: self.repeated,
                failures: self.failures.clone(),
            }
        };
        self.point.units.iter().enumerate().map(row).collect()
    }
}

/// The ratios of rounds that both have.
fn ratios(unit: Unit, ours: &[(u32, f64)], theirs: &[(u32, f64)]) -> Vec<f64> {
    let pair = |(round, figure): &(u32, f64)| {
        let (_, other) = theirs.iter().find(|(other, _)| other == round)?;
        ratio(unit, *figure, *other)
    };
    ours.iter().filter_map(pair).collect()
}

fn ratio(unit: Unit, ringmain: f64, ovs: f64) -> Option<f64> {
    let ratio = if unit.is_rate() { ringmain / ovs } else { ovs / ringmain };
    ratio.is_finite().then_some(ratio)
}

fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// CPU of the machine.
    pub cpu: String,
    /// Version of its kernel.
    pub kernel: String,
    /// Version of Ringmain.
    pub ringmain: &'static str,
    /// Version of OVS-DPDK, if it was measured.
    pub ovs_dpdk: Option<String>,
    /// Runs of each point and peer.
    pub runs: u32,
    /// Seconds measured in each.
    pub seconds: f64,
    /// One for each point and unit.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let (a, b) = ("Ringmain", "OVS-DPDK");
        let _ = writeln!(
            text,
            "{:<26} {:>7}  {a:>20}  {b:>20}  {:>18}",
            "one worker, median (range)", "", "ratio by rounds"
        );
        for row in &self.rows {
            let ovs = row.ovs_dpdk.as_ref().map_or("-".into(), Series::show);
            let ratio = row.ratio.as_ref().map_or("-".into(), Series::show);
            let unit = row.unit.name();
            let _ = write!(text, "{:<26} {unit:>7}  {:>20}  {ovs:>20}  {ratio:>18}", row.title, row.ringmain.show());
            let _ = match row.disturbed {
                0 => writeln!(text),
                n => writeln!(text, "  ({n} disturbed)"),
            };
        }
        for row in &self.rows {
            for failure in &row.failures {
                let _ = writeln!(text, "{}: {failure}", row.title);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::point::POINTS;

    #[test]
    fn medians_of_any_number() {
        assert_eq!(Series::of(vec![]).median, None);
        assert_eq!(Series::of(vec![3.0, 1.0, 2.0]).median, Some(2.0));
        assert_eq!(Series::of(vec![4.0, 1.0, 2.0, 3.0]).median, Some(2.5));
        let series = Series::of(vec![9.0, 7.0]);
        assert_eq!((series.least, series.most, series.runs), (Some(7.0), Some(9.0), vec![9.0, 7.0]));
    }

    #[test]
    fn better_is_above_one_whatever_the_unit() {
        assert_eq!(ratio(Unit::Mpps, 12.0, 8.0), Some(1.5));
        assert_eq!(ratio(Unit::MicrosP99, 1.0, 1.5), Some(1.5));
        assert_eq!(ratio(Unit::Mpps, 1.0, 0.0), None);
    }

    #[test]
    fn each_unit_has_its_row() {
        let point = POINTS.iter().find(|p| p.units.len() == 2).copied().unwrap();
        let mut tally = Tally::new(point);
        tally.figures[0] = vec![(0, vec![1.0, 2.0]), (1, vec![3.0, 4.0])];
        tally.figures[1] = vec![(1, vec![6.0, 12.0])];
        let rows = tally.rows(true);
        assert_eq!(rows.iter().map(|r| r.ringmain.median).collect::<Vec<_>>(), [Some(2.0), Some(3.0)]);
        let ratios: Vec<_> = rows.iter().map(|r| r.ratio.as_ref().and_then(|ratio| ratio.median)).collect();
        assert_eq!(ratios, [Some(2.0), Some(3.0)], "of the round that both have");
        assert!(tally.rows(false).iter().all(|r| r.ovs_dpdk.is_none() && r.ratio.is_none()));
    }
}
