//! Why a command failed, and the exit status that says so.

use std::io;
use std::process::ExitCode;

/// Why a command failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The generator could not measure.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// The generator received a frame that it did not send, or not like that.
    #[error("frames arrived damaged, out of order or twice: the report says which")]
    Wrong,
    /// The demonstration ended early.
    #[error(transparent)]
    Demo(#[from] lab::demo::DemoError),
    /// The bare wire ended.
    #[error(transparent)]
    BareWire(#[from] lab::demo::bare_wire::BareWireError),
    /// The demonstration of disks ended early.
    #[error(transparent)]
    DiskDemo(#[from] lab::disk_demo::DiskDemoError),
    /// The comparison ended early.
    #[error(transparent)]
    Bench(#[from] lab::bench::BenchError),
    /// An experiment, or a report or comparison of experiments, ended early.
    #[error(transparent)]
    Lab(#[from] lab::experiment::LabError),
    /// There is no prediction.
    #[error(transparent)]
    Model(#[from] lab::model::ModelError),
    /// The daemon does not run.
    #[error(transparent)]
    Serve(#[from] lab::serve::ServeError),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    /// Standard output is gone.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// 2 for a fault of the command line, 130 for an interruption, 1 for every other failure.
    pub fn code(&self) -> ExitCode {
        match self {
            Failure::Load(load::Error::Options(_)) => ExitCode::from(2),
            Failure::Serve(lab::serve::ServeError::Config(_)) => ExitCode::from(2),
            Failure::Lab(error) if error.is_usage() => ExitCode::from(2),
            // As a shell reports a command that a signal ended.
            Failure::Demo(error) if error.is_interrupt() => ExitCode::from(130),
            Failure::DiskDemo(error) if error.is_interrupt() => ExitCode::from(130),
            Failure::Bench(error) if error.is_interrupt() => ExitCode::from(130),
            Failure::Lab(error) if error.is_interrupt() => ExitCode::from(130),
            Failure::Model(error) if error.is_interrupt() => ExitCode::from(130),
            _ => ExitCode::from(1),
        }
    }
}
