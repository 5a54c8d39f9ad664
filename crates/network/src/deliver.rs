//! Step 3 of a burst: frames into their receivers' rings.
//!
//! [`FramePipeline::output`] finds out which of a receiver's queues each frame goes to, and
//! [`FramePipeline::enqueue`] puts those for one queue of this worker on its ring. If a frame
//! cannot go on now, the result is [`Blocked`]: the frame and all frames behind it stay in their
//! sender's ring.

use std::ops::Range;
use std::sync::Arc;

use frame::TagEdit;
use ring::GrantCopyBatch;
use ring::device::Put;
use runtime::coalescing::InterruptCoalescer;
use switch::Target;

use crate::action::Action;
use crate::burst::Frame;
use crate::cost::{FLOODED, cost};
use crate::count::DropReason;
use crate::egress::Egress;
use crate::outcome::{Outcome, taken};
use crate::pipeline::{Blocked, FramePipeline};
use crate::port::QueueError;
use crate::route::Route;
use crate::run::Run;
use crate::sharing::Sharing;
use crate::slot::Slot;
use crate::software_offload::software_offload;
use crate::wait::Wait;

/// Where a frame goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextHop {
    pub egress: Egress,
    /// The frame exceeds the port's MTU.
    pub over_mtu: bool,
}

impl FramePipeline {
    /// Sends frames for one port, grouping consecutive frames that go to the same queue.
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
                self.drop_sent(src, i..frames.end, DropReason::PortDown);
                return None;
            };
            route.use_it();
            let hop = known.take().unwrap_or_else(|| self.next_hop(route, i));
            let mut end = if route.is_simple() { frames.end } else { i + 1 };
            // Rebalancing frames wait together, but may go to different queues afterwards.
            while end < frames.end && hop.egress != Egress::Rebalancing {
                // Each frame is looked up exactly once, because the lookup also charges its flow.
                let other = self.next_hop(route, end);
                if other != hop {
                    known = Some(other);
                    break;
                }
                end += 1;
            }
            let blocked = self.output_to(src, i..end, target, hop);
            if let Some(Blocked { at, .. }) = blocked {
                self.refund(at..end + usize::from(known.is_some()), target);
                return blocked;
            }
            i = end;
        }
        None
    }

    /// Sends frames that go the same way.
    #[inline]
    pub(crate) fn output_to(
        &mut self,
        src: usize,
        frames: Range<usize>,
        target: Target,
        hop: NextHop,
    ) -> Option<Blocked> {
        match hop {
            NextHop { egress: Egress::Local(slot), over_mtu: false } => {
                self.enqueue(src, slot, frames, target.tag)
            }
            other => self.output_elsewhere(src, frames, target, other),
        }
    }

    /// Sends frames that do not go to a queue of this worker, or not yet, or are too long.
    fn output_elsewhere(
        &mut self,
        src: usize,
        frames: Range<usize>,
        target: Target,
        hop: NextHop,
    ) -> Option<Blocked> {
        let egress = match hop.egress {
            Egress::Rebalancing => self.poll_rebalance(frames.start, target),
            known => known,
        };
        match egress {
            Egress::Local(slot) if hop.over_mtu => {
                self.drop_at(slot, DropReason::OverMtu, frames.len());
                self.capture_lost(slot, frames.clone(), target.tag, DropReason::OverMtu);
                self.report_too_big(src, frames.start, target.port);
                None
            }
            Egress::Remote(_) if hop.over_mtu => {
                self.drop_sent(src, frames.clone(), DropReason::OverMtu);
                self.report_too_big(src, frames.start, target.port);
                None
            }
            Egress::Local(slot) => self.enqueue(src, slot, frames, target.tag),
            Egress::Remote(location) => self
                .hand_off(src, frames, location, target)
                .map(|at| Blocked { at, wait: Wait::InFlight }),
            Egress::Unreachable => {
                self.drop_sent(src, frames, DropReason::PortDown);
                None
            }
            Egress::Moving | Egress::Rebalancing => Some(self.wait_for_migration(frames.start)),
        }
    }

    /// Where frame `i` goes on a route. Its flow is charged for it.
    #[inline]
    fn next_hop(&self, route: &Route, i: usize) -> NextHop {
        let frame = self.burst.frame(i);
        let (egress, charged) = route.egress(&self.burst, i);
        if let Some(charged) = charged {
            charged.set(charged.get() + cost(1, frame.len.into()));
        }
        NextHop { egress: *egress, over_mtu: route.over_mtu(frame) }
    }

    /// Puts frames of the burst on the ring in slot `dst`, or drops and counts them there, up to
    /// one that has to wait.
    #[inline(always)]
    pub(crate) fn enqueue(
        &mut self,
        src: usize,
        dst: usize,
        frames: Range<usize>,
        tag: TagEdit,
    ) -> Option<Blocked> {
        let (mut i, end) = (frames.start, frames.end);
        loop {
            let left = self.burst.frames().len() - i;
            let slot = self.slots.get_mut(dst)?;
            if slot.open(left, self.profiler.is_on()) {
                self.receivers.dirty.push(dst);
            }
            self.receivers.grant_copies.set_ends(src as u32, dst as u32);
            let before = slot.receiving.passed.total();
            let (burst, origin) = (&self.burst, self.receivers.origin);
            let run = Run { burst, i, end, tag, origin, now: self.clock.now };
            let full = slot.receive_tapped(run, &mut self.receivers.grant_copies, &mut self.taps);
            let added = std::mem::take(&mut slot.receiving.added);
            self.service.cost += added;
            self.service.added += added;
            self.profiler.note_received(slot, &self.burst, i..full.unwrap_or(end));
            self.receivers.note_passed(dst, (slot.receiving.passed.total() - before) as usize);
            self.measure_receiver(dst);
            let full = full?;
            match self.wait_for_room(src, dst, full) {
                Ok(until) => {
                    return Some(Blocked { at: full, wait: Wait::Receiver { slot: dst, until } });
                }
                Err(reason) => self.capture_lost(dst, full..full + 1, tag, reason),
            }
            i = full + 1;
        }
    }

    /// Sends a copy of frame `i` to each of several ports. No receiver is waited for: one full
    /// receiver must not hold up the rest. Ports without a peer get no copy, and no drop is counted
    /// for them: otherwise each idle port would add drops.
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
        if let Some(frame) = self.burst.frame_mut(i) {
            frame.sharing = Sharing::Flood;
        }
        let mut reached: u64 = 0;
        for &target in targets.iter() {
            if !self.routes.to(target.port).is_some_and(Route::is_reachable) {
                continue;
            }
            reached += 1;
            if self.output(src, i..i + 1, target).is_some() {
                self.drop_at(src, DropReason::HandoffFull, 1);
            }
        }
        if reached == 0 {
            if let Some(frame) = self.burst.frame_mut(i) {
                frame.action = Action::Drop(DropReason::NoReceiver);
            }
            self.drop_at(src, DropReason::NoReceiver, 1);
        }
        self.charge_copies(src, i, reached.saturating_sub(1));
        self.charge_more(reached * FLOODED);
        None
    }

    /// Counts copies of frame `i`, and charges them to its sender.
    pub(crate) fn charge_copies(&mut self, src: usize, i: usize, copies: u64) {
        if let Some(slot) = self.slots.get(src) {
            slot.on.counters.copies.add(copies);
        }
        self.charge_more(copies * self.burst.frames().get(i).map_or(0, Frame::cost));
    }

    /// Charges the burst's sender for cost that was not known when the burst was fetched.
    fn charge_more(&mut self, cost: u64) {
        self.service.cost += cost;
        self.service.added += cost;
    }

    /// Drops a frame for which there is no receiver.
    #[cold]
    pub(crate) fn discard(&mut self, src: usize, reason: DropReason) -> Option<Blocked> {
        self.drop_at(src, reason, 1);
        None
    }

    /// Counts frames as dropped at the queue in `slot`.
    pub(crate) fn drop_at(&mut self, slot: usize, reason: DropReason, frames: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.on.counters.lose(reason, frames as u64);
        }
    }
}

