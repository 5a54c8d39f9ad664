//! Errors of the driver side.

use std::io;

use ring::{MapError, Violation};

/// An error between the front-end and the back-end.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A message failed; the back-end may have closed the socket, refused, or not answered for ten
    /// seconds.
    #[error("{request}: {error}")]
    Message {
        /// The request.
        request: &'static str,
        /// The failure of the request.
        error: vhost::Error,
    },
    /// The socket or an eventfd failed.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// The guest's memory could not be created.
    #[error("guest memory: {0}")]
    Memory(#[from] MapError),
    /// The guest's memory is too small for its rings and buffers.
    #[error("guest memory is full: {wanted} bytes wanted, {left} left")]
    Full {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
    /// A ring that does not fit its layout.
    #[error("ring: {0}")]
    Ring(#[from] Violation),
    /// The back-end does not offer features that the driver requires.
    #[error("the back-end does not offer feature bits {0:#x}")]
    Missing(u64),
    /// More queue pairs than the back-end can serve.
    #[error("{wanted} queue pairs wanted, the back-end serves {served}")]
    Queues {
        /// Asked for.
        wanted: u16,
        /// The number of queue pairs that the back-end serves.
        served: u64,
    },
    /// The back-end answered a request with a failure.
    #[error("the back-end refused {0}")]
    Refused(&'static str),
}
