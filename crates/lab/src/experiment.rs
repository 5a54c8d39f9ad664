//! The laboratory: experiments that others have published, run again on this machine, and what they
//! show.
//!
//! An [`Experiment`] says what it measures and how one repetition of it is made, and nothing else.
//! [`suite`](crate::suite) repeats the experiment, keeps every repetition in a [`Record`] as soon
//! as it is made, and continues a record that was left unfinished. Reports and [`compare`] read
//! records and never measure.

mod broken;
mod change;
pub(crate) mod chart;
pub mod compare;
mod finding;
pub(crate) mod host;
mod outcome;
pub(crate) mod place;
mod point;
pub(crate) mod record;
pub(crate) mod results;
mod side;
mod significance;

use std::path::PathBuf;
use std::time::Duration;

pub use broken::LabError;
pub use change::Change;
pub use finding::{Finding, Verdict};
pub use outcome::{Check, Outcome};
pub use point::Point;
pub use record::{Record, Repetition};
pub use results::Results;
pub use side::Side;

use crate::plot::{Axis, Shape};
use crate::program::Program;
use crate::progress::Progress;
use crate::statistics::Centre;

/// Where guests run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Processes with paravirtual interfaces of the daemon's embedded hypervisor; this takes
    /// seconds
    Embedded,
    /// Under QEMU, with virtio over vhost-user
    Qemu,
    /// On Xen, which itself runs under QEMU
    Xen,
}

impl Platform {
    /// How long streams run at least before they are measured, and how long that takes at least:
    /// where guests are emulated their programs take seconds to start, those of guests on an
    /// emulated hypervisor more.
    pub(crate) fn least(self) -> (Duration, Duration) {
        match self {
            Platform::Embedded => (Duration::ZERO, Duration::ZERO),
            Platform::Qemu => (Duration::from_millis(1500), Duration::from_secs(4)),
            Platform::Xen => (Duration::from_secs(6), Duration::from_secs(8)),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Embedded => "embedded",
            Platform::Qemu => "qemu",
            Platform::Xen => "xen",
        }
    }
}

/// How much is measured.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Run for only a few seconds, to test the experiment; the results are not meaningful
    Tiny,
    /// Measure fewer points, with fewer and shorter repetitions
    Quick,
    /// Measure all points, with full repetitions
    Full,
}

impl Size {
    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Size::Tiny => "tiny",
            Size::Quick => "quick",
            Size::Full => "full",
        }
    }
}

/// Something that one repetition measures.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The name in records.
    pub name: &'static str,
    /// The title for people.
    pub title: &'static str,
    /// The unit.
    pub unit: &'static str,
}

impl Figure {
    /// Throughput of the streams of a run, all together.
    pub const THROUGHPUT: Figure =
        Figure { name: "throughput", title: "throughput of all streams", unit: "Gb/s" };
    /// CPU time that the daemon took.
    pub const DAEMON_CPU: Figure =
        Figure { name: "daemon", title: "CPU of the daemon", unit: "% of a CPU" };
    /// CPU time that everything on the host took.
    pub const ALL_CPU: Figure =
        Figure { name: "busy", title: "CPU of everything", unit: "% of a CPU" };
    /// How many frames a receiver got for each of its interrupts.
    pub const FRAMES_PER_INTERRUPT: Figure =
        Figure { name: "frames_per_interrupt", title: "frames for each interrupt", unit: "frames" };
}

/// A plot of figures over points.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The end of its file's name.
    pub name: &'static str,
    /// The subject of the plot.
    pub title: &'static str,
    /// How.
    pub shape: Shape,
    /// The axis that distinguishes the points of a series.
    pub x: Axis,
    /// The axis of the measured values.
    pub y: Axis,
    /// The names of the figures that are drawn: one line, or one part of each stack, for each.
    pub figures: &'static [&'static str],
}

