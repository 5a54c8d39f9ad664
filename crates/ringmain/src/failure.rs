//! What can go wrong with a command, and the exit code that tells it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use control::client::ClientError;
use control::config::ConfigError;
use control::daemon::DaemonError;

/// Why a command failed: what, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A configuration that is refused, or flags that are.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A configuration that cannot be read.
    #[error("cannot read {}: {error}; name the configuration with --config", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The daemon could not start.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The daemon could not be asked, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon answered something else than was asked; another version, most likely.
    #[error(
        "the daemon's answer does not fit the question: use the `ringmain` that it was started from"
    )]
    Surprised,
    /// There is no such port.
    #[error("there is no port {0:?}; `ringmain port list` shows those that are there")]
    NoPort(String),
    /// The daemon takes no processes as guests.
    #[error(
        "the daemon takes no guests: give it a port of kind \"embedded\" (ringmain port add guests --kind embedded --socket PATH)"
    )]
    NoGuests,
    /// There is no guest.
    #[error(transparent)]
    Guest(#[from] netns_guest::GuestError),
    /// Standard output is gone.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// The system refused something that a command cannot do without.
    #[error("cannot {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
}

impl Failure {
    /// 2 for a fault of the command line or the configuration, 127 for a guest whose program
    /// cannot be started, and 1 for every other failure.
    pub fn code(&self) -> ExitCode {
        match self {
            Failure::Config(_) | Failure::Unreadable { .. } => ExitCode::from(2),
            // As a shell says it of a command that it can't start.
            Failure::Guest(netns_guest::GuestError::Program { .. }) => ExitCode::from(127),
            _ => ExitCode::from(1),
        }
    }
}
