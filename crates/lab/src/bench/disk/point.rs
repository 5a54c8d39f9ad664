//! The points that are measured with disks, and what each should reach.

use crate::bench::goal::Goal;
use crate::bench::goal::Goal::{AtMost, Times};
use crate::bench::point::{Kind, Point, Unit};
use crate::disk_load::{Operation, Order, Workload};

/// The image that a back-end serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Image {
    /// The same file in memory for both.
    Memory,
    /// The same file on a drive for both.
    Drive,
    /// None that is used: Ringmain's engine carries nothing out, and the peer's image is `null-co`.
    Null,
}

/// Whom Ringmain is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// qemu-storage-daemon.
    Qemu,
    /// fio on the host, on the same file.
    Fio,
}

/// A point, and how it is measured.
#[derive(Clone, Debug)]
pub(super) struct DiskPoint {
    pub(super) point: Point,
    pub(super) image: Image,
    pub(super) peer: Peer,
    /// Ringmain's workers.
    pub(super) workers: u16,
    pub(super) workload: Workload,
    /// Shortest measurement that shows anything, in milliseconds.
    pub(super) at_least_ms: u64,
}

impl DiskPoint {
    /// Whether a bare disk takes part: where waking up matters more than the path of a request.
    pub(super) fn has_bare(&self) -> bool {
        self.workload.rate.is_some_and(|rate| rate > 0)
    }
}

const QEMU: &str = "qemu-storage-daemon";

/// Random reads of 4 KiB, 32 at a time, over one queue.
const READS: Workload = Workload::new(Operation::Read, Order::Random, 4096, 32);

type Figures = &'static [(Unit, Option<Goal>)];

const fn point(
    name: &'static str,
    title: &'static str,
    requests: &'static str,
    figures: Figures,
) -> DiskPoint {
    let kind = Kind::Disk { requests, peer: QEMU, sleeps: false };
    point_of_kind(name, title, kind, figures)
}

const fn point_of_kind(
    name: &'static str,
    title: &'static str,
    kind: Kind,
    figures: Figures,
) -> DiskPoint {
    DiskPoint {
        point: Point { name, title, kind, figures },
        image: Image::Memory,
        peer: Peer::Qemu,
        workers: 1,
        workload: READS,
        at_least_ms: 0,
    }
}

/// Requests for which a back-end sleeps most of the time, or which never come.
const fn mostly_idle(
    name: &'static str,
    title: &'static str,
    requests: &'static str,
    rate: u64,
    figures: Figures,
) -> DiskPoint {
    let kind = Kind::Disk { requests, peer: QEMU, sleeps: true };
    DiskPoint {
        workload: Workload { rate: Some(rate), sleeps: true, ..READS },
        at_least_ms: 3000,
        ..point_of_kind(name, title, kind, figures)
    }
}

/// All points.
pub(super) static POINTS: [DiskPoint; 9] = [
    DiskPoint {
        image: Image::Null,
        ..point(
            "null",
            "4 KiB reads of no medium",
            "random reads of 4 KiB, 32 at a time",
            &[(Unit::Kiops, Some(Times(3.0)))],
        )
    },
    point(
        "file",
        "4 KiB reads, QD 32",
        "random reads of 4 KiB, 32 at a time",
        &[(Unit::Kiops, Some(Times(1.5)))],
    ),
    DiskPoint {
        workload: Workload { operation: Operation::Write, ..READS },
        ..point(
            "file-write",
            "4 KiB writes, QD 32",
            "random writes of 4 KiB, 32 at a time",
            &[(Unit::Kiops, None)],
        )
    },
    DiskPoint {
        image: Image::Drive,
        ..point(
            "drive",
            "4 KiB reads of a drive",
            "random reads of 4 KiB, 32 at a time",
            &[(Unit::Kiops, None)],
        )
    },
    DiskPoint {
        workers: 2,
        workload: Workload { queues: 4, sleeps: true, ..READS },
        ..point(
            "queues",
            "4 queues, 2 workers : 1",
            "random reads of 4 KiB, 32 at a time in each of 4 queues; the driver sleeps",
            &[(Unit::Kiops, Some(Times(2.5)))],
        )
    },
    DiskPoint {
        workload: Workload { depth: 1, ..READS },
        ..point(
            "latency",
            "4 KiB reads, QD 1",
            "random reads of 4 KiB, one at a time",
            &[(Unit::MicrosP50, Some(Times(1.25))), (Unit::MicrosP99, None)],
        )
    },
    mostly_idle(
        "paced",
        "10 000 requests a second",
        "random reads of 4 KiB, 10 000 a second with random gaps; the driver sleeps",
        10_000,
        &[(Unit::Cpu, Some(Times(2.0))), (Unit::MicrosP50, None)],
    ),
    mostly_idle("idle", "idle, a guest connected", "none", 0, &[(Unit::Cpu, Some(AtMost(0.01)))]),
    DiskPoint {
        peer: Peer::Fio,
        workload: Workload::new(Operation::Read, Order::Serial, 128 << 10, 32),
        ..point_of_kind(
            "bandwidth",
            "128 KiB reads : fio",
            Kind::Disk {
                requests: "serial reads of 128 KiB, 32 at a time",
                peer: "fio on the host",
                sleeps: false,
            },
            &[(Unit::Megabytes, Some(Times(0.95)))],
        )
    },
];

/// Names of all points.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|disk| disk.point.name)
}

/// Points with these names, or all, in the order of the table.
pub(super) fn select(wanted: &[String]) -> impl Iterator<Item = &'static DiskPoint> {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|other| other == name);
    POINTS.iter().filter(move |disk| is_wanted(disk.point.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_names_of_their_own_and_are_chosen_by_them() {
        let mut names: Vec<_> = names().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), POINTS.len());
        let chosen: Vec<&str> =
            select(&["idle".into(), "null".into()]).map(|disk| disk.point.name).collect();
        assert_eq!(chosen, ["null", "idle"]);
    }
}
