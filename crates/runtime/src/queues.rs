//! A worker's record of its queues.

use std::collections::HashMap;
use std::time::Instant;

use crate::id::{ClassId, QueueId};
use crate::migration::Departing;
use crate::pipeline::{Attached, Pipeline};
use crate::poll::PollingPolicy;

/// How a worker watches a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// By polling it in every round.
    Polled {
        /// When something was last found.
        found: Instant,
    },
    /// By its peer's signal.
    Armed,
    /// Not at all: it has failed.
    Off,
}

/// One queue.
pub(crate) struct Queue {
    pub id: QueueId,
    pub class: ClassId,
    pub policy: Option<PollingPolicy>,
    pub watch: Watch,
}

/// A worker's queues, by the slot that the pipeline gave them.
pub(crate) struct Queues<P: Pipeline> {
    slots: Vec<Option<Queue>>,
    by_id: HashMap<QueueId, usize>,
    /// Queues that are about to leave.
    pub departing: Vec<Departing<P>>,
}

impl<P: Pipeline> Default for Queues<P> {
    fn default() -> Self {
        Queues { slots: Vec::new(), by_id: HashMap::new(), departing: Vec::new() }
    }
}

impl<P: Pipeline> Queues<P> {
    /// Adds a queue that the pipeline has taken.
    pub fn insert(&mut self, id: QueueId, attached: Attached, now: Instant) {
        let Attached { slot, class, policy, failed } = attached;
        let watch = if failed { Watch::Off } else { Watch::Polled { found: now } };
        self.slots.resize_with(self.slots.len().max(slot + 1), || None);
        self.slots[slot] = Some(Queue { id, class, policy, watch });
        self.by_id.insert(id, slot);
    }

    /// Removes the queue in `slot`.
    pub fn remove(&mut self, slot: usize) {
        if let Some(queue) = self.slots.get_mut(slot).and_then(Option::take) {
            self.by_id.remove(&queue.id);
        }
    }

    /// The queue in `slot`.
    pub fn get(&self, slot: usize) -> Option<&Queue> {
        self.slots.get(slot)?.as_ref()
    }

    /// The queue in `slot`.
    #[inline]
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Queue> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// The slot of a queue.
    pub fn find(&self, id: QueueId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }
}
