//! The points that are measured, and what each should reach.

use serde::Serialize;

use super::goal::Goal;
use super::goal::Goal::{AtMost, Times, TimesBare};
use load::Report;

/// The unit of a point's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Million frames per second.
    Mpps,
    /// 10^9 bits per second.
    #[serde(rename = "Gb/s")]
    Gbps,
    /// Microseconds at the median.
    #[serde(rename = "us p50")]
    MicrosP50,
    /// Microseconds that one frame in a hundred exceeds.
    #[serde(rename = "us p99")]
    MicrosP99,
    /// Percent of one CPU that the back-end used.
    #[serde(rename = "% CPU")]
    Cpu,
    /// Interrupts that guests took for each frame that they received.
    #[serde(rename = "irq/frame")]
    Interrupts,
    /// CPU time of two hosts for each frame from one to the other, in nanoseconds.
    #[serde(rename = "ns CPU")]
    HostNanos,
    /// Thousand requests of a disk per second.
    #[serde(rename = "kIOPS")]
    Kiops,
    /// 10^6 bytes of a disk per second.
    #[serde(rename = "MB/s")]
    Megabytes,
}

impl Unit {
    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpps => "Mpps",
            Self::Gbps => "Gb/s",
            Self::MicrosP50 => "us p50",
            Self::MicrosP99 => "us p99",
            Self::Cpu => "% CPU",
            Self::Interrupts => "irq/frame",
            Self::HostNanos => "ns CPU",
            Self::Kiops => "kIOPS",
            Self::Megabytes => "MB/s",
        }
    }

    /// Whether more is better.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Mpps | Self::Gbps | Self::Kiops | Self::Megabytes)
    }

    /// The figure in a report of frames, over all directions; none of disks and of hosts is in it.
    pub fn of(self, report: &Report) -> f64 {
        let worst = |pick: fn(&load::Latency) -> f64| {
            report.directions.iter().map(|d| pick(&d.latency)).fold(0.0, f64::max)
        };
        match self {
            Self::Mpps => report.mpps,
            Self::Gbps => report.gbps,
            Self::MicrosP50 => worst(|l| l.p50),
            Self::MicrosP99 => worst(|l| l.p99),
            Self::Cpu => report.cpu.backend.unwrap_or(f64::NAN),
            Self::Interrupts => {
                let received: u64 = report.directions.iter().map(|d| d.received).sum();
                report.interrupts as f64 / received as f64
            }
            Self::HostNanos | Self::Kiops | Self::Megabytes => f64::NAN,
        }
    }
}

/// The peer that the generator's traffic is compared with.
pub const OVS: &str = "OVS-DPDK";

/// How a bare copy waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It polls, and sends no interrupts.
    Polls,
    /// It sleeps until it is notified, and interrupts guests that sleep.
    Sleeps,
}

/// The guests of a point, and who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The guests.
    pub guests: usize,
    /// Whether the frames come by a TAP of the host, and all guests receive.
    pub tap: bool,
}

impl Site {
    /// One guest sends to another, or each to the other.
    pub const PAIR: Site = Site { guests: 2, tap: false };
}

/// The kind of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The generator's traffic through each back-end, each with one worker.
    Traffic {
        /// The generator's options, besides those that place it and time it.
        options: &'static str,
        /// The guests that it simulates, and where their frames come from.
        site: Site,
        /// How the bare copy waits for frames; `None`: it does not take part.
        bare: Option<Waiting>,
        /// Shortest measurement that shows anything, in milliseconds.
        at_least_ms: u64,
    },
    /// Two workers, each fed on its own CPU, against one of them.
    Workers,
    /// TCP between two stock guests, over the daemon and over a bridge.
    Guests,
    /// Frames between guests of two hosts.
    Overlay {
        /// Which.
        frames: &'static str,
        /// Whom Ringmain is compared with.
        peer: &'static str,
    },
    /// Requests of a disk.
    Disk {
        /// Which.
        requests: &'static str,
        /// Whom Ringmain is compared with.
        peer: &'static str,
        /// Whether the back-end sleeps most of the time.
        sleeps: bool,
    },
}

