//! Errors of the laboratory.

use std::io;
use std::path::PathBuf;

use crate::daemon::DaemonError;
use crate::demo::DemoError;
use crate::guest::GuestError;
use crate::ovs::OvsError;
use crate::plot::PlotError;

/// Why an experiment or its report ended early.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A guest, or another system that runs commands.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A peer of the comparison.
    #[error(transparent)]
    Ovs(#[from] OvsError),
    /// The guests of the demonstration.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A plot.
    #[error("cannot draw: {0}")]
    Draw(#[from] PlotError),
    /// A tool printed something unexpected.
    #[error("{tool} said: {text}")]
    Tool {
        /// The tool.
        tool: String,
        /// The output.
        text: String,
    },
    /// A file or a folder.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that is no record.
    #[error("{}: no record of an experiment: {why}", .path.display())]
    NoRecord {
        /// Which.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no such experiment.
    #[error("there is no experiment {0:?}; `ringmain-lab list` names them")]
    Unknown(String),
    /// An experiment can't run there.
    #[error("{experiment} does not run on --guests {platform}; it does on: {possible}")]
    Platform {
        /// The experiment.
        experiment: &'static str,
        /// The requested platform.
        platform: &'static str,
        /// The possible platforms.
        possible: String,
    },
    /// Another process runs an experiment with the same folder.
    #[error("another `ringmain-lab run` is writing to {}", .0.display())]
    Busy(PathBuf),
    /// A point lacks a setting: the experiment is wrong, or the record is another version's.
    #[error("a point has no {0:?} that fits")]
    Setting(&'static str),
    /// There is nothing to make a report of.
    #[error("there are no records in {}: run `ringmain-lab run` first", .0.display())]
    Nothing(PathBuf),
    /// Two records that cannot be compared.
    #[error("{0}")]
    Unlike(String),
    /// Some repetitions failed or broke a rule. The record lists them.
    #[error("{count} repetitions failed or broke an invariant, the first: {first}; record: {}", .record.display())]
    Broken {
        /// How many.
        count: usize,
        /// The failure of the first.
        first: String,
        /// The record with all repetitions.
        record: PathBuf,
    },
    /// The user ended it.
    #[error("interrupted; the same command goes on from here")]
    Interrupted,
}

impl LabError {
    /// Whether the user interrupted OVS-DPDK.
    pub fn is_interrupt(&self) -> bool {
        match self {
            LabError::Interrupted | LabError::Guest(GuestError::Interrupted) => true,
            LabError::Ovs(error) => error.is_interrupt(),
            LabError::Demo(error) => error.is_interrupt(),
            _ => false,
        }
    }

    /// Whether the command line is the cause.
    pub fn is_usage(&self) -> bool {
        matches!(self, LabError::Unknown(_) | LabError::Platform { .. } | LabError::Unlike(_))
    }

    /// For `map_err`: what was being done.
    pub fn system(what: &'static str) -> impl Fn(io::Error) -> LabError {
        move |source| LabError::System { what, source }
    }

    /// For `map_err`: which file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LabError {
        let path = path.into();
        move |source| LabError::File { path, source }
    }
}
