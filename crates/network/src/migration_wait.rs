//! Frames that wait because their egress is about to change: their flow changes queues
//! ([`crate::indirection_table`]), or their queue changes workers ([`runtime::migration`]).

use std::ops::Range;

use switch::Target;

use crate::cost::cost;
use crate::egress::Egress;
use crate::handoff::{RingAnswer, RingProbe};
use crate::indirection_table::{OldRing, Progress, WAIT_INTERVAL};
use crate::pipeline::{Blocked, FramePipeline};
use crate::route::Route;
use crate::slot::Slot;
use crate::wait::Wait;

impl FramePipeline {
    /// The egress of a frame whose flow changes queues.
    #[cold]
    pub(crate) fn poll_rebalance(&mut self, i: usize, target: Target) -> Egress {
        let waits = self.burst.frames()[i].sharing.waits();
        let Some(table) = self.routes.table(target.port) else { return Egress::Unreachable };
        let old = table.old_egress();
        if !waits {
            table.cancel();
            return self.egress_now(i, target);
        }
        // Other senders may have flows in the same bucket, and their frames must arrive as well.
        // Only frames of the backlog can be in flight to a queue of this worker: others that were
        // in flight when the queue came here were waited for then.
        let handoff = &self.handoff;
        let (queue, ring) = match old {
            Egress::Remote(location) => (Some(location.queue), OldRing::Foreign),
            Egress::Local(at) => {
                let slot = self.slots.get(at);
                (slot.map(|slot| slot.on.id), own_ring(slot))
            }
            Egress::Unreachable | Egress::Moving | Egress::Rebalancing => (None, own_ring(None)),
        };
        let has_arrived = |sent| queue.is_none_or(|queue| handoff.has_arrived(queue, sent));
        let handoff = Progress { position: handoff.sent(), is_past: has_arrived };
        let now = self.clock.now;
        if table.poll_rebalance(now, handoff, ring) {
            return self.egress_now(i, target);
        }
        if let Egress::Remote(location) = old {
            let probe = |mark| RingProbe { port: target.port, mark, answer: RingAnswer::default() };
            table.probe(now, |mark| self.handoff.probe(location, probe(mark)));
        }
        Egress::Rebalancing
    }

    fn egress_now(&self, i: usize, target: Target) -> Egress {
        self.routes
            .to(target.port)
            .map_or(Egress::Unreachable, |route| *route.egress(&self.burst, i).0)
    }

    /// Whether one of these targets is a queue that is on its way to another worker.
    #[cold]
    pub(crate) fn meets_migration(&self, i: usize, targets: &[Target]) -> bool {
        let egress = |route: &Route| *route.egress(&self.burst, i).0;
        targets.iter().any(|target| {
            self.routes.to(target.port).is_some_and(|route| egress(route) == Egress::Moving)
        })
    }

    /// Refunds the charge of frames to their flows, because the frames will be fetched again.
    #[cold]
    pub(crate) fn refund(&self, frames: Range<usize>, target: Target) {
        let Some(route) = self.routes.to(target.port).filter(|route| !route.is_simple()) else {
            return;
        };
        for i in frames {
            if let (_, Some(charged)) = route.egress(&self.burst, i) {
                let len = self.burst.frames()[i].len;
                charged.set(charged.get().saturating_sub(cost(1, len.into())));
            }
        }
    }

    #[cold]
    pub(crate) fn wait_for_migration(&self, at: usize) -> Blocked {
        Blocked { at, wait: Wait::Until(self.clock.now + WAIT_INTERVAL) }
    }
}

/// The progress of a ring that this worker fills. Frames for a pair that is gone wait for nothing.
fn own_ring(slot: Option<&Slot>) -> OldRing<impl FnOnce(u32) -> bool> {
    let ring = slot.and_then(Slot::rx_progress);
    OldRing::Own(Progress {
        position: ring.map_or(0, |ring| ring.position()),
        is_past: move |mark| ring.is_none_or(|ring| ring.has_consumed(mark)),
    })
}
