//! Predictions compared with measurements on this machine: one and two threads or workers, with
//! both designs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::costs::{Costs, Era};
use super::inputs::Inputs;
use super::measure::{Carrying, GUESTS, Measured, Meter, Reading};
use super::scene::{Host, Scene};
use super::sim::run;
use crate::bench::BenchError;
use crate::bench::embedded::grants::Task;
use crate::bench::embedded::load::Size;
use crate::progress::Progress;

/// Streams between the two guests, for each queue: the generator's flows.
const STREAMS: usize = 8;
/// Frames to simulate, for each worker.
const FRAMES: u64 = 8_000;

/// The quantity that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Pieces of granted pages copied to granted pages.
    Copies {
        /// Pieces of each page.
        pieces: u16,
        /// Bytes of each.
        len: u16,
        /// Whether each thread has a guest of its own.
        apart: bool,
    },
    /// Granted pages mapped and unmapped.
    Maps,
    /// Frames between two guests of a daemon.
    Frames {
        /// Frames of nearly 64 KiB, instead of 64 bytes.
        large: bool,
    },
    /// Reads of many guests from disks.
    Reads,
}

/// A place where both are known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The quantity that is counted.
    pub what: What,
    /// The hypervisor's design.
    pub era: Era,
    /// Threads or workers.
    pub workers: usize,
    /// Counted items in a second.
    pub measured: Measured,
    /// The same, by simulation.
    pub predicted: f64,
}

impl Point {
    /// The error of the prediction, as a part of the measurement.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured.median - 1.0
    }
}

/// All comparisons, without the measurements that the handovers were fitted to.
pub const ALL: [What; 9] = [
    What::Copies { pieces: 4, len: 900, apart: true },
    What::Copies { pieces: 4, len: 900, apart: false },
    What::Copies { pieces: 1, len: 2000, apart: true },
    What::Copies { pieces: 1, len: 2000, apart: false },
    What::Copies { pieces: 1, len: 500, apart: false },
    What::Maps,
    What::Frames { large: false },
    What::Frames { large: true },
    What::Reads,
];

impl What {
    /// The predicted count in a second, with `workers` threads or workers on a machine with `cpus`
    /// CPUs.
    pub fn predict(self, inputs: &Inputs, era: Era, workers: usize, cpus: usize) -> f64 {
        let costs = Costs::new(inputs, era);
        match self {
            What::Copies { pieces, len, apart } => {
                let scene = costs.copying(workers, pieces.into(), len.into(), apart);
                run(&scene).rate() * f64::from(pieces)
            }
            What::Maps => run(&costs.mapping(workers)).rate(),
            What::Reads => run(&costs.reading(GUESTS, workers, false, Host::Shared(cpus))).rate(),
            What::Frames { large } => {
                // The same placement as in the measurement: one worker has a CPU to itself, and
                // both guests the other.
                let host = if workers == 1 {
                    Host::Apart { workers: 1, guests: 1 }
                } else {
                    Host::Shared(cpus)
                };
                let of = [inputs.new.small, inputs.new.large][usize::from(large)];
                let pair = Scene::pairs(1, workers, workers, STREAMS * workers);
                let frames = FRAMES * workers as u64;
                run(&costs.carrying(Scene { frames, ..pair }, of.bytes, host)).rate()
            }
        }
    }

    fn measure(self, meter: &mut Meter, era: Era, workers: usize) -> Result<Measured, BenchError> {
        match self {
            What::Copies { pieces, len, apart } => {
                meter.grants(era, workers, Task::Copy { pieces, len, offset: 0 }, apart)
            }
            What::Maps => meter.grants(era, workers, Task::Map, false),
            What::Reads => {
                let reading = Reading { era, workers };
                Ok(Measured::of(meter.repeat(|| reading.rate())?))
            }
            What::Frames { large } => {
                let size = if large { Size::Large } else { Size::Small };
                let carrying = Carrying { era, size, workers: workers as u16 };
                Ok(Measured::of(meter.repeat(|| carrying.rate())?))
            }
        }
    }

