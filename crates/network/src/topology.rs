//! Which queues there are, and whose they are: written by the control side, read by every worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use switch::PortId;

use crate::route::QueueSelector;

/// One attachment of a queue pair to a worker. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u64);

/// Where a queue that may receive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLocation {
    /// The queue.
    pub queue: QueueId,
    /// Its index in its port.
    pub index: u16,
    /// Index of the worker that owns it.
    pub worker: usize,
    /// It is on its way to another: its senders wait.
    pub moving: bool,
}

/// What senders need to know about a port.
#[derive(Clone, Debug, Default)]
pub struct PortView {
    /// Queues whose Rx ring is enabled, by index.
    pub receivers: Vec<QueueLocation>,
    /// Longest IP packet that the port takes, in bytes.
    pub mtu: Option<u16>,
    /// Where the port wants its frames.
    pub selector: Option<Arc<dyn QueueSelector>>,
}

/// All ports, indexed by [`PortId`].
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// One entry a port; empty ones have no receiver.
    pub ports: Vec<PortView>,
}

impl Topology {
    /// The view of `port`, if it exists.
    pub fn port(&self, port: PortId) -> Option<&PortView> {
        self.ports.get(usize::from(port.0))
    }
}

/// A value that changes rarely and is looked at often: readers compare one number and take the lock
/// only on a change.
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
        let mut current = self.value.lock().unwrap_or_else(PoisonError::into_inner);
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
        Some(Arc::clone(&self.value.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
