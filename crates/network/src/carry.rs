//! The way of a burst, the heart of the datapath: fetch, classify, deliver, complete.
//!
//! Each step is a function of its own, called once a burst and never inlined: so that instructions
//! can be counted step by step.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use frame::TagEdit;
use switch::Target;

use crate::burst::BURST;
use crate::count::DropReason;
use crate::drr::{MISS, cost};
use crate::flowcache::{Action, FlowKey};
use crate::loan::Origin;
use crate::put::{Delivery, Held, deliver_to};
use crate::route::{Egress, Route};
use crate::slot::{Slot, Wait, Watch};
use crate::stage_profiler::Step;
use crate::topology::QueueLocation;
use crate::worker::Worker;

/// What became of frames on one way.
pub(crate) enum Sent {
    /// All are delivered, dropped and counted, or on their way to another worker.
    Off,
    /// The frame `at` must wait, and all behind it with it.
    Held { at: usize, wait: Wait },
}

impl Worker {
    /// Carries one burst from the queue in slot `src` all the way. False when there was nothing to
    /// carry, or nothing could move.
    #[inline(never)]
    pub(crate) fn carry(&mut self, src: usize) -> bool {
        let fetched = self.fetch(src);
        let fetched = self.cut(src, fetched);
        if fetched == 0 {
            self.let_rest(src);
            let moved = self.count_direct(src);
            self.profiler.mark(Step::Look);
            return moved;
        }
        self.profiler.fetched(&mut self.burst.heads_watch);
        self.classify(src);
        self.profiler.mark(Step::Classify);
        let finished = self.deliver(src);
        self.frames += finished as u64;
        if let (Some(since), Some(slot)) = (self.profiler.since(), self.slots.get(src)) {
            slot.on.counters.charged.sent.note(since, self.burst.flows(0..finished));
        }
        self.complete(src, finished);
        if self.profiler.is_on() {
            self.profiler.mark(Step::Publish);
            self.profiler.charge();
        }
        finished > 0
    }

    /// Step 1: the frames that the guest has published, each copied once as far as anything will
    /// look at it.
    #[inline(never)]
    fn fetch(&mut self, src: usize) -> usize {
        if self.must_wait(src) {
            return 0;
        }
        let Some(slot) = self.slots.get_mut(src) else { return 0 };
        if !slot.may_start() {
            return 0;
        }
        self.burst.reset(slot.ration.room.unwrap_or(slot.ration.usual).min(slot.span));
        if let Err(error) = slot.on.pair.fetch(&mut self.burst) {
            slot.fail(error);
            return 0;
        }
        self.burst.frames().len()
    }

    /// Nothing came: perhaps because the sender has used up its rate.
    fn let_rest(&mut self, src: usize) {
        let Some(slot) =
            self.slots.get_mut(src).filter(|slot| slot.is_healthy() && slot.wait.is_none())
        else {
            return;
        };
        slot.wait = slot
            .on
            .pair
            .rate_limit()
            .and_then(|limit| limit.limited_until())
            .filter(|until| *until > self.now)
            .map(|until| Wait::Rest { until });
    }

    /// Nothing was fetched: perhaps because a device has put frames on the queue's Rx ring itself.
    /// Then they are published.
    fn count_direct(&mut self, src: usize) -> bool {
        let Some(slot) = self.slots.get_mut(src) else { return false };
        let Some(device) = slot.on.pair.device_queue() else { return false };
        let direct = device.take_received();
        if direct.frames == 0 {
            return false;
        }
        slot.on.counters.direct_frames.add(direct.frames);
        slot.on.counters.direct_bytes.add(direct.bytes);
        if self.profiler.is_on() {
            self.profiler.fetched(&mut self.burst.heads_watch);
            self.profiler.received(&slot.on.counters, direct.frames, direct.bytes);
        }
        if slot.is_healthy() {
            slot.dirty = true;
            self.held.add(src, slot.flush(self.now));
        }
        if self.profiler.is_on() {
            self.profiler.mark(Step::Publish);
            self.profiler.charge();
        }
        true
    }

