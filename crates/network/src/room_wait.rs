//! Frames that wait for room at a full receiver, in their sender's ring.
//!
//! This module decides whether a frame for a full receiver waits;
//! [`backpressure`](crate::backpressure) decides for how long. A hostile receiver could be full
//! most of the time, and a hostile sender could mix frames for such a receiver with others. Neither
//! may hold up a third party. So a sender counts as one with several receivers for
//! [`SOLE_AFTER`](crate::wait::SOLE_AFTER) after it sent to another port.

use std::time::Instant;

use switch::PortId;

use crate::backpressure::Waiting;
use crate::burst::BURST;
use crate::count::DropReason;
use crate::pipeline::FramePipeline;
use crate::sharing::Sharing;
use crate::wait::Wait;

impl FramePipeline {
    /// Handles frame `at` of the burst of slot `src`, for which the receiver in slot `dst` is full.
    /// Returns until when the frame may wait, or the reason why it was dropped and counted.
    #[cold]
    pub(crate) fn wait_for_room(
        &mut self,
        src: usize,
        dst: usize,
        at: usize,
    ) -> Result<Instant, DropReason> {
        let now = self.clock.now;
        let port = self.slots.get(dst).ok_or(DropReason::PortDown)?.on.port;
        let frames = self.burst.frames();
        let rest = frames.range(at..frames.len());
        let same = rest.iter().all(|frame| frame.action.receiver() == Some(port));
        let sole = same
            && self.slots.get(src).is_some_and(|sender| sender.sending.destinations.is_sole(now));
        let sharing = rest.first().map_or(Sharing::Sole, |frame| frame.sharing);
        let slot = self.slots.get_mut(dst).ok_or(DropReason::PortDown)?;
        let who = if sole { Waiting::Sole } else { Waiting::Shared };
        let until = if sharing.waits() { slot.receiving.backpressure.full(who, now) } else { None };
        until.ok_or_else(|| {
            let reason = match sharing {
                Sharing::Sole | Sharing::Mirrored => who.drop_reason(),
                Sharing::Flood | Sharing::Answer => DropReason::RxFull,
                Sharing::Mirror => DropReason::MirrorFull,
            };
            slot.on.counters.lose(reason, 1);
            reason
        })
    }

    /// The queue in slot `src` sends to `port`; `last` is the port that it sent to before.
    #[inline]
    pub(crate) fn note_destination(&mut self, src: usize, port: PortId, last: &mut Option<PortId>) {
        if *last != Some(port) {
            *last = self.change_destination(src, port);
        }
    }

    /// The queue in slot `src` sends to `port`, and did not before.
    #[cold]
    pub(crate) fn change_destination(&mut self, src: usize, port: PortId) -> Option<PortId> {
        let now = self.clock.now;
        self.slots.get_mut(src)?.sending.destinations.change(port, now);
        Some(port)
    }

    /// Makes the next frame of the queue in slot `src` wait.
    #[cold]
    pub(crate) fn block(&mut self, src: usize, wait: Wait) {
        if let Some(slot) = self.slots.get_mut(src) {
            slot.sending.wait = Some(wait);
            slot.on.counters.blocked.add(1);
        }
    }

    /// Whether the next frame of the queue in slot `src` must still wait, because its receiver is
    /// as full as before or for another reason.
    #[inline]
    pub(crate) fn must_wait(&mut self, src: usize) -> bool {
        match self.slots.get(src).and_then(|slot| slot.sending.wait) {
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
            slot.sending.wait = None;
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
                    sender.sending.limit.room = Some(room.clamp(1, BURST));
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
