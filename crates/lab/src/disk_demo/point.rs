//! One measurement: requests of one kind on one disk.

use std::fmt::Write;

use serde::Serialize;

use super::{DiskDemoError, DiskGuest};
use crate::disk_load::{Operation, Order};
use crate::statistics::digits;
use crate::table::{REMARK, aligned, is_disturbed, mark};
use load::Latency;
use load::cpu::Snapshot;

/// Requests of one kind.
#[derive(Debug)]
pub(crate) struct Phase {
    /// The name, for people.
    pub(crate) name: &'static str,
    pub(crate) operation: Operation,
    pub(crate) order: Order,
    /// Bytes of a request.
    pub(crate) bytes: u32,
    /// Requests under way in each queue.
    pub(crate) depth: u16,
}

const fn phase(
    name: &'static str,
    operation: Operation,
    order: Order,
    bytes: u32,
    depth: u16,
) -> Phase {
    Phase { name, operation, order, bytes, depth }
}

/// All kinds, in their order.
pub(crate) const PHASES: [Phase; 4] = [
    phase("serial writes of 128 KiB", Operation::Write, Order::Serial, 128 << 10, 8),
    phase("serial reads of 128 KiB", Operation::Read, Order::Serial, 128 << 10, 8),
    phase("random writes of 4 KiB", Operation::Write, Order::Random, 4 << 10, 32),
    phase("random reads of 4 KiB", Operation::Read, Order::Random, 4 << 10, 32),
];

/// The measurement of the guest.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Requests per second.
    pub(crate) iops: f64,
    /// Megabytes (10^6) per second.
    pub(crate) megabytes: f64,
    /// From submission to completion, as the guest sees it.
    pub(crate) latency: Latency,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    /// Queues of the disk.
    pub(super) queues: u16,
    /// The name of the phase.
    pub(super) requests: &'static str,
    /// The measurement of the guest.
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// CPU time of the daemon for each request, in microseconds.
    pub(super) cpu_us_per_request: f64,
    /// Requests for each interrupt of the guest.
    pub(super) requests_per_interrupt: f64,
    /// CPUs that others took, or that a hypervisor below gave to others.
    pub(super) others: f64,
}

/// Data that was written, read back and compared.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Verified {
    /// Queues of the disk.
    pub(super) queues: u16,
    /// How much was compared.
    pub(super) bytes: u64,
}

impl Point {
    pub(super) fn disturbed(&self) -> bool {
        is_disturbed(self.others)
    }
}

/// Makes the guest send, and counts the daemon's work meanwhile.
pub(super) fn measure(
    guest: &dyn DiskGuest,
    queues: u16,
    phase: &Phase,
) -> Result<Point, DiskDemoError> {
    let processes = guest.processes();
    let (cpu, before) = (Snapshot::now(&processes), guest.used(queues)?);
    let figures = guest.measure(queues, phase)?;
    let (shares, after) = (Snapshot::now(&processes).since(&cpu), guest.used(queues)?);
    if after.failed > 0 {
        return Err(DiskDemoError::Failed(after.failed));
    }
    let requests = after.requests.saturating_sub(before.requests) as f64;
    let interrupts = after.interrupts.saturating_sub(before.interrupts);
    let used = after.cpu.saturating_sub(before.cpu);
    Ok(Point {
        queues,
        requests: phase.name,
        figures,
        cpu_us_per_request: used.as_secs_f64() * 1e6 / requests.max(1.0),
        requests_per_interrupt: requests / interrupts.max(1) as f64,
        others: shares.others + shares.stolen,
    })
}

/// The columns of a table.
pub(super) const HEADS: [&str; 9] = [
    "queues",
    "requests",
    "IOPS",
    "MB/s",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "daemon us per request",
    "requests per interrupt",
];

/// A point's cells, in the order of [`HEADS`].
pub(super) fn cells(point: &Point) -> [String; 9] {
    let Figures { iops, megabytes, latency } = point.figures;
    [
        point.queues.to_string(),
        point.requests.to_owned(),
        format!("{iops:.0}{}", mark(point.disturbed())),
        digits(megabytes),
        digits(latency.p50),
        digits(latency.p99),
        digits(latency.p99_9),
        digits(point.cpu_us_per_request),
        digits(point.requests_per_interrupt),
    ]
}

/// The points as text.
pub(super) fn table(points: &[Point], verified: &[Verified]) -> String {
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(points.iter().map(cells));
    let mut text = aligned(&rows);
    if points.iter().any(Point::disturbed) {
        let _ = writeln!(text, "  {REMARK}");
    }
    let bytes: u64 = verified.iter().map(|verified| verified.bytes).sum();
    let _ = writeln!(
        text,
        "  written, read back and compared: {} MiB over {} disks",
        bytes >> 20,
        verified.len()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_every_point_and_marks_disturbed_ones() {
        let latency = Latency { p50: 80.0, p99: 200.0, p99_9: 900.0, ..Latency::default() };
        let point = Point {
            queues: 2,
            requests: PHASES[3].name,
            figures: Figures { iops: 51_234.4, megabytes: 209.86, latency },
            cpu_us_per_request: 3.21,
            requests_per_interrupt: 12.0,
            others: 0.5,
        };
        let verified = [Verified { queues: 2, bytes: 64 << 20 }];
        let text = table(std::slice::from_ref(&point), &verified);
        for part in ["51234*", "210", "80.0", "3.21", "64 MiB over 1 disks", REMARK] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!table(&[Point { others: 0.0, ..point }], &[]).contains('*'));
    }
}
