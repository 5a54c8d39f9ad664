//! Where a frame goes from one worker.

use crate::topology::QueueLocation;

/// Where a frame goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// To a slot of this worker.
    Local(usize),
    /// To a queue of another worker.
    Remote(QueueLocation),
    /// No queue of the port is enabled.
    Unreachable,
    /// To a queue that is on its way from one worker to another: the frame waits.
    Moving,
    /// To a queue other than its flow's previous one: the frame waits until the flow is at rest.
    Rebalancing,
}
