//! The topology: all queues and their workers, written by the control side and read by every
//! worker.

use std::sync::Arc;

pub use runtime::QueueId;
use switch::PortId;

use crate::queue_selector::QueueSelector;

/// Where a queue that may receive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLocation {
    /// The queue.
    pub queue: QueueId,
    /// Its index in its port.
    pub index: u16,
    /// Index of the worker that owns it.
    pub worker: usize,
    /// The queue is migrating to another worker: its senders wait.
    pub moving: bool,
}

/// A port as senders see it.
#[derive(Clone, Debug, Default)]
pub struct PortView {
    /// Queues whose Rx ring is enabled, by index.
    pub receivers: Vec<QueueLocation>,
    /// Longest IP packet that the port takes, in bytes.
    pub mtu: Option<u16>,
    /// The port's own choice of queues.
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
