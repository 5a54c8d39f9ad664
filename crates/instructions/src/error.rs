//! Errors of the count.

use std::io;

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum InstructionsError {
    /// There is no valgrind.
    #[error("valgrind is not installed: run scripts/deps instructions")]
    NoValgrind,
    /// The program failed under valgrind.
    #[error("valgrind: {0}")]
    Failed(String),
    /// The output of the program cannot be parsed.
    #[error("line {line} of callgrind's output makes no sense: {text}")]
    Nonsense {
        /// Which line, from 1 on.
        line: usize,
        /// The output of the program.
        text: String,
    },
    /// The profile lacks a step.
    #[error(
        "{0}: the steps of the datapath are not in callgrind's output: is this a release build?"
    )]
    NoSteps(&'static str),
    /// The budget is damaged.
    #[error("the budget: {0}")]
    Budget(String),
    /// Some cases are not within the budget.
    #[error("cases that are not as recorded: {0}")]
    Changed(usize),
    /// A round of the worker left frames behind.
    #[error("a round of the worker left {left} of {sent} frames undelivered")]
    Stuck {
        /// Frames sent.
        sent: usize,
        /// Frames not received.
        left: u64,
    },
    /// A capture lacked frames.
    #[error("a capture has {read} of the {frames} frames of a round of the worker")]
    Captured {
        /// Frames that were read.
        read: u64,
        /// Frames that passed.
        frames: u64,
    },
    /// There was no capture.
    #[error(transparent)]
    Capture(#[from] network::capture::CaptureError),
    /// The guests.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// The TAP.
    #[error(transparent)]
    Tap(#[from] hostlink::tap::TapError),
    /// A port.
    #[error(transparent)]
    Port(#[from] vhost_user::net::StartError),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl InstructionsError {
    /// The system refused an operation.
    pub fn system(what: &'static str, source: io::Error) -> Self {
        Self::System { what, source }
    }
}
