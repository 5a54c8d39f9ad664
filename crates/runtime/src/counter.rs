//! Counters: one writer each, readable by anyone at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that one thread writes: an increment is a plain load and store, no locked instruction.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Call this from the owning worker only: concurrent writers would lose counts.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts `n` that were added. Call this from the owning worker only.
    pub fn subtract(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
