//! Figures, their medians, and how they are shown.

use std::fmt::Write as _;

use serde::Serialize;

use super::point::OVS;
use super::series::Series;
use super::tally::{Beside, Row, Tally};
use super::{commit, kernel};
use load::cpu::cpu_name;

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
    /// The commit that it was built from, as far as the folder says in which it was run.
    pub commit: Option<String>,
    /// Version of OVS-DPDK, if it was measured.
    pub ovs_dpdk: Option<String>,
    /// Version of qemu-storage-daemon, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_storage_daemon: Option<String>,
    /// Runs of each point and peer.
    pub runs: u32,
    /// Seconds measured in each.
    pub seconds: f64,
    /// One for each point and unit.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// A comparison of this machine, which began at `began`, without the versions of peers.
    pub fn new(began: u64, runs: u32, seconds: f64, tallies: &[Tally]) -> Comparison {
        Comparison {
            began,
            cpu: cpu_name(),
            kernel: kernel(),
            ringmain: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            ovs_dpdk: None,
            qemu_storage_daemon: None,
            runs,
            seconds,
            rows: tallies.iter().flat_map(Tally::rows).collect(),
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let ceiling = self.rows.iter().any(|row| row.ceiling.is_some());
        let [first, unit, ours, peer, ratio, bare, of_bare, goal] =
            ["median (range)", "", "Ringmain", "peer", "ratio", "bare", "ratio", "goal"];
        let _ = write!(text, "{first:<27} {unit:>9}  {ours:>18}  {peer:>18}  {ratio:>16}");
        if ceiling {
            let _ = write!(text, "  {bare:>18}  {of_bare:>16}");
        }
        let _ = writeln!(text, "  {goal:>7}");
        for row in &self.rows {
            let _ = writeln!(text, "{}", line(row, ceiling));
        }
        for row in &self.rows {
            for failure in &row.failures {
                let _ = writeln!(text, "{}: {failure}", row.title);
            }
        }
        let peer = |row: &Row| row.peer.as_ref().map(|peer| peer.name);
        let usual = self.rows.first().and_then(peer).unwrap_or(OVS);
        let mut shown = vec![usual];
        for other in self.rows.iter().filter_map(peer) {
            if shown.contains(&other) {
                continue;
            }
            shown.push(other);
            let rows = self.rows.iter().filter(|row| peer(row) == Some(other));
            let mut titles: Vec<_> = rows.map(|row| format!("\"{}\"", row.title)).collect();
            titles.dedup();
            let titles = titles.join(", ");
            let _ = writeln!(text, "The peer of {titles} is {other}, of the rest {usual}.");
        }
        text
    }
}

/// One row, without the end of its line; with the columns of the bare copy if the comparison
/// includes it.
fn line(row: &Row, ceiling: bool) -> String {
    let show = |beside: &Option<Beside>, of: fn(&Beside) -> &Series| {
        beside.as_ref().map_or("-".into(), |beside| match of(beside).runs.is_empty() {
            true => "-".into(),
            false => of(beside).show(),
        })
    };
    let goal = row.goal.map(|goal| goal.show()).unwrap_or_default();
    let mark = match row.reached {
        Some(true) => "reached",
        Some(false) => "MISSED",
        None => "",
    };
    let disturbed = match row.disturbed {
        0 => String::new(),
        n => format!("  ({n} disturbed)"),
    };
    let unsettled = row.unsettled.map(|[low, high]| format!("  (ratio in {low:.2}-{high:.2})"));
    let mut text = format!(
        "{:<27} {:>9}  {:>18}  {:>18}  {:>16}",
        row.title,
        row.unit.name(),
        row.ringmain.show(),
        show(&row.peer, |beside| &beside.series),
        show(&row.peer, |beside| &beside.ratio),
    );
    if ceiling {
        let figure = show(&row.ceiling, |beside| &beside.series);
        let ratio = show(&row.ceiling, |beside| &beside.ratio);
        // Writing to a string does not fail.
        let _ = write!(text, "  {figure:>18}  {ratio:>16}");
    }
    let _ = write!(text, "  {goal:>7}  {mark:<7}{disturbed}{}", unsettled.unwrap_or_default());
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::goal::Goal;
    use crate::bench::point::Unit;

    #[test]
    fn medians_of_any_number() {
        assert_eq!(Series::of(vec![]).median, None);
        assert_eq!(Series::of(vec![3.0, 1.0, 2.0]).median, Some(2.0));
        assert_eq!(Series::of(vec![4.0, 1.0, 2.0, 3.0]).median, Some(2.5));
        let series = Series::of(vec![9.0, 7.0]);
        assert_eq!(
            (series.least, series.most, series.runs),
            (Some(7.0), Some(9.0), vec![9.0, 7.0])
        );
    }

    #[test]
    fn a_row_says_whether_its_goal_is_reached() {
        let beside =
            |name| Beside { name, series: Series::of(vec![8.0]), ratio: Series::of(vec![1.5]) };
        let row = Row {
            point: "64",
            title: "64 B",
            options: "",
            unit: Unit::Mpps,
            ringmain: Series::of(vec![12.0, 13.0]),
            peer: Some(beside("OVS-DPDK")),
            ceiling: None,
            goal: Some(Goal::Times(1.4)),
            reached: Some(true),
            unsettled: Some([1.4, 1.61]),
            samples: Vec::new(),
            disturbed: 1,
            repeated: 0,
            failures: Vec::new(),
        };
        let text = line(&row, false);
        for part in [
            "64 B",
            "Mpps",
            "12.5 (12.0-13.0)",
            "1.50 (1.50-1.50)",
            "1.4 x  reached",
            "(1 disturbed)",
            "(ratio in 1.40-1.61)",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(line(&Row { reached: Some(false), ..row }, true).contains("MISSED"));
    }
}
