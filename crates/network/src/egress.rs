//! Which queue of its receiver a frame goes to, and on.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use switch::Target;

use crate::burst::BURST;
use crate::cost::cost;
use crate::count::DropReason;
use crate::pipeline::{Blocked, FramePipeline};
use crate::receive::Full;
use crate::route::{Egress, Route};
use crate::slot::{Slot, Wait};

impl FramePipeline {
    /// Sends frames for one port, those together that go to the same of its queues.
    #[inline]
    pub(crate) fn output(
        &mut self,
        src: usize,
        frames: Range<usize>,
        target: Target,
    ) -> Option<Blocked> {
        let (mut i, mut known) = (frames.start, None);
        while i < frames.end {
            let Some(route) = self.routes.to(target.port) else {
                self.drop_at(src, DropReason::PortDown, frames.end - i);
                return None;
            };
            route.use_it();
            let egress = known.take().unwrap_or_else(|| self.egress(route, i));
            let mut end = if route.is_simple() { frames.end } else { i + 1 };
            while end < frames.end {
                // Each frame is looked up once: then its flow is charged for it, too.
                let other = self.egress(route, end);
                if other != egress {
                    known = Some(other);
                    break;
                }
                end += 1;
            }
            let blocked = self.send(src, i..end, target, egress);
            if let Some(Blocked { at, .. }) = blocked {
                self.refund(at..end + usize::from(known.is_some()), target);
                return blocked;
            }
            i = end;
        }
        None
    }

    /// Sends frames for one port to one of its queues; or, if the second is true, they are too long
    /// for that.
    #[inline]
    fn send(
        &mut self,
        src: usize,
        frames: Range<usize>,
        target: Target,
        (egress, over_mtu): (Egress, bool),
    ) -> Option<Blocked> {
        let egress = match egress {
            Egress::Rebalancing => self.poll_rebalance(frames.start, target),
            known => known,
        };
        match egress {
            Egress::Local(slot) if over_mtu => {
                self.drop_at(slot, DropReason::OverMtu, frames.len());
                None
            }
            Egress::Remote(_) if over_mtu => {
                self.drop_at(src, DropReason::OverMtu, frames.len());
                None
            }
            Egress::Local(slot) => self
                .enqueue(slot, frames, target.tag)
                .map(|Full { at, until }| Blocked { at, wait: Wait::Receiver { slot, until } }),
            Egress::Remote(location) => self
                .hand_off(src, frames, location, target)
                .map(|at| Blocked { at, wait: Wait::InFlight }),
            Egress::Unreachable => {
                self.drop_at(src, DropReason::PortDown, frames.len());
                None
            }
            Egress::Moving | Egress::Rebalancing => Some(self.wait_for_migration(frames.start)),
        }
    }

    /// Where frame `i` goes on a route, and whether it is too long for that. Its flow is charged
    /// for it.
    #[inline]
    fn egress(&self, route: &Route, i: usize) -> (Egress, bool) {
        let frame = &self.burst.frames()[i];
        let (egress, charged) = self.look_up(route, i);
        if let Some(charged) = charged {
            charged.set(charged.get() + cost(1, frame.len.into()));
        }
        (egress, route.over_mtu(frame))
    }

    /// Where frame `i` goes on a route, and where what its flow costs is counted.
    #[inline]
    pub(crate) fn look_up<'a>(
        &self,
        route: &'a Route,
        i: usize,
    ) -> (Egress, Option<&'a Cell<u64>>) {
        let (frame, head) = (&self.burst.frames()[i], self.burst.head(i).as_slice());
        route.choose(&frame.headers, head, || frame::flow_hash(&frame.headers, head))
    }

    /// A copy of frame `i` to each of several ports. None of them is waited for: one full receiver
    /// must not hold up the rest. Ports without a peer get no copy and are no drop: an idle daemon
    /// would count drops for each of them otherwise.
    #[cold]
    pub(crate) fn flood(
        &mut self,
        src: usize,
        i: usize,
        targets: Arc<[Target]>,
    ) -> Option<Blocked> {
        if self.routes.moving && self.meets_migration(i, &targets) {
            return Some(self.wait_for_migration(i));
        }
        if let Some(frame) = self.burst.frames_mut().get_mut(i) {
            frame.may_pass = false;
        }
        let mut reached: u64 = 0;
        for &target in targets.iter() {
            if !self.routes.to(target.port).is_some_and(Route::is_reachable) {
                continue;
            }
            reached += 1;
            match self.output(src, i..i + 1, target).map(|blocked| blocked.wait) {
                Some(Wait::Receiver { slot, .. }) => self.drop_at(slot, DropReason::RxFull, 1),
                Some(_) => self.drop_at(src, DropReason::HandoffFull, 1),
                None => {}
            }
        }
        if reached == 0 {
            self.drop_at(src, DropReason::NoReceiver, 1);
        }
        let copies = reached.saturating_sub(1);
        if let Some(slot) = self.slots.get(src) {
            slot.on.counters.copies.add(copies);
        }
        let len = self.burst.frames().get(i).map_or(0, |frame| frame.len);
        self.service.cost += copies * cost(1, len.into());
        None
    }

    /// Drops a frame for which there is no receiver.
    #[cold]
    pub(crate) fn discard(&mut self, src: usize, reason: DropReason) -> Option<Blocked> {
        self.drop_at(src, reason, 1);
        None
    }

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
    fn must_wait_until(&mut self, src: usize, until: std::time::Instant) -> bool {
        if self.clock.now < until {
            return true;
        }
        if let Some(slot) = self.slots.get_mut(src) {
            slot.wait = None;
        }
        false
    }

    #[cold]
    fn must_wait_for(&mut self, src: usize, receiver: usize, until: std::time::Instant) -> bool {
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

impl Slot {
    /// Counts a burst that it sent: so many frames of it are finished.
    #[inline]
    pub(crate) fn sent(&mut self, finished: usize, bytes: u64) {
        if finished > 0 {
            self.wait = None;
            self.on.counters.tx_frames.add(finished as u64);
            self.on.counters.tx_bytes.add(bytes);
            self.on.counters.tx_bursts.add(1);
        }
    }
}
