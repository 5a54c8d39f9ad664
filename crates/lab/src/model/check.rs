//! Predictions compared with measurements on this machine: one and two threads or workers, with
//! both designs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::costs::{Costs, Frames, Transport};
use super::inputs::Inputs;
use super::measure::{Carrying, GUESTS, Generating, Measured, Meter, Placement, Reading};
use crate::bench::BenchError;
use crate::bench::embedded::grants::Task;
use crate::bench::embedded::load::Size;
use crate::progress::Progress;
use simulation::run;
use simulation::scene::{Host, Scene};

/// Streams between the two guests, for each queue: the generator's flows.
const STREAMS: usize = 8;
/// Bytes of a small frame.
const SMALL: f64 = 64.0;
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
    /// The hypervisor's design, or vhost-user.
    pub transport: Transport,
    /// Threads or workers.
    pub workers: usize,
    /// Counted items in a second.
    pub measured: Measured,
    /// The same, by simulation.
    pub predicted: f64,
    /// The same with guests and workers wherever the kernel places their threads, which is not
    /// predicted; none without guests, or with one worker.
    pub placed_by_kernel: Option<Measured>,
}

impl Point {
    /// The error of the prediction, as a part of the measurement.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured.median - 1.0
    }
}

/// All comparisons, without the measurements that the handovers were fitted to.
pub const ALL: [What; 10] = [
    What::Copies { pieces: 4, len: 900, apart: true },
    What::Copies { pieces: 4, len: 900, apart: false },
    What::Copies { pieces: 1, len: 2000, apart: true },
    What::Copies { pieces: 1, len: 2000, apart: false },
    What::Copies { pieces: 1, len: 500, apart: true },
    What::Copies { pieces: 1, len: 500, apart: false },
    What::Maps,
    What::Frames { large: false },
    What::Frames { large: true },
    What::Reads,
];

impl What {
    /// The predicted count in a second, with `workers` threads or workers; 0 for a transport that
    /// has no such thing.
    pub fn predict(self, inputs: &Inputs, transport: Transport, workers: usize) -> f64 {
        let costs = |era| Costs::new(inputs, era);
        match (self, transport) {
            (What::Copies { pieces, len, apart }, Transport::Grants(era)) => {
                let scene = costs(era).copying(workers, pieces.into(), len.into(), apart);
                run(&scene).rate() * f64::from(pieces)
            }
            (What::Maps, Transport::Grants(era)) => run(&costs(era).mapping(workers)).rate(),
            (What::Reads, Transport::Grants(era)) => {
                run(&costs(era).reading(GUESTS, workers, false, host(workers))).rate()
            }
            (What::Frames { large }, _) => {
                let frames = Frames::new(inputs, transport);
                let bytes = if large { frames.large() } else { SMALL };
                run(&frames.carrying(pair(transport, workers), bytes, host(workers))).rate()
            }
            (_, Transport::VhostUser) => 0.0,
        }
    }