    /// Whether the next frame would only find its receiver as full as before, or its sender has to
    /// rest.
    fn must_wait(&mut self, src: usize) -> bool {
        let wait = self.slots.get(src).and_then(|slot| slot.wait);
        if let Some(Wait::Rest { until }) = wait {
            if self.now < until {
                return true;
            }
            if let Some(slot) = self.slots.get_mut(src) {
                slot.wait = None;
            }
        }
        let Some(Wait::Receiver { slot, until }) = wait else { return false };
        let Some(receiver) = self.slots.get_mut(slot).filter(|receiver| receiver.is_healthy())
        else {
            return false;
        };
        match receiver.on.pair.room() {
            Ok(0) => self.now < until,
            Ok(room) => {
                if let Some(sender) = self.slots.get_mut(src) {
                    sender.ration.room = Some(room.clamp(1, BURST));
                }
                false
            }
            Err(error) => {
                receiver.fail(error);
                false
            }
        }
    }

    /// Step 2: what happens to each frame, out of the flow cache, or else by asking the switch.
    #[inline(never)]
    fn classify(&mut self, src: usize) {
        let Some(port) = self.slots.get(src).map(|slot| slot.on.port) else { return };
        let (mut hits, mut misses) = (0, 0);
        // Most frames go where the one before them went.
        let mut last: Option<(FlowKey, Action)> = None;
        for frame in self.burst.frames_mut() {
            if !matches!(frame.action, Action::Unclassified) {
                continue;
            }
            let key = FlowKey::new(port, &frame.headers);
            match &last {
                Some((known, action)) if *known == key => {
                    frame.action = action.clone();
                    hits += 1;
                    continue;
                }
                _ => {}
            }
            match self.cache.get(key, self.seconds) {
                Some(hit) if !hit.touch => {
                    frame.action = hit.action.clone();
                    hits += 1;
                }
                _ => {
                    let verdict = self.shared.ask(self.seconds, port, &frame.headers);
                    frame.action = verdict.decision.into();
                    self.cache.insert(key, verdict.stamp, frame.action.clone(), self.seconds);
                    misses += 1;
                }
            }
            last = Some((key, frame.action.clone()));
        }
        self.counters.cache_hits.add(hits);
        self.counters.cache_misses.add(misses);
        self.service.cost += misses * MISS;
    }

    /// Step 3: each frame into its receivers' buffers. Returns how many are finished; the next one
    /// has to wait.
    #[inline(never)]
    fn deliver(&mut self, src: usize) -> usize {
        if let Some(slot) = self.slots.get(src) {
            self.origin = Origin::Burst { sender: slot.on.id, ticket: slot.tickets.next() };
        }
        self.lent = 0;
        let mut i = 0;
        while i < self.burst.frames().len() {
            let (end, sent) = self.send(src, i);
            if let Sent::Held { at, wait } = sent {
                if let Some(slot) = self.slots.get_mut(src) {
                    slot.wait = Some(wait);
                    slot.on.counters.blocked.add(1);
                }
                return at;
            }
            i = end;
            if self.service.cost >= self.service.allowance && self.stops_short(src, i) {
                return i;
            }
        }
        i
    }

    /// Step 4: receivers and sender learn what happened, once each.
    #[inline(never)]
    fn complete(&mut self, src: usize, finished: usize) {
        let unfinished = self.burst.frames().len() - finished;
        let parcels = self.dispatch();
        let guilty = self.flush();
        if unfinished > 0 {
            self.burst.truncate(finished);
            self.service.bytes = self.burst.bytes();
            self.service.more = false;
        }
        let bytes = self.service.bytes;
        self.service.cost += cost(finished, bytes);
        // From here on nothing points into the sender's memory any more.
        self.burst.reset(BURST);
        let Some(slot) = self.slots.get_mut(src) else { return };
        if let Some(error) = guilty {
            slot.fail(error);
        }
        if finished > 0 {
            slot.on.counters.tx_frames.add(finished as u64);
            slot.on.counters.tx_bytes.add(bytes);
            slot.on.counters.tx_bursts.add(1);
        }
        if !slot.is_healthy() {
            return;
        }
        slot.ration.carried(unfinished == 0);
        slot.on.pair.rewind(unfinished);
        let complete = slot.tickets.push(finished, parcels + self.lent);
        slot.on.pair.complete(complete);
        slot.dirty = true;
        self.held.add(src, slot.flush(self.now));
    }

