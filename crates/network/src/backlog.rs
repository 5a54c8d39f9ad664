//! The backlog: frames that wait for a full receiver of the same worker.
//!
//! What a full receiver leaves of a burst usually stays in its sender's ring
//! ([`room_wait`](crate::room_wait)). Frames of a [reordered](crate::mixed_burst) burst cannot:
//! frames behind them in the ring have been delivered. They go to the backlog in a batch, as if
//! another worker had handed them off. Nothing more is fetched from their sender meanwhile, so no
//! frame overtakes them. Frames of the backlog wait at the receiver's expense, as others do
//! ([`backpressure`](crate::backpressure)). A hostile receiver cannot keep them there for longer
//! than its credit lasts, after which they are dropped.

use std::ops::Range;

use switch::Target;

use crate::backpressure::Waiting;
use crate::count::DropReason;
use crate::egress::Egress;
use crate::handoff::HandoffBatch;
use crate::pipeline::FramePipeline;
use crate::topology::QueueLocation;

impl FramePipeline {
    /// Puts frames of the burst of the queue in slot `src` into the backlog, since a queue of this
    /// worker has no room for them.
    #[cold]
    pub(crate) fn add_to_backlog(
        &mut self,
        src: usize,
        frames: Range<usize>,
        target: Target,
        egress: Egress,
    ) {
        let own = self.routes.own;
        let location = match egress {
            Egress::Remote(location) => Some(location),
            Egress::Local(slot) => self.slots.get(slot).map(|slot| {
                let (queue, index) = (slot.on.id, slot.on.index);
                QueueLocation { queue, index, worker: own, moving: false }
            }),
            Egress::Unreachable | Egress::Moving | Egress::Rebalancing => None,
        };
        let end = frames.end;
        let full = match location {
            Some(location) => self.hand_off(src, frames, location, target),
            None => Some(frames.start),
        };
        if let Some(full) = full {
            // There was room for a batch of each group before the burst was reordered.
            self.drop_sent(src, full..end, DropReason::HandoffFull);
        }
        if let Some(slot) = self.slots.get_mut(src) {
            slot.sending.backlog = self.handoff.opened_for(own);
            slot.on.counters.blocked.add(1);
        }
    }

    /// Delivers those frames of the backlog for which there is room by now.
    #[inline]
    pub(crate) fn deliver_backlog(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.handoff.backlog_len() {
            moved |= self.deliver_oldest();
        }
        moved
    }

    #[cold]
    fn deliver_oldest(&mut self) -> bool {
        let Some(mut batch) = self.handoff.pop_backlog() else { return false };
        let (before, who) = (batch.next, self.who_waits(&batch));
        let delivered =
            self.profile_batch(&mut batch, |pipeline, batch| pipeline.deliver_batch(who, batch));
        let moved = delivered.is_whole() || batch.next > before;
        if delivered.is_whole() {
            self.give_back(self.routes.own, batch, delivered);
        } else {
            self.handoff.push_backlog(batch);
        }
        moved
    }

    /// Who waits while a batch is in the backlog: its sender's frames, which may also be for other
    /// ports.
    fn who_waits(&self, batch: &HandoffBatch) -> Waiting {
        let sender = self.slots.find(batch.sender).and_then(|at| self.slots.get(at));
        match sender.is_some_and(|slot| slot.sending.destinations.is_sole(self.clock.now)) {
            true => Waiting::Sole,
            false => Waiting::Shared,
        }
    }
}
