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

/// Rounds that find work in an unmasked queue, since the queue was last armed, after which its
/// descriptors are not watched any more. The signals of so many rounds have cost the peer about
/// as much as it costs to stop watching and to watch again.
const BUSY_ROUNDS: u32 = 32;

/// Whether a queue's descriptors are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptors {
    /// Always: the peer signals only a queue that is armed.
    Masked,
    /// They are watched, and the peer signals all work. So many rounds have found work since the
    /// queue was last armed.
    Unmasked(u32),
    /// Not while the queue is busy: the peer would signal all work, and each signal costs it time
    /// as long as anybody waits for one.
    Unwatched,
}

impl Descriptors {
    /// Those of a queue whose descriptors have just been watched.
    pub fn watched(unmasked: bool) -> Self {
        if unmasked { Descriptors::Unmasked(0) } else { Descriptors::Masked }
    }

    /// Notes a round that found work. True: it is time to stop watching.
    #[inline]
    pub fn found_work(&mut self) -> bool {
        let Descriptors::Unmasked(rounds) = self else { return false };
        *rounds += 1;
        *rounds >= BUSY_ROUNDS
    }
}

/// One queue.
pub(crate) struct Queue {
    pub id: QueueId,
    pub class: ClassId,
    pub policy: Option<PollingPolicy>,
    pub watch: Watch,
    pub descriptors: Descriptors,
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
        // The worker watches them next.
        let descriptors = Descriptors::Unwatched;
        self.slots[slot] = Some(Queue { id, class, policy, watch, descriptors });
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
