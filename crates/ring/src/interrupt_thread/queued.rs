//! Whether a target is in a worker's queue.
//!
//! A worker that finds its target queued already relies on the write that is to come: the thread
//! clears the mark before it writes, and both sides use read-modify-write operations. So if a
//! worker finds the mark, the thread has not cleared it yet, and sees all that the worker had
//! published; the loom model checks that.

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

/// The mark of one target.
#[derive(Debug, Default)]
pub struct Queued(AtomicBool);

impl Queued {
    /// Sets the mark. Returns whether it was set already.
    #[inline]
    pub fn set(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }

    /// Clears the mark.
    #[inline]
    pub fn clear(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}
