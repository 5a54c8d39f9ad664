//! Batches of frames that go from one worker to another.

use runtime::QueueId;

use super::ring_probe::RingProbe;
use crate::burst::Burst;
use crate::port::QueueError;
use crate::step::Ticks;

/// Batches that one worker may have under way.
pub const MAX_BATCHES: usize = 32;

/// Frames for one queue of another worker.
pub struct HandoffBatch {
    /// The frames, with the action of each.
    pub burst: Burst,
    /// The queue that they are for.
    pub receiver: QueueId,
    /// The queue that they came from.
    pub sender: QueueId,
    /// The number of the sender's burst that they were part of.
    pub burst_number: u64,
    /// The sending worker's number for the batch.
    pub sent: u64,
    /// The next frame to deliver.
    pub next: usize,
    /// Frames whose receiver was gone. The sending worker counts them.
    pub lost: u64,
    /// Work done for the batch's frames beyond their cost, which the sender is charged for.
    pub added: u64,
    /// Cost that the sender has to wait for, because of page faults in its memory.
    pub fault_wait: u64,
    /// The error found in the sender's bytes.
    pub error: Option<QueueError>,
    /// The receiving worker's number for the batch.
    pub number: u64,
    /// Frames of the batch that were passed to their receiver and are outstanding. The batch goes
    /// back when all are released.
    pub passed: usize,
    /// What the batch asks, instead of carrying frames.
    pub probe: Option<RingProbe>,
    /// Time that the sending worker spent on these frames while a profile was taken.
    pub spent: Ticks,
}

impl HandoffBatch {
    /// A batch without frames.
    pub fn new() -> Self {
        HandoffBatch {
            burst: Burst::new(),
            receiver: QueueId(0),
            sender: QueueId(0),
            burst_number: 0,
            sent: 0,
            next: 0,
            lost: 0,
            added: 0,
            fault_wait: 0,
            error: None,
            number: 0,
            passed: 0,
            probe: None,
            spent: Ticks::default(),
        }
    }

    /// Lets go of all frames, for another burst.
    pub fn recycle(&mut self) {
        self.burst.reset();
        (self.lost, self.added, self.fault_wait) = (0, 0, 0);
        (self.error, self.probe, self.spent) = (None, None, Ticks::default());
    }
}
