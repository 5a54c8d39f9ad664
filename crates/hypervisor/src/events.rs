//! Event channels: signals between domains that carry nothing.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use ring::grant::DomId;
use thiserror::Error;

/// The other end of an event channel, by its number in the domain that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemotePort(pub u32);

/// Why an event channel could not be bound.
#[derive(Debug, Error)]
pub enum EventError {
    /// The port does not exist, is for another domain, or is bound already.
    #[error("domain {domain} has no event channel {} that waits for us", port.0)]
    Refused {
        /// The domain of the port.
        domain: DomId,
        /// The port.
        port: RemotePort,
    },
    /// The kernel refused for another reason.
    #[error("binding an event channel: {0}")]
    Os(#[from] io::Error),
}

/// Binds event channels.
pub trait Events: Debug + Send + Sync {
    /// Binds a channel to the `port` that `domain` has opened for us. A signal is pending from the
    /// start, since the other end may have signalled before.
    ///
    /// # Errors
    /// See [`EventError`].
    fn bind(&self, domain: DomId, port: RemotePort) -> Result<Box<dyn Channel>, EventError>;
}

/// One end of an event channel. Dropping it closes this end; the other end's port can then be bound
/// again.
pub trait Channel: Debug + Send + Sync {
    /// Signals the other end. Signalling a domain that is gone does nothing.
    fn notify(&self);

    /// The descriptor that becomes readable with a signal, once until [`take`](Self::take), so it
    /// can be watched edge-triggered. No other domain holds it.
    fn waker(&self) -> BorrowedFd<'_>;

    /// Takes the pending signal, if there is one, and lets the next one through. Never blocks. The
    /// state that the signal announces has to be read after this call, or a signal could be
    /// missed.
    fn take(&self) -> bool;
}
