//! Figures of both systems, side by side.

use std::fmt::Write as _;

use serde::Serialize;

use super::pair::{Better, Pair};
use load::cpu::cpu_name;

/// The figure of one run of a point.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// 10^6 bits per second.
    pub mbps: f64,
    /// Instructions that dom0 executed for each 10^6 bytes, those of the hypervisor on its behalf
    /// included.
    pub instructions: f64,
}

/// The runs of one point.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Queues of each guest.
    pub queues: u16,
    /// Streams from one to the other.
    pub streams: u16,
    /// Ringmain's figures, by rounds.
    pub ringmain: Vec<Figure>,
    /// The kernel's.
    pub kernel: Vec<Figure>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(queues: u16, streams: u16) -> Self {
        Tally { queues, streams, ringmain: Vec::new(), kernel: Vec::new() }
    }

    fn row(&self) -> Row {
        let pair = |figure, better| Pair::of(&self.ringmain, &self.kernel, figure, better);
        Row {
            queues: self.queues,
            streams: self.streams,
            mbps: pair(|figure| figure.mbps, Better::More),
            dom0_instructions_per_mb: pair(|figure| figure.instructions, Better::Less),
        }
    }
}

/// One point.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Queues of each guest.
    pub queues: u16,
    /// Streams from one to the other.
    pub streams: u16,
    /// Throughput.
    pub mbps: Pair,
    /// The cost in dom0.
    pub dom0_instructions_per_mb: Pair,
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// CPU of the machine: it should not matter.
    pub cpu: String,
    /// Version of Ringmain.
    pub ringmain: &'static str,
    /// Runs of each point on each system.
    pub runs: u32,
    /// Seconds of traffic in each.
    pub seconds: u16,
    /// One for each point.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// The result of these measurements.
    pub fn new(began: u64, runs: u32, seconds: u16, tallies: &[Tally]) -> Self {
        let rows = tallies.iter().map(Tally::row).collect();
        Comparison {
            began,
            cpu: cpu_name(),
            ringmain: env!("CARGO_PKG_VERSION"),
            runs,
            seconds,
            rows,
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:>6} {:>7}  {:^44}  {:^44}",
            "", "", "Mbit/s, median (range)", "dom0, 1000 instructions per MB"
        );
        let head = Pair::heads("xen-netback");
        let _ = writeln!(text, "{:>6} {:>7}{head}{head}", "queues", "streams");
        for row in &self.rows {
            let _ = write!(text, "{:>6} {:>7}", row.queues, row.streams);
            text += &row.mbps.cells(1.0);
            text += &row.dom0_instructions_per_mb.cells(1e3);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_one_is_better_for_both_figures() {
        let figure = |mbps, instructions| Figure { mbps, instructions };
        let mut tally = Tally::new(1, 8);
        tally.ringmain = vec![figure(1200.0, 500_000.0), figure(1300.0, 400_000.0)];
        tally.kernel = vec![figure(800.0, 1_000_000.0), figure(1000.0, 1_000_000.0)];
        let comparison = Comparison::new(0, 2, 6, &[tally]);
        let row = &comparison.rows[0];
        assert_eq!(row.mbps.ratio.runs, [1.5, 1.3]);
        assert_eq!(row.dom0_instructions_per_mb.ratio.runs, [2.0, 2.5]);
        let table = comparison.table();
        for shown in ["1250 (1200-1300)", "900 (800-1000)", "1.40", "450 (400-500)", "2.25"] {
            assert!(table.contains(shown), "{shown}: {table}");
        }
    }
}