    /// The transports with which it is measured.
    fn transports(self) -> &'static [Transport] {
        match self {
            What::Frames { .. } => &Transport::ALL,
            _ => &Transport::GRANTS,
        }
    }

    fn measure(
        self,
        meter: &mut Meter,
        transport: Transport,
        workers: usize,
        placement: Placement,
    ) -> Result<Vec<f64>, BenchError> {
        let Transport::Grants(era) = transport else {
            let size = self.size();
            let generating = Generating { size, workers: workers as u16 };
            return meter.repeat(|| generating.rate(placement));
        };
        match self {
            What::Copies { pieces, len, apart } => {
                meter.grants(era, workers, Task::Copy { pieces, len, offset: 0 }, apart)
            }
            What::Maps => meter.grants(era, workers, Task::Map, false),
            What::Reads => {
                let reading = Reading { era, workers };
                meter.repeat(|| reading.rate(placement))
            }
            What::Frames { .. } => {
                let size = self.size();
                let carrying = Carrying { era, size, workers: workers as u16 };
                meter.repeat(|| carrying.rate(placement))
            }
        }
    }

    /// The size of frames.
    fn size(self) -> Size {
        if self == (What::Frames { large: true }) { Size::Large } else { Size::Small }
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

/// The guests of a measurement with frames: grants have one pair with a queue for each worker,
/// vhost-user a pair for each worker.
fn pair(transport: Transport, workers: usize) -> Scene {
    let frames = FRAMES * workers as u64;
    match transport {
        Transport::Grants(_) => {
            Scene { frames, ..Scene::pairs(1, workers, workers, STREAMS * workers) }
        }
        // The senders connect first, so each receiver is on its sender's worker.
        Transport::VhostUser => Scene {
            frames,
            joint: true,
            links: (0..workers).map(|pair| (pair, pair + workers)).collect(),
            ..Scene::pairs(workers, workers, 1, STREAMS)
        },
    }
}

/// Where threads of a prediction run, as in [`placement`].
fn host(workers: usize) -> Host {
    if workers == 1 { Host::Apart { workers: 1, guests: 1 } } else { Host::Together }
}

/// Where threads of a measurement with guests run: one worker has a CPU to itself, and all guests
/// the other; two workers have a CPU each, and share it with the guests that they serve.
fn placement(workers: usize) -> Placement {
    if workers == 1 { Placement::Apart } else { Placement::Together }
}

/// Measurements of all cases, in the order of [`cases`].
#[derive(Debug, Default)]
pub struct Samples(Vec<[Vec<f64>; 2]>);

/// All cases that this machine can measure: the quantity, how frames come to their receiver, and
/// the number of threads or workers.
fn cases() -> impl Iterator<Item = (What, Transport, usize)> {
    ALL.into_iter().flat_map(|what| {
        let with = move |transport: &Transport| [1, 2].map(|workers| (what, *transport, workers));
        what.transports().iter().flat_map(with)
    })
}

/// Measures all cases, and adds the results to the samples.
///
/// # Errors
/// See [`Meter::repeat`].
pub fn measure(
    samples: &mut Samples,
    meter: &mut Meter,
    progress: &Progress,
) -> Result<(), BenchError> {
    let stage = progress.stage("measuring what is predicted");
    samples.0.resize_with(cases().count(), Default::default);
    for ((what, transport, workers), [own, placed_by_kernel]) in cases().zip(&mut samples.0) {
        stage.at(what.name());
        own.extend(what.measure(meter, transport, workers, placement(workers))?);
        if workers > 1 && matches!(what, What::Frames { .. } | What::Reads) {
            let placement = Placement::Free;
            placed_by_kernel.extend(what.measure(meter, transport, workers, placement)?);
        }
    }
    stage.done("");
    Ok(())
}

/// Predicts all cases that were measured.
pub fn points(inputs: &Inputs, samples: &Samples) -> Vec<Point> {
    let point =
        |((what, transport, workers), [own, placed_by_kernel]): (_, &[Vec<f64>; 2])| Point {
            what,
            transport,
            workers,
            measured: Measured::of(own.clone()),
            predicted: what.predict(inputs, transport, workers),
            placed_by_kernel: (!placed_by_kernel.is_empty())
                .then(|| Measured::of(placed_by_kernel.clone())),
        };
    cases().zip(&samples.0).map(point).collect()
}

/// The largest error of the predictions of frames with two workers, as a part of the measurement;
/// none where nothing was measured.
pub fn largest_error(points: &[Point], transport: Transport) -> Option<f64> {
    let own = points.iter().filter(|point| {
        point.transport == transport
            && point.workers == 2
            && matches!(point.what, What::Frames { .. })
    });
    own.map(|point| point.error().abs()).reduce(f64::max)
}

/// For people: each point, and the error of all predictions together.
pub fn table(points: &[Point]) -> String {
    let mut text = format!(
        "{:<39} {:<10} {:>7} {:>24} {:>9} {:>6}  {}\n",
        "rate per second",
        "",
        "workers",
        "measured (least..most)",
        "predicted",
        "error",
        "placed by the kernel"
    );
    let range = |Measured { median, least, most }: Measured| {
        format!("{} ({}..{})", short(median), short(least), short(most))
    };
    for point in points {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<39} {:<10} {:>7} {:>24} {:>9} {:>4.0} %  {}",
            point.what.name(),
            point.transport.name(),
            point.workers,
            range(point.measured),
            short(point.predicted),
            point.error() * 100.0,
            point.placed_by_kernel.map(range).unwrap_or_default()
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
    use super::super::costs::Era;
    use super::super::inputs::tests::some;
    use super::*;

    #[test]
    fn each_error_is_shown_and_the_largest_is_named() {
        let point = |workers, predicted| Point {
            what: What::Maps,
            transport: Transport::Grants(Era::Old),
            workers,
            measured: Measured { median: 1e5, least: 0.9e5, most: 1.2e6 },
            predicted,
            placed_by_kernel: None,
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
            for &transport in what.transports() {
                let rates = [1, 2].map(|workers| what.predict(&inputs, transport, workers));
                assert!(
                    rates.iter().all(|rate| *rate > 1e3 && *rate < 1e8),
                    "{what:?}, {transport:?}: {rates:?}"
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
