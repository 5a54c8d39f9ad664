//! Errors of commands, and their exit codes.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use control::client::ClientError;
use control::config::ConfigErrors;
use control::config_file::FileError;
use control::daemon::DaemonError;

use crate::capture::expression::ExpressionError;

/// Why a command failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A configuration or flags that are refused.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Devices, files or addresses that a configuration names are missing or cannot be used.
    #[error("{}", .0.join("\n"))]
    Host(Vec<String>),
    /// A configuration without content.
    #[error("{}: the file has no keys; write a [[port]] table for each port", .0.display())]
    Empty(PathBuf),
    /// A configuration that cannot be read.
    #[error("{0}; give the configuration with --config")]
    Unreadable(FileError),
    /// A configuration that is not text.
    #[error(transparent)]
    NotText(FileError),
    /// The daemon could not start.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The daemon did not answer, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon sent the answer to another request.
    #[error(
        "the daemon's answer does not fit the request: use the `ringmain` that it was started from"
    )]
    Mismatch,
    /// There is no such port.
    #[error("there is no port {0:?}; `ringmain port list` shows those that are there")]
    NoPort(String),
    /// The daemon has no such overlay.
    #[error("there is no overlay {0:?}; `ringmain overlay show` shows those that are there")]
    NoOverlay(String),
    /// The daemon takes no processes as guests.
    #[error(
        "the daemon takes no guests: give it a port of kind \"embedded\" (ringmain port add guests --kind embedded --socket PATH)"
    )]
    NoGuests,
    /// A capture would go to a terminal.
    #[error(
        "standard output is a terminal: give a file with --write, or a pipe (ringmain capture PORT | tshark -r -)"
    )]
    Terminal,
    /// The file for a capture cannot be created.
    #[error("cannot create {}: {error}", .path.display())]
    CaptureFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// An expression that cannot be compiled.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// There is no guest.
    #[error(transparent)]
    Guest(#[from] netns_guest::GuestError),
    /// Standard output is gone.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// The system refused something that a command cannot do without.
    #[error("cannot {what}: {error}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        match error {
            FileError::Unreadable { .. } => Failure::Unreadable(error),
            FileError::NotText { .. } => Failure::NotText(error),
        }
    }
}

impl Failure {
    /// The exit code.
    ///
    /// 2 for a fault of the command line or the configuration, 127 for a guest whose program cannot
    /// be
    /// started, and 1 for every other failure.
    pub fn code(&self) -> ExitCode {
        match self {
            Failure::Config(_)
            | Failure::Host(_)
            | Failure::NotText(_)
            | Failure::Empty(_)
            | Failure::Terminal
            | Failure::Expression(ExpressionError::Refused(_))
            | Failure::Unreadable(_) => ExitCode::from(2),
            // The code of a shell for a command that cannot be started.
            Failure::Guest(netns_guest::GuestError::Program { .. }) => ExitCode::from(127),
            _ => ExitCode::from(1),
        }
    }
}
