//! Frames that wait in their sender's ring.

use std::time::Instant;

use crate::burst::BURST;
use crate::pipeline::FramePipeline;

/// Why a sender's next frame stays in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A receiver of the same worker is full.
    Receiver {
        /// The receiver's slot.
        slot: usize,
        /// When to drop rather than wait on.
        until: Instant,
    },
    /// Too much is in flight, to other workers mostly; something that comes back ends the wait.
    InFlight,
    /// The sender has used up its rate, or where its frame goes is about to change.
    Until(Instant),
}

impl FramePipeline {
    /// The next frame of the queue in slot `src` waits.
    #[cold]
    pub(crate) fn block(&mut self, src: usize, wait: Wait) {
        if let Some(slot) = self.slots.get_mut(src) {
            slot.wait = Some(wait);
            slot.on.counters.blocked.add(1);
        }
    }

    /// Whether the next frame of the queue in slot `src` would only find its receiver as full as
    /// before, or its sender has to wait for another reason.
    #[inline]
    pub(crate) fn must_wait(&mut self, src: usize) -> bool {
        match self.slots.get(src).and_then(|slot| slot.wait) {
            None | Some(Wait::InFlight) => false,
            Some(Wait::Until(until)) => self.must_wait_until(src, until),
            Some(Wait::Receiver { slot, until }) => self.must_wait_for(src, slot, until),
        }
    }

    #[cold]
    fn must_wait_until(&mut self, src: usize, until: Instant) -> bool {
        if self.clock.now < until {
            return true;
        }
        if let Some(slot) = self.slots.get_mut(src) {
            slot.wait = None;
        }
        false
    }

    #[cold]
    fn must_wait_for(&mut self, src: usize, receiver: usize, until: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(receiver).filter(|slot| slot.is_healthy()) else {
            return false;
        };
        match slot.on.pair.room() {
            Ok(0) => self.clock.now < until,
            Ok(room) => {
                if let Some(sender) = self.slots.get_mut(src) {
                    sender.limit.room = Some(room.clamp(1, BURST));
                }
                false
            }
            Err(error) => {
                slot.fail(error);
                false
            }
        }
    }
}