/// A figure that others have published.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The name of our figure that it is compared with.
    pub figure: &'static str,
    /// The series that the others measured.
    pub series: &'static str,
    /// The place on the plot's x axis.
    pub x: f64,
    /// The value that the others found, in the unit of ours.
    pub value: f64,
}

/// The first publication of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The document.
    pub title: &'static str,
    /// The authors, and the year.
    pub by: &'static str,
}

/// The description of an experiment, known before it is run.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The name on the command line and in records.
    pub name: &'static str,
    /// The title in reports.
    pub title: &'static str,
    /// The procedure, in a sentence or two.
    pub what: &'static str,
    /// The publication that it comes from, if any.
    pub source: Option<Source>,
    /// The platforms that it can run on; the first is the default.
    pub platforms: &'static [Platform],
    /// The figures that each repetition measures.
    pub figures: &'static [Figure],
    /// How that is shown.
    pub plots: &'static [Plot],
    /// The results of others.
    pub published: &'static [Published],
}

/// The folders and options that a repetition may use.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The `ringmain` command.
    pub binary: PathBuf,
    /// The folder with the images that guests boot.
    pub cache: PathBuf,
    /// The platform that guests run on.
    pub platform: Platform,
    /// How much is measured.
    pub size: Size,
    /// How long each repetition measures.
    pub time: Duration,
    /// To say what is being done before the first repetition.
    pub progress: &'a Progress,
}

impl Setup<'_> {
    /// The program of the daemon.
    pub fn program(&self) -> Program {
        Program::at(&self.binary)
    }
}

/// The identity of one repetition of a point, which does not depend on how often the run was
/// interrupted and continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The round, from 0.
    pub round: u32,
    /// How many were made at the same point in the same round before, and did not count.
    pub earlier: u32,
}

/// Makes one repetition of a point.
pub type Measure<'a> = Box<dyn FnMut(&Point, Attempt) -> Result<Outcome, LabError> + 'a>;

/// An experiment. See docs/lab.md for how to add one.
pub trait Experiment: Sync {
    /// The description of the experiment.
    fn about(&self) -> &'static About;

    /// The points to measure, in the order of a round; no two points have both series and x in
    /// common.
    fn points(&self, platform: Platform, size: Size) -> Vec<Point>;

    /// Makes ready to measure any of the points. What is started here, such as guests that take
    /// long to boot, serves all repetitions; what is started in a repetition is fresh in each.
    ///
    /// # Errors
    /// When something is missing or does not start.
    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError>;

    /// The published results, compared with those found here. Every figure comes out of `results`.
    fn findings(&self, results: &Results) -> Vec<Finding> {
        let _ = results;
        Vec::new()
    }

    /// Paragraphs on what the figures show. A claim is made only where `results` bears it out by
    /// more than its scatter; nothing of this is shown of a run whose figures are in
    /// [`doubt`](Results::doubt).
    fn remarks(&self, results: &Results) -> Vec<String> {
        let _ = results;
        Vec::new()
    }

    /// Paragraphs on differences from the publication, and on the measurement, that hold for any
    /// figures.
    fn notes(&self, results: &Results) -> Vec<String> {
        let _ = results;
        Vec::new()
    }

    /// Versions of what takes part in this experiment alone, by name.
    fn versions(&self, platform: Platform) -> Vec<(&'static str, String)> {
        let _ = platform;
        Vec::new()
    }

    /// The value that represents the repetitions of a point in its plots and tables.
    fn centre(&self) -> Centre {
        Centre::Median
    }

    /// How often each point is measured.
    fn repetitions(&self, size: Size) -> u32 {
        match size {
            Size::Tiny => 1,
            Size::Quick => 3,
            Size::Full => 10,
        }
    }

    /// How long each repetition measures.
    fn time(&self, size: Size) -> Duration {
        Duration::from_secs_f64(match size {
            Size::Tiny => 0.3,
            Size::Quick => 1.0,
            Size::Full => 5.0,
        })
    }
}