/// One point.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The name in results and for `--only`.
    pub name: &'static str,
    /// The title in a table.
    pub title: &'static str,
    /// The kind of the point.
    pub kind: Kind,
    /// The figures that are measured, and their goals.
    pub figures: &'static [(Unit, Option<Goal>)],
}

impl Point {
    /// The traffic of the generator, where the point has any.
    pub fn options(&self) -> &'static str {
        match self.kind {
            Kind::Traffic { options, .. }
            | Kind::Overlay { frames: options, .. }
            | Kind::Disk { requests: options, .. } => options,
            Kind::Workers | Kind::Guests => "",
        }
    }

    /// The guests that the generator simulates.
    pub fn site(&self) -> Option<Site> {
        match self.kind {
            Kind::Traffic { site, .. } => Some(site),
            _ => None,
        }
    }

    /// Whether the figures depend on the present distance of the CPUs. They do not where the
    /// back-end sleeps most of the time: going to sleep and waking up take as long as a hundred
    /// cache lines.
    pub fn follows_state(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Traffic { at_least_ms: 1.., .. } | Kind::Disk { sleeps: true, .. }
        )
    }

    /// The name of the peer in tables.
    pub fn peer(&self) -> &'static str {
        match self.kind {
            Kind::Traffic { .. } => OVS,
            Kind::Workers => "one worker",
            Kind::Guests => "TAP + bridge",
            Kind::Overlay { peer, .. } | Kind::Disk { peer, .. } => peer,
        }
    }
}

const fn rate(
    name: &'static str,
    title: &'static str,
    options: &'static str,
    figures: &'static [(Unit, Option<Goal>)],
) -> Point {
    let kind =
        Kind::Traffic { options, site: Site::PAIR, bare: Some(Waiting::Polls), at_least_ms: 0 };
    Point { name, title, kind, figures }
}

/// Traffic of one sender to several guests. A bare copy has no addresses, and takes no part.
const fn fan_out(
    name: &'static str,
    title: &'static str,
    options: &'static str,
    site: Site,
    figures: &'static [(Unit, Option<Goal>)],
) -> Point {
    let kind = Kind::Traffic { options, site, bare: None, at_least_ms: 0 };
    Point { name, title, kind, figures }
}

/// Traffic that is measured for its cost, with guests that sleep or a back-end that may sleep.
const fn mostly_idle(
    name: &'static str,
    title: &'static str,
    options: &'static str,
    at_least_ms: u64,
    figures: &'static [(Unit, Option<Goal>)],
) -> Point {
    let kind =
        Kind::Traffic { options, site: Site::PAIR, bare: Some(Waiting::Sleeps), at_least_ms };
    Point { name, title, kind, figures }
}

