//! Why a run has no report.

use std::io;
use std::path::PathBuf;

use ring::Violation;
use ring::driver::BadUsed;
use vhost_user_driver::DriverError;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that contradict each other, or the back-end.
    #[error("{0}")]
    Options(String),
    /// A socket could not be opened.
    #[error("socket {path}: {error}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Frames cannot leave by a network device.
    #[error("cannot send from the network device {name}: {error}")]
    Device {
        /// Its name.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Negotiation with the back-end failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The guest's memory is not accessible at an address.
    #[error("guest memory: {0}")]
    Memory(#[from] Violation),
    /// The back-end broke the ring protocol.
    #[error("the back-end broke the protocol on a {ring} ring of guest {guest}: {error}")]
    Used {
        /// Number of the guest.
        guest: u16,
        /// Tx or Rx.
        ring: &'static str,
        /// The error of the device.
        error: BadUsed,
    },
    /// Nothing came through.
    #[error(
        "no frame came to guest {guest} within {seconds} s: does the back-end connect the sockets?"
    )]
    Silence {
        /// Number of the guest.
        guest: u16,
        /// The time waited, in seconds.
        seconds: f64,
    },
    /// Sleeping failed.
    #[error("waiting for interrupts: {0}")]
    Wait(io::Error),
    /// A CPU to run on does not exist.
    #[error("running on CPU {cpu}: {error}")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// The system's error.
        error: io::Error,
    },
    /// The run was interrupted before anything was measured.
    #[error("interrupted")]
    Interrupted,
}
