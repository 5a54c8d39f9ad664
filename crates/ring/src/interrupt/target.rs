//! An eventfd that interrupts a peer, and who writes to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{add_slow, interrupt, take_slow};
use crate::interrupt_thread::{self, Queued};
use crate::violation::Violation;

/// The result of writes, one of which was found to block.
const BLOCKS: u64 = u64::MAX;

/// An eventfd that the peer also holds. The calling thread writes to it, or an
/// [`InterruptThread`](crate::interrupt_thread::InterruptThread) on its behalf.
#[derive(Debug)]
pub struct Target {
    event: OwnedFd,
    /// The interrupt thread has yet to write.
    pub(crate) queued: Queued,
    /// What the interrupt thread found, until a worker takes it: the CPU time of slow writes, in
    /// nanoseconds, or [`BLOCKS`].
    result: AtomicU64,
}

impl Target {
    /// A target that is `event`, an eventfd.
    pub fn new(event: OwnedFd) -> Arc<Target> {
        Arc::new(Target { event, queued: Queued::default(), result: AtomicU64::new(0) })
    }

    /// Interrupts the peer, now or within microseconds.
    ///
    /// # Errors
    /// [`Violation::InterruptBlocks`], of this interrupt or an earlier one.
    #[inline]
    pub fn interrupt(self: &Arc<Self>) -> Result<(), Violation> {
        if self.result.load(Ordering::Relaxed) != 0 {
            self.take_result()?;
        }
        if interrupt_thread::offer(self) {
            return Ok(());
        }
        interrupt(self.event.as_fd())
    }

    /// Charges the calling thread's peer for what the interrupt thread found.
    #[cold]
    fn take_result(&self) -> Result<(), Violation> {
        match self.result.swap(0, Ordering::Relaxed) {
            BLOCKS => Err(Violation::InterruptBlocks),
            spent => {
                add_slow(spent);
                Ok(())
            }
        }
    }

    /// The interrupt thread writes.
    pub(crate) fn send_queued(&self) {
        self.queued.clear();
        let found = match interrupt(self.event.as_fd()) {
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
