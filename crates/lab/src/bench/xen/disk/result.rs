//! Figures of both systems, side by side.

use std::fmt::Write as _;

use serde::Serialize;

use super::Storage;
use crate::bench::xen::pair::{Better, Pair};
use crate::disk_demo::point::Phase;
use crate::xen::Kind;
use load::cpu::cpu_name;

/// The figure of one run of a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    /// Requests per second.
    pub(super) iops: f64,
    /// Instructions that dom0 executed for each request, those of the hypervisor on its behalf
    /// included.
    pub(super) instructions: f64,
}

/// The runs of one point.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// What is behind the disk.
    pub(super) storage: Storage,
    /// Queues of the disk.
    pub(super) queues: u16,
    /// The requests.
    pub(super) phase: &'static Phase,
    /// Ringmain's figures, by rounds.
    pub(super) ringmain: Vec<Figure>,
    /// The kernel's.
    pub(super) kernel: Vec<Figure>,
}

impl Tally {
    /// Nothing yet.
    pub(super) fn new(storage: Storage, queues: u16, phase: &'static Phase) -> Self {
        Tally { storage, queues, phase, ringmain: Vec::new(), kernel: Vec::new() }
    }

    /// Whether two points are measured on one disk.
    pub(super) fn has_same_disk(&self, other: &Tally) -> bool {
        (self.storage, self.queues) == (other.storage, other.queues)
    }

    fn row(&self) -> Row {
        let pair = |figure, better| Pair::of(&self.ringmain, &self.kernel, figure, better);
        Row {
            storage: self.storage.name(),
            queues: self.queues,
            requests: self.phase.name,
            iops: pair(|figure| figure.iops, Better::More),
            dom0_instructions_per_request: pair(|figure| figure.instructions, Better::Less),
        }
    }
}

/// One point.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// What is behind the disk.
    storage: &'static str,
    /// Queues of the disk.
    queues: u16,
    /// The requests.
    requests: &'static str,
    /// Requests per second.
    iops: Pair,
    /// The cost in dom0.
    dom0_instructions_per_request: Pair,
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    /// Seconds since 1970 when it began.
    began: u64,
    /// CPU of the machine: it should not matter.
    cpu: String,
    /// Version of Ringmain.
    ringmain: &'static str,
    /// How dom0 is virtualised.
    dom0: Kind,
    /// Runs of each point on each system.
    runs: u32,
    /// Seconds of requests in each.
    seconds: u16,
    /// One for each point.
    rows: Vec<Row>,
}

impl Comparison {
    /// The result of these measurements.
    pub(super) fn new(began: u64, dom0: Kind, runs: u32, seconds: u16, tallies: &[Tally]) -> Self {
        let rows = tallies.iter().map(Tally::row).collect();
        let ringmain = env!("CARGO_PKG_VERSION");
        Comparison { began, cpu: cpu_name(), ringmain, dom0, runs, seconds, rows }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:>12} {:>6} {:<24}  {:^44}  {:^44}",
            "", "", "", "IOPS, median (range)", "dom0, instructions per request"
        );
        let head = Pair::heads("xen-blkback");
        let _ = writeln!(text, "{:>12} {:>6} {:<24}{head}{head}", "storage", "queues", "requests");
        for row in &self.rows {
            let _ = write!(text, "{:>12} {:>6} {:<24}", row.storage, row.queues, row.requests);
            text += &row.iops.cells(1.0);
            text += &row.dom0_instructions_per_request.cells(1.0);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_demo::point::PHASES;

    #[test]
    fn a_row_has_both_systems_and_how_much_better_ringmain_is() {
        let figure = |iops, instructions| Figure { iops, instructions };
        let mut tally = Tally::new(Storage::File, 4, &PHASES[3]);
        tally.ringmain = vec![figure(3000.0, 40_000.0), figure(3200.0, 50_000.0)];
        tally.kernel = vec![figure(2000.0, 80_000.0), figure(2000.0, 80_000.0)];
        let table = Comparison::new(0, Kind::Pv, 2, 2, &[tally]).table();
        for shown in
            ["file", PHASES[3].name, "3100 (3000-3200)", "2000 (2000-2000)", "1.55", "1.80"]
        {
            assert!(table.contains(shown), "{shown}: {table}");
        }
    }
}