    /// The name in tables.
    pub fn name(self) -> String {
        match self {
            What::Copies { pieces, len, apart } => {
                let whose = if apart { "a guest each" } else { "one guest" };
                format!("copies, {pieces} x {len} B a page, {whose}")
            }
            What::Maps => "pages mapped and unmapped".into(),
            What::Reads => format!("reads of 4 KB, {GUESTS} guests"),
            What::Frames { large: false } => "frames of 64 B".into(),
            What::Frames { large: true } => "frames of 64 KB".into(),
        }
    }
}

/// Measures all points that this machine can run, and predicts them.
///
/// # Errors
/// See [`Meter::repeat`].
pub fn check(
    inputs: &Inputs,
    meter: &mut Meter,
    progress: &Progress,
) -> Result<Vec<Point>, BenchError> {
    let stage = progress.stage("checking predictions");
    let mut points = Vec::new();
    for what in ALL {
        stage.at(what.name());
        for era in Era::ALL {
            for workers in [1, 2] {
                let measured = what.measure(meter, era, workers)?;
                let predicted = what.predict(inputs, era, workers, inputs.cpus);
                points.push(Point { what, era, workers, measured, predicted });
            }
        }
    }
    stage.done("");
    Ok(points)
}

/// For people: each point, and the error of all predictions together.
pub fn table(points: &[Point]) -> String {
    let mut text = format!(
        "{:<38} {:<11} {:>7} {:>24} {:>10} {:>8}\n",
        "rate per second", "", "workers", "measured (least..most)", "predicted", "error"
    );
    for point in points {
        let Measured { median, least, most } = point.measured;
        let measured = format!("{} ({}..{})", short(median), short(least), short(most));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<38} {:<11} {:>7} {measured:>24} {:>10} {:>6.0} %",
            point.what.name(),
            point.era.name(),
            point.workers,
            short(point.predicted),
            point.error() * 100.0
        );
    }
    let errors = |workers: usize| {
        let of =
            points.iter().filter(|point| point.workers == workers).map(|point| point.error().abs());
        Measured::of(of.collect())
    };
    for workers in [1, 2] {
        let Measured { median, most, .. } = errors(workers);
        let _ = writeln!(
            text,
            "error of predictions with {workers} workers: {:.0} % (median), {:.0} % (largest)",
            median * 100.0,
            most * 100.0
        );
    }
    text
}

/// A number with three digits.
pub fn short(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e6 => (value / 1e6, " M"),
        value if value >= 1e3 => (value / 1e3, " k"),
        value => (value, ""),
    };
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::inputs::tests::some;
    use super::*;

    #[test]
    fn each_error_is_shown_and_the_largest_is_named() {
        let point = |workers, predicted| Point {
            what: What::Maps,
            era: Era::Old,
            workers,
            measured: Measured { median: 1e5, least: 0.9e5, most: 1.2e6 },
            predicted,
        };
        let table = table(&[point(1, 1.01e5), point(2, 0.6e5)]);
        assert!(table.contains("100 k (90.0 k..1.20 M)") && table.contains("-40 %"), "{table}");
        assert!(
            table.contains("error of predictions with 2 workers: 40 % (median), 40 % (largest)"),
            "{table}"
        );
    }

    #[test]
    fn everything_can_be_predicted() {
        let inputs = some();
        for what in ALL {
            for era in Era::ALL {
                let rates = [1, 2].map(|workers| what.predict(&inputs, era, workers, 2));
                assert!(
                    rates.iter().all(|rate| *rate > 1e3 && *rate < 1e8),
                    "{what:?}, {era:?}: {rates:?}"
                );
            }
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.0, 1.234, 12.34, 999.6, 12_345.0, 1e7].map(short);
        assert_eq!(shown, ["0.00", "1.23", "12.3", "1000", "12.3 k", "10.0 M"]);
    }
}