    /// Sends frame `i` of the burst to wherever its action says, and with it all behind it that go
    /// the same way. Returns the first that does not.
    #[inline]
    fn send(&mut self, src: usize, i: usize) -> (usize, Sent) {
        match &self.burst.frames()[i].action {
            Action::To(target) => {
                let target = *target;
                let end = self.burst.run(i, target);
                (end, self.send_to(src, i..end, target))
            }
            Action::Flood(targets) => {
                let targets = Arc::clone(targets);
                if self.routes.moving && self.meets_a_mover(i, &targets) {
                    return (i, self.wait_for_migration(i));
                }
                self.flood(src, i, &targets);
                (i + 1, Sent::Off)
            }
            Action::Drop(reason) => (i + 1, self.drop_at(src, *reason, 1)),
            Action::Unclassified => (i + 1, self.drop_at(src, DropReason::NoReceiver, 1)),
        }
    }

    /// A copy to each of several ports. Nobody waits for any of them: one full receiver must not
    /// hold up the rest.
    fn flood(&mut self, src: usize, i: usize, targets: &[Target]) {
        if let Some(frame) = self.burst.frames_mut().get_mut(i) {
            frame.may_pass = false;
        }
        for &target in targets {
            match self.send_to(src, i..i + 1, target) {
                Sent::Held { wait: Wait::Receiver { slot, .. }, .. } => {
                    self.drop_at(slot, DropReason::RxFull, 1);
                }
                Sent::Held { .. } => {
                    self.drop_at(src, DropReason::HandoffFull, 1);
                }
                Sent::Off => {}
            }
        }
        if let Some(slot) = self.slots.get(src) {
            slot.on.counters.copies.add(targets.len().saturating_sub(1) as u64);
        }
        let len = self.burst.frames().get(i).map_or(0, |frame| frame.len);
        self.service.cost += targets.len().saturating_sub(1) as u64 * cost(1, len.into());
    }

    /// Sends frames for one port, those together that go to the same of its queues.
    #[inline]
    fn send_to(&mut self, src: usize, run: Range<usize>, target: Target) -> Sent {
        let (mut i, mut known) = (run.start, None);
        while i < run.end {
            let Some(route) = self.routes.to(target.port) else {
                return self.drop_at(src, DropReason::PortDown, run.end - i);
            };
            route.use_it();
            let way = known.take().unwrap_or_else(|| self.way(route, i));
            let mut end = if route.is_simple() { run.end } else { i + 1 };
            while end < run.end {
                // Each frame is asked for once: then its flow is charged for it, too.
                let other = self.way(route, end);
                if other != way {
                    known = Some(other);
                    break;
                }
                end += 1;
            }
            let sent = self.send_along(src, i..end, target, way);
            if let Sent::Held { at, .. } = sent {
                self.refund(at..end + usize::from(known.is_some()), target);
                return sent;
            }
            i = end;
        }
        Sent::Off
    }

    /// Sends frames for one port on one way; or, if the second is true, they are too long for that.
    #[inline]
    fn send_along(
        &mut self,
        src: usize,
        run: Range<usize>,
        target: Target,
        way: (Egress, bool),
    ) -> Sent {
        let way =
            if way.0 == Egress::Turning { (self.turn_way(run.start, target), way.1) } else { way };
        match way {
            (Egress::Local(slot), true) => self.drop_at(slot, DropReason::OverMtu, run.len()),
            (Egress::Remote(_), true) => self.drop_at(src, DropReason::OverMtu, run.len()),
            (Egress::Local(slot), false) => self.send_local(slot, run, target.tag),
            (Egress::Remote(location), false) => self.send_across(src, run, location, target),
            (Egress::Unreachable, _) => self.drop_at(src, DropReason::PortDown, run.len()),
            (Egress::Moving | Egress::Turning, _) => self.wait_for_migration(run.start),
        }
    }

