//! An eventfd that interrupts a peer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::queued::Queued;
use crate::interrupt::{add_slow, interrupt, take_slow};
use crate::violation::Violation;

/// The result of writes, one of which was found to block.
const BLOCKS: u64 = u64::MAX;

/// An eventfd that the peer also holds, to be written by [`interrupt`](super::interrupt).
#[derive(Debug)]
pub struct Target {
    event: OwnedFd,
    /// The interrupt thread has yet to write.
    pub(super) queued: Queued,
    /// What the interrupt thread found, until a worker takes it: the CPU time of slow writes, in
    /// nanoseconds, or [`BLOCKS`].
    result: AtomicU64,
}

impl Target {
    /// A target that is `event`, an eventfd.
    pub fn new(event: OwnedFd) -> Arc<Target> {
        Arc::new(Target { event, queued: Queued::default(), result: AtomicU64::new(0) })
    }

    /// Takes what the interrupt thread found, on account of the calling thread's peer.
    ///
    /// # Errors
    /// [`Violation::InterruptBlocks`].
    #[inline]
    pub(super) fn take_result(&self) -> Result<(), Violation> {
        match self.result.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => self.charge(),
        }
    }

    #[cold]
    fn charge(&self) -> Result<(), Violation> {
        match self.result.swap(0, Ordering::Relaxed) {
            BLOCKS => Err(Violation::InterruptBlocks),
            spent => {
                add_slow(spent);
                Ok(())
            }
        }
    }

    /// The calling thread writes.
    ///
    /// # Errors
    /// [`Violation::InterruptBlocks`].
    #[inline]
    pub(super) fn write(&self) -> Result<(), Violation> {
        interrupt(self.event.as_fd())
    }

    /// The interrupt thread writes.
    pub(super) fn send_queued(&self) {
        self.queued.clear();
        let found = match self.write() {
            Ok(()) => take_slow(),
            Err(_) => BLOCKS,
        };
        if found > 0 {
            let order = Ordering::Relaxed;
            let add = |result: u64| Some(result.saturating_add(found));
            // Always succeeds.
            let _ = self.result.fetch_update(order, order, add);
        }
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
