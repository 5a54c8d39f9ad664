//! The points that are measured.

use serde::Serialize;

use crate::load::Report;

/// What a point's figures are.
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
}

impl Unit {
    /// As a table shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpps => "Mpps",
            Self::Gbps => "Gb/s",
            Self::MicrosP50 => "us p50",
            Self::MicrosP99 => "us p99",
        }
    }

    /// Whether more is better.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Mpps | Self::Gbps)
    }

    /// The figure in a report, over all directions.
    pub fn of(self, report: &Report) -> f64 {
        let worst = |pick: fn(&crate::load::Latency) -> f64| {
            report.directions.iter().map(|d| pick(&d.latency)).fold(0.0, f64::max)
        };
        match self {
            Self::Mpps => report.mpps,
            Self::Gbps => report.gbps,
            Self::MicrosP50 => worst(|l| l.p50),
            Self::MicrosP99 => worst(|l| l.p99),
        }
    }
}

/// One kind of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// As results and `--only` call it.
    pub name: &'static str,
    /// As a table shows it.
    pub title: &'static str,
    /// The generator's options, besides those that place it and time it.
    pub options: &'static str,
    /// What is measured.
    pub units: &'static [Unit],
}

/// One sender, one receiver; the back-end has one worker.
///
/// 64 KB frames are the largest that a Linux guest makes of full segments: 54 bytes of headers and 44 times 1460. (DPDK's vhost
/// takes none of more than 65535 bytes together with its own headroom.)
pub const POINTS: &[Point] = &[
    Point { name: "64", title: "64 B, 1 queue pair", options: "--size 64", units: &[Unit::Mpps] },
    Point { name: "64-2q", title: "64 B, 2 queue pairs", options: "--size 64 --queues 2", units: &[Unit::Mpps] },
    Point { name: "64-flows", title: "64 B, 4096 flows", options: "--size 64 --flows 4096", units: &[Unit::Mpps] },
    Point { name: "1514", title: "1514 B", options: "--size 1514", units: &[Unit::Gbps] },
    Point {
        name: "1514-cold",
        title: "1514 B out of 100 MB",
        options: "--size 1514 --pool 100M",
        units: &[Unit::Gbps],
    },
    Point {
        name: "64k",
        title: "64 KB TSO frames",
        options: "--size 64294 --tso --rx-ring 1024",
        units: &[Unit::Gbps],
    },
    Point {
        name: "64k-cold",
        title: "64 KB out of 267 MB",
        options: "--size 64294 --tso --rx-ring 1024 --pool 267M",
        units: &[Unit::Gbps],
    },
    Point {
        name: "latency",
        title: "64 B, one frame at a time",
        options: "--size 64 --window 1",
        units: &[Unit::MicrosP50, Unit::MicrosP99],
    },
    Point { name: "64-sleep", title: "64 B, guests sleep", options: "--size 64 --interrupts", units: &[Unit::Mpps] },
];

/// Names of all points.
pub fn names() -> impl Iterator<Item = &'static str> {
    POINTS.iter().map(|point| point.name)
}

/// Points with these names, or all, in the order of the table.
pub fn select(wanted: &[String]) -> Vec<Point> {
    let is_wanted = |point: &&Point| wanted.is_empty() || wanted.iter().any(|name| name == point.name);
    POINTS.iter().filter(is_wanted).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Args;

    #[test]
    fn all_points_are_options_of_the_generator() {
        for point in POINTS {
            let words = format!("--ports a,b {}", point.options);
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
