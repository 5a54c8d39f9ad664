//! A value that changes rarely and is looked at often.
//!
//! Readers compare one version number a round and take the lock only after a change. A version is
//! kept rather than a pointer swapped, because the control side waits until each worker has
//! acknowledged a version.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A published value and the number of its version.
pub struct Published<T> {
    version: AtomicU64,
    value: Mutex<Arc<T>>,
}

impl<T> Published<T> {
    /// Publishes the first value, as version 1.
    pub fn new(value: T) -> Self {
        Published { version: AtomicU64::new(1), value: Mutex::new(Arc::new(value)) }
    }

    /// Replaces the value; returns the number of its version.
    pub fn set(&self, value: T) -> u64 {
        let mut current = self.value.lock();
        *current = Arc::new(value);
        self.version.fetch_add(1, Ordering::Release) + 1
    }

    /// Whether there is a newer value than `seen`.
    pub fn is_newer(&self, seen: u64) -> bool {
        self.version.load(Ordering::Acquire) != seen
    }

    /// The value, if it is newer than `seen`, which is brought up to date.
    #[inline]
    pub fn newer(&self, seen: &mut u64) -> Option<Arc<T>> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        *seen = version;
        Some(Arc::clone(&self.value.lock()))
    }
}