    /// Where frame `i` goes on a route, and whether it is too long for that. Its flow is charged
    /// for it.
    #[inline]
    fn way(&self, route: &Route, i: usize) -> (Egress, bool) {
        let frame = &self.burst.frames()[i];
        let (way, charged) = self.look_up(route, i);
        if let Some(charged) = charged {
            charged.set(charged.get() + cost(1, frame.len.into()));
        }
        (way, route.over_mtu(frame))
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

    #[inline]
    fn send_local(&mut self, dst: usize, run: Range<usize>, tag: TagEdit) -> Sent {
        let left = self.burst.frames().len() - run.start;
        let Some(slot) = self.slots.get_mut(dst) else { return Sent::Off };
        if slot.open(left, self.profiler.is_on()) {
            self.dirty.push(dst);
        }
        self.grant_copies.set_receiver(dst as u32);
        let (origin, now, before) = (self.origin, self.now, slot.loans.made());
        let delivery =
            Delivery { burst: &self.burst, i: run.start, end: run.end, tag, origin, now };
        let held = deliver_to(slot, delivery, &mut self.grant_copies);
        if let Some(since) = self.profiler.since() {
            let end = held.as_ref().map_or(run.end, |held| held.at);
            slot.on.counters.charged.received.note(since, self.burst.flows(run.start..end));
        }
        let lent = (slot.loans.made() - before) as usize;
        if lent > 0 {
            self.lent += lent;
            self.note_debtor(dst);
        }
        match held {
            Some(Held { at, until }) => {
                Sent::Held { at, wait: Wait::Receiver { slot: dst, until } }
            }
            None => Sent::Off,
        }
    }

    fn send_across(
        &mut self,
        src: usize,
        run: Range<usize>,
        location: QueueLocation,
        target: Target,
    ) -> Sent {
        let Some(slot) = self.slots.get(src) else { return Sent::Off };
        let (sender, ticket) = (slot.on.id, slot.tickets.next());
        for at in run {
            let parcel = self.crossing.parcel(location, sender, ticket);
            if !parcel.is_some_and(|parcel| parcel.burst.adopt(&self.burst, at, Action::To(target)))
            {
                return Sent::Held { at, wait: Wait::Parcels };
            }
        }
        Sent::Off
    }

    /// Counts frames as dropped at the queue in `slot`.
    fn drop_at(&mut self, slot: usize, reason: DropReason, frames: usize) -> Sent {
        if let Some(slot) = self.slots.get(slot) {
            slot.on.counters.lose(reason, frames as u64);
        }
        Sent::Off
    }

    /// Sends the parcels of this burst on their way.
    fn dispatch(&mut self) -> usize {
        if self.profiler.is_on() {
            self.profiler.mark(Step::Deliver);
            let all = self.burst.frames().len();
            self.crossing.open().for_each(|parcel| {
                parcel.spent = self.profiler.give(parcel.burst.frames().len(), all)
            });
        }
        let (counters, doorbells) = (&self.counters, &self.shared.doorbells);
        self.crossing.dispatch(|worker, frames| {
            counters.handoff_batches.add(1);
            counters.handed_off.add(frames as u64);
            doorbells[worker].ring();
        })
    }
}

impl Slot {
    /// Whether a burst may be fetched now.
    fn may_start(&mut self) -> bool {
        if self.settle && self.tickets.is_empty() {
            self.settle = false;
        }
        matches!(self.watch, Watch::Polled { .. })
            && self.leaving.is_none()
            && !self.settle
            && self.tickets.has_room()
    }
}
