//! A queue and all that its worker keeps with it.

use std::sync::Arc;

use runtime::coalescing::Notified;
use runtime::poll::PollingPolicy;
use runtime::{Blocked, QueueId, Status};

use crate::count::{ErrorReason, QueueCounters};
use crate::disk::Disk;
use crate::queue::{QueueError, RequestQueue};

/// Requests of one queue that are with the kernel at a time. More stay in the guest's ring.
pub(crate) const MOST_IN_FLIGHT: usize = 128;

/// Called, from a worker, when a queue's peer broke the protocol. It must not block.
pub type OnError = Arc<dyn Fn(u16, QueueError) + Send + Sync>;

/// A queue on its way to a worker.
pub struct Attachment {
    /// The queue's name as long as it is attached.
    pub(crate) id: QueueId,
    /// Number of its disk: queues of one disk share one portion of a worker.
    pub(crate) class: u32,
    /// The name of its disk, for the log.
    pub(crate) name: Arc<str>,
    /// Its index in the disk.
    pub(crate) index: u16,
    pub(crate) queue: Box<dyn RequestQueue>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) on_error: OnError,
    pub(crate) policy: Option<PollingPolicy>,
    /// Its peer broke the protocol: the queue is not called any more.
    pub(crate) failed: bool,
}

/// A queue and all that its worker keeps with it.
pub(crate) struct Slot {
    pub on: Attachment,
    /// Requests that are with the kernel.
    pub in_flight: usize,
    /// Requests were completed since the last flush.
    pub dirty: bool,
    /// The queue is about to leave its worker.
    pub leaving: bool,
}

impl Slot {
    pub fn new(on: Attachment) -> Slot {
        Slot { on, in_flight: 0, dirty: false, leaving: false }
    }

    /// How many requests may be fetched now.
    pub fn room(&self) -> usize {
        match self.on.failed || self.leaving {
            true => 0,
            false => MOST_IN_FLIGHT.saturating_sub(self.in_flight),
        }
    }

    /// The peer broke the protocol: the queue is not called any more, and its disk is told.
    #[cold]
    pub fn fail(&mut self, error: QueueError) {
        if !std::mem::replace(&mut self.on.failed, true) {
            self.dirty = false;
            (self.on.on_error)(self.on.index, error);
        }
    }

    /// A request is complete.
    pub fn complete(&mut self, token: u16, len: u32) {
        if !self.on.failed {
            self.on.queue.complete(token, len);
            self.dirty = true;
        }
    }

    /// Publishes what was completed.
    pub fn flush(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let flushed = self.on.queue.flush();
        self.on.counters.fail_many(ErrorReason::Grant, self.on.queue.take_lost());
        match flushed {
            Ok(Notified::Sent) => self.on.counters.interrupts.add(1),
            Ok(Notified::Suppressed) => self.on.counters.suppressed.add(1),
            Ok(Notified::Nothing | Notified::Deferred) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Why nothing was fetched. A queue whose requests are all with the kernel cannot be armed:
    /// what lies in its ring is not fetched before one of them is complete.
    pub fn status(&self) -> Status {
        match self.room() {
            _ if self.on.failed => Status::Failed,
            0 if self.in_flight > 0 => Status::Blocked(Blocked::default()),
            _ if self.in_flight > 0 && self.on.queue.is_full() => {
                Status::Blocked(Blocked::default())
            }
            _ => Status::Idle,
        }
    }
}
