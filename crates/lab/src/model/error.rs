//! The error of the command.

use super::inputs::InputsError;
use crate::bench::BenchError;
use crate::plot::PlotError;

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Something could not be measured.
    #[error(transparent)]
    Measure(#[from] BenchError),
    /// The file of inputs.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// The measurements failed.
    #[error(
        "no prediction from {path}: {why}; measure again when nothing else runs (ringmain-lab model --measure), or use --force"
    )]
    Doubtful {
        /// The file of inputs.
        path: String,
        /// Why they cannot be used.
        why: String,
    },
    /// A curve could not be drawn.
    #[error("cannot draw a plot: {0}")]
    Plot(#[from] PlotError),
    /// A page or plot could not be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl ModelError {
    /// Whether the user interrupted OVS-DPDK.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Measure(error) if error.is_interrupt())
    }
}
