//! Figures of both systems, side by side.

use std::fmt::Write as _;

use serde::Serialize;

use super::INSTRUCTION;
use super::pair::{Better, Pair};
use crate::xen::Kind;
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

    fn row(&self, grant_copies: f64) -> Row {
        let pair = |figure, better| Pair::of(&self.ringmain, &self.kernel, figure, better);
        let mbps = pair(|figure| figure.mbps, Better::More);
        let dom0_instructions_per_mb = pair(|figure| figure.instructions, Better::Less);
        let bound = bound(&mbps, &dom0_instructions_per_mb, grant_copies);
        Row { queues: self.queues, streams: self.streams, mbps, dom0_instructions_per_mb, bound }
    }
}

/// The ratio of throughput that a backend would reach whose only cost in dom0 is that of grant
/// copies, with guests that do what they do with Ringmain.
fn bound(mbps: &Pair, dom0: &Pair, grant_copies: f64) -> Option<f64> {
    // All instructions for 10^6 bytes: they take 8 * 10^9 ns at 1 Mbit/s.
    let all = |mbps: f64| 8e9 / INSTRUCTION / mbps;
    let guests = all(mbps.ringmain.median?) - dom0.ringmain.median?;
    Some(all(mbps.kernel.median?) / (guests + grant_copies))
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
    /// The ratio of throughput that grant copies alone allow.
    pub bound: Option<f64>,
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
    /// How dom0 is virtualised.
    pub dom0: Kind,
    /// Runs of each point on each system.
    pub runs: u32,
    /// Seconds of traffic in each.
    pub seconds: u16,
    /// Instructions of dom0 for 10^6 bytes of grant copies, with nothing else.
    pub grant_copies_per_mb: f64,
    /// One for each point.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// The result of these measurements.
    pub fn new(
        began: u64,
        dom0: Kind,
        runs: u32,
        seconds: u16,
        grant_copies: f64,
        tallies: &[Tally],
    ) -> Self {
        let rows = tallies.iter().map(|tally| tally.row(grant_copies)).collect();
        Comparison {
            began,
            cpu: cpu_name(),
            ringmain: env!("CARGO_PKG_VERSION"),
            dom0,
            runs,
            seconds,
            grant_copies_per_mb: grant_copies,
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
        let _ = writeln!(text, "{:>6} {:>7}{head}{head}{:>8}", "queues", "streams", "bound");
        for row in &self.rows {
            let _ = write!(text, "{:>6} {:>7}", row.queues, row.streams);
            text += &row.mbps.cells(1.0);
            text += &row.dom0_instructions_per_mb.cells(1e3);
            let bound = row.bound.map_or("-".into(), |bound| format!("{bound:.2}"));
            let _ = writeln!(text, "{bound:>8}");
        }
        let _ = write!(
            text,
            "bound: the ratio of Mbit/s if dom0 ({}) did nothing but copy by grants, {:.0} thousand \
             instructions per MB",
            self.dom0,
            self.grant_copies_per_mb / 1e3
        );
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
        let comparison = Comparison::new(0, Kind::Pv, 2, 6, 450_000.0 / 2.0, &[tally]);
        let row = &comparison.rows[0];
        assert_eq!(row.mbps.ratio.runs, [1.5, 1.3]);
        assert_eq!(row.dom0_instructions_per_mb.ratio.runs, [2.0, 2.5]);
        let table = comparison.table();
        // At 1250 Mbit/s, 10^6 bytes take 3.2 million instructions, of which dom0 has 450 thousand.
        // With half of those they would take 2.975 million; the kernel takes 4.444 million.
        let bound = row.bound.unwrap();
        assert!((bound - 4.444 / 2.975).abs() < 1e-3, "{bound}");
        for shown in ["1250 (1200-1300)", "900 (800-1000)", "1.40", "450 (400-500)", "2.25", "1.49"]
        {
            assert!(table.contains(shown), "{shown}: {table}");
        }
    }
}