/// One sender, one receiver, unless it says otherwise; the back-end has one worker.
///
/// 64 KB frames are the largest that a Linux guest makes of full segments: 54 bytes of headers and
/// 44 times 1460. (DPDK's vhost takes none of more than 65535 bytes together with its own
/// headroom.)
pub const POINTS: &[Point] = &[
    rate("64", "64 B, 1 queue pair", "--size 64", &[(Unit::Mpps, Some(Times(1.8)))]),
    rate("64-2q", "64 B, 2 queue pairs", "--size 64 --queues 2", &[(Unit::Mpps, Some(Times(1.8)))]),
    rate(
        "64-flows",
        "64 B, 4096 flows",
        "--size 64 --flows 4096",
        &[(Unit::Mpps, Some(Times(2.2)))],
    ),
    rate(
        "64-mixed",
        "64 B, 64 flows mixed",
        "--size 64 --queues 2 --flows 64",
        &[(Unit::Mpps, Some(Times(1.8)))],
    ),
    fan_out(
        "64-8",
        "64 B, 8 receivers mixed",
        "--size 64 --fan-out",
        Site { guests: 9, tap: false },
        &[(Unit::Mpps, Some(Times(1.8)))],
    ),
    fan_out(
        "tap-8",
        "64 B, a TAP for 8 guests",
        "--size 64",
        Site { guests: 8, tap: true },
        &[(Unit::Mpps, None)],
    ),
    rate("imix", "64 to 1514 B mixed", "--mix --flows 60", &[(Unit::Mpps, None)]),
    rate("1514", "1514 B", "--size 1514", &[(Unit::Gbps, Some(Times(2.2)))]),
    rate(
        "1514-cold",
        "1514 B out of 100 MB",
        "--size 1514 --pool 100M",
        &[(Unit::Gbps, Some(Times(2.0)))],
    ),
    rate(
        "64k",
        "64 KB TSO frames",
        "--size 64294 --tso --rx-ring 1024",
        &[(Unit::Gbps, Some(Times(2.2)))],
    ),
    rate(
        "64k-cold",
        "64 KB out of 267 MB",
        "--size 64294 --tso --rx-ring 1024 --pool 267M",
        &[(Unit::Gbps, Some(Times(1.8)))],
    ),
    rate(
        "64-both",
        "64 B, both directions",
        "--size 64 --direction both",
        &[(Unit::Mpps, Some(Times(2.7)))],
    ),
    rate(
        "1514-both",
        "1514 B, both directions",
        "--size 1514 --direction both",
        &[(Unit::Gbps, Some(Times(1.5)))],
    ),
    mostly_idle(
        "64-sleep",
        "64 B, receiver sleeps",
        "--size 64 --interrupts",
        0,
        &[(Unit::Mpps, Some(Times(1.6))), (Unit::Interrupts, None)],
    ),
    rate(
        "latency",
        "64 B, one frame at a time",
        "--size 64 --window 1",
        &[(Unit::MicrosP50, Some(Times(2.0))), (Unit::MicrosP99, None)],
    ),
    mostly_idle(
        "idle",
        "idle, two guests connected",
        "--size 64 --rate 0 --interrupts",
        // An idle daemon does its periodic work that often.
        6000,
        &[(Unit::Cpu, Some(AtMost(0.5)))],
    ),
    mostly_idle(
        "mixed",
        "1 % load, mixed gaps",
        "--size 64 --rate 80000 --gaps mixed",
        1000,
        &[
            (Unit::Cpu, Some(Times(10.0))),
            (Unit::MicrosP50, None),
            (Unit::MicrosP99, Some(TimesBare(0.67))),
        ],
    ),
    Point {
        name: "workers",
        title: "64 B, two workers",
        kind: Kind::Workers,
        figures: &[(Unit::Mpps, Some(Times(1.8)))],
    },
    Point {
        name: "qemu",
        title: "2 QEMU guests, iperf -P 8",
        kind: Kind::Guests,
        figures: &[(Unit::Gbps, Some(Times(1.2)))],
    },
];

/// Names of all points.
pub fn names() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|point| point.name)
}

/// Points with these names, or all, in the order of the table.
pub fn select(wanted: &[String]) -> Vec<Point> {
    let is_wanted =
        |point: &&Point| wanted.is_empty() || wanted.iter().any(|name| name == point.name);
    POINTS.iter().filter(is_wanted).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::Args;

    #[test]
    fn all_points_are_options_of_the_generator() {
        for point in POINTS {
            let Some(site) = point.site() else { continue };
            let ports = ["a"; 9][..site.guests].join(",");
            let from = if site.tap { "--from tap" } else { "" };
            let words = format!("--ports {ports} {from} {}", point.options());
            Args::from_words(words.split_whitespace()).unwrap();
        }
    }

    #[test]
    fn points_are_chosen_by_name() {
        let chosen = |wanted: &[&str]| -> Vec<&str> {
            let wanted: Vec<String> = wanted.iter().map(|name| name.to_string()).collect();
            select(&wanted).iter().map(|point| point.name).collect()
        };
        assert_eq!(chosen(&[]), names().collect::<Vec<_>>());
        assert_eq!(chosen(&["64k", "64"]), ["64", "64k"]);
    }
}
