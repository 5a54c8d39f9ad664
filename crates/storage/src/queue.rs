//! A disk's queue, as the pipeline sees it.

use std::any::Any;
use std::os::fd::BorrowedFd;

use ring::{IoChain, Violation};
pub use runtime::coalescing::Notified;
use thiserror::Error;

use crate::command::Refusal;

/// Why a queue cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The peer broke the ring protocol.
    #[error(transparent)]
    Protocol(#[from] Violation),
    /// A request has no header, or no byte for its status: it cannot be answered.
    #[error("a request without {0}")]
    Malformed(&'static str),
}

impl QueueError {
    /// The violation of the ring protocol, if it is one.
    pub fn violation(&self) -> Option<Violation> {
        if let QueueError::Protocol(violation) = self { Some(*violation) } else { None }
    }
}

/// One queue of a disk, as a worker sees it. One worker owns it at a time, so it needs no lock.
///
/// After a [`QueueError`] the worker does not call the queue any more, and its disk is stopped.
pub trait RequestQueue: Send {
    /// Takes the next request that the peer has published into `chain`, and returns its token.
    ///
    /// # Errors
    /// The peer's violation.
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, QueueError>;

    /// Whether more requests may be taken before the first is looked at. Otherwise the bytes of a
    /// request's header change when the next one is taken.
    fn takes_groups(&self) -> bool {
        true
    }

    /// Whether there is a request to take.
    ///
    /// # Errors
    /// The peer's violation.
    fn has_next(&mut self) -> Result<bool, QueueError>;

    /// Completes a request, with `len` bytes written to its buffers. The completion is published at
    /// the next [`flush`](Self::flush).
    fn complete(&mut self, token: u16, len: u32);

    /// Makes all completed requests visible to the peer, and interrupts it where it expects that.
    ///
    /// # Errors
    /// When the peer cannot be interrupted, or its memory is gone.
    fn flush(&mut self) -> Result<Notified, QueueError>;

    /// Asks the peer to signal when it publishes more, then looks once more. True when something is
    /// there already.
    ///
    /// # Errors
    /// The peer's violation.
    fn arm(&mut self) -> Result<bool, QueueError>;

    /// Tells the peer that signals are not needed.
    fn disarm(&mut self);

    /// The descriptor that the peer signals through, watched edge-triggered and never read.
    fn waker(&self) -> Option<BorrowedFd<'_>>;

    /// The reason why the request with this token, which was just taken, cannot be carried out, if
    /// the queue has found one.
    fn refusal(&self, token: u16) -> Option<Refusal> {
        let _ = token;
        None
    }

    /// Requests whose data could not be handed to the peer after they were carried out, since the
    /// last call. They were reported to the peer as failed.
    fn take_lost(&mut self) -> u64 {
        0
    }

    /// Whether no request can be taken before another one is complete, whatever the peer has
    /// published.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether the worker itself makes grant copies of data between the peer's memory and the
    /// buffers of a chain.
    fn copies_data(&self) -> bool {
        false
    }

    /// Notes `faults` page faults in the peer's memory, or perhaps in that of another peer. A peer
    /// whose memory has grown meanwhile is charged for them.
    fn note_faults(&self, faults: u64) {
        let _ = faults;
    }

    /// Notes that the kernel has read or written `pages` pages of the peer's memory, for requests
    /// that are complete. The kernel may have allocated them.
    fn used_by_kernel(&self, pages: u64) {
        let _ = pages;
    }

    /// The queue as what it is, when its disk takes it back.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