impl Slot {
    /// Puts frames on the ring, or drops and counts them, up to one for which there is no room.
    pub(crate) fn receive(
        &mut self,
        mut run: Run<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Option<usize> {
        if self.is_filtered() {
            return self.receive_filtered(run, grant_copies);
        }
        if self.is_rx_limited() {
            return self.receive_limited(run, grant_copies);
        }
        while run.i < run.end {
            if !self.is_healthy() {
                self.on.counters.lose(DropReason::PortDown, (run.end - run.i) as u64);
                return None;
            }
            if self.receiving.debt.is_due() {
                run.i += self.pay_off(run.burst.frames().range(run.i..run.end), run.now);
                continue;
            }
            let outcome = match self.passthrough(&run) {
                0 => software_offload(self, &run, grant_copies),
                frames => {
                    let (whole, may_pass) = (run.i..run.i + frames, self.may_pass());
                    let (done, put) =
                        self.on.pair.put_run(run.burst, whole, may_pass, grant_copies);
                    self.count_run(&run, done);
                    run.i += done;
                    if put == Ok(Put::Done) {
                        continue;
                    }
                    put.map(|put| taken(self, put, run.len(), &run))
                }
            };
            if self.account(outcome) {
                return Some(run.i);
            }
            run.i += 1;
        }
        None
    }

    /// How many frames, from the first on, can go to the receiver as they are.
    fn passthrough(&self, run: &Run<'_>) -> usize {
        if run.tag != TagEdit::Keep {
            return 0;
        }
        if !run.burst.has_offloads() {
            return run.end - run.i;
        }
        let accepts = self.on.pair.accepts();
        let frames = run.burst.frames().range(run.i..run.end);
        frames.iter().take_while(|frame| accepts.takes(&frame.offload)).count()
    }

    /// Counts the outcome of one frame. True: there is no room for it.
    fn account(&mut self, outcome: Result<Outcome, QueueError>) -> bool {
        match outcome {
            Ok(Outcome::Out(_)) => {}
            Ok(Outcome::Refused(reason)) => self.on.counters.lose(reason, 1),
            Ok(Outcome::Full) => {
                self.receiving.coalescer.iter_mut().for_each(InterruptCoalescer::full);
                return true;
            }
            Err(error) => {
                self.on.counters.lose(DropReason::PortDown, 1);
                self.fail(error);
            }
        }
        false
    }

    /// Counts the first `frames` frames of a run, which the receiver took as they are.
    #[inline]
    fn count_run(&mut self, run: &Run<'_>, frames: usize) {
        if frames > 0 {
            let bytes = run.burst.bytes_of(run.i..run.i + frames);
            self.receiving.passed.took(frames as u32, bytes as u32);
            self.count_received(frames as u32, bytes as u32, run.now);
        }
    }

    /// A frame of `len` bytes that the receiver took could not be copied: it is invalidated, and
    /// counted as lost.
    pub(crate) fn invalidate(&mut self, token: u32, len: u32) {
        self.receiving.passed.discount(token);
        self.on.counters.rx.frames.subtract(1);
        self.on.counters.rx.bytes.subtract(len.into());
        self.on.counters.lose(DropReason::NotGranted, 1);
        if self.is_healthy() {
            self.on.pair.invalidate(token);
        }
    }
}
