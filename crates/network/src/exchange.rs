//! Hand-off of frames: into batches for other workers, own batches that come back, and delivery of
//! those that come in.

use std::ops::Range;

use switch::Target;

use crate::action::Action;
use crate::backpressure::Waiting;
use crate::burst::Burst;
use crate::count::DropReason;
use crate::handoff::{HandoffBatch, RingAnswer};
use crate::passed_grants::Origin;
use crate::pipeline::FramePipeline;
use crate::run::Run;
use crate::service::QUANTUM;
use crate::sharing::Sharing;
use crate::slot::Slot;
use crate::topology::{QueueId, QueueLocation};
use crate::wait::Wait;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The receiver is full, and the rest of the frames may still wait.
    Partly,
    /// All frames are published, or dropped.
    Whole,
    /// The same, except that the copies of these frames wait.
    Merged,
}

impl Delivered {
    /// Whether no frame has to wait for room.
    pub(crate) fn is_whole(self) -> bool {
        self != Delivered::Partly
    }
}

impl FramePipeline {
    /// Adds frames of the present burst to a batch for a queue of another worker. Returns the
    /// first for which there is no batch.
    pub(crate) fn hand_off(
        &mut self,
        src: usize,
        frames: Range<usize>,
        location: QueueLocation,
        target: Target,
    ) -> Option<usize> {
        let slot = self.slots.get(src)?;
        let (port, sender, burst) = (slot.on.port, slot.on.id, slot.sending.in_flight.next());
        for at in frames {
            let action = Action::Output(target);
            let added = match self.handoff.batch_for(location, port, sender, burst) {
                Some(batch) => batch.burst.adopt(&self.burst, at, action),
                None => false,
            };
            if !added {
                return Some(at);
            }
        }
        None
    }

    /// Sends the batches of the present burst. Returns how many there were.
    #[inline]
    pub(crate) fn send_batches(&mut self) -> usize {
        if self.handoff.is_empty() {
            return 0;
        }
        let counters = &self.counters;
        self.handoff.send_open(|frames| {
            counters.handoff_batches.add(1);
            counters.handed_off.add(frames as u64);
        })
    }

    /// Takes own batches that have come back, and delivers those of other workers.
    #[inline]
    pub(crate) fn exchange(&mut self) -> bool {
        let mut moved = self.deliver_backlog();
        for worker in 0..self.handoff.workers() {
            moved |= self.take_back(worker);
            moved |= self.deliver_batches(worker);
        }
        self.publish_merged();
        moved
    }

    /// Own batches that have come back: their frames are complete.
    #[inline]
    fn take_back(&mut self, worker: usize) -> bool {
        let mut moved = false;
        while let Some(batch) = self.handoff.returned(worker) {
            moved = true;
            if let Some(probe) = batch.probe {
                if let Some(table) = self.routes.table(probe.port) {
                    table.answered(batch.sent, probe.answer);
                }
            } else if let Some(at) = self.slots.find(batch.sender) {
                self.batch_returned(at, worker, &batch);
            }
            self.handoff.recycle(batch);
        }
        moved
    }

    /// A batch of the queue in slot `at` has come back from `worker`.
    fn batch_returned(&mut self, at: usize, worker: usize, batch: &HandoffBatch) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if worker == self.routes.own {
            slot.sending.backlog = slot.sending.backlog.saturating_sub(1);
        }
        slot.on.counters.lose(DropReason::PortDown, batch.lost);
        slot.sending.debt += batch.added;
        if batch.fault_wait > 0 {
            slot.charge_fault_wait(batch.fault_wait, self.clock.now);
        }
        if let Some(error) = batch.error {
            slot.fail(error);
        }
        self.part_returned(at, batch.burst_number);
    }

    /// Something that a burst of the queue in slot `at` waited for has come back.
    pub(crate) fn part_returned(&mut self, at: usize, burst: u64) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.sending.wait == Some(Wait::InFlight) {
            slot.sending.wait = None;
        }
        let complete = slot.sending.in_flight.returned(burst);
        if slot.is_healthy() && complete > 0 {
            slot.on.pair.complete(complete);
            self.flush(at);
        }
    }

    /// Delivers batches from another worker. In each round, about as much is delivered as a port of
    /// this worker may send.
    #[inline]
    fn deliver_batches(&mut self, worker: usize) -> bool {
        let (mut moved, mut spent) = (false, 0);
        while spent < QUANTUM
            && let Some(mut batch) = self.handoff.receive(worker)
        {
            if let Some(probe) = &mut batch.probe {
                probe.answer = self.ring_answer(batch.receiver, probe.mark);
                self.handoff.delivered(worker, batch);
                moved = true;
                continue;
            }
            let (before, added) = (batch.next, batch.added);
            spent += batch.burst.cost(batch.burst.frames().len(), batch.burst.bytes());
            let who = self.handoff.waiting(worker, &batch);
            let delivered = self
                .profile_batch(&mut batch, |pipeline, batch| pipeline.deliver_batch(who, batch));
            moved |= delivered.is_whole() || batch.next > before;
            spent += batch.added - added;
            if !delivered.is_whole() {
                self.handoff.block(worker, batch);
                break;
            }
            self.give_back(worker, batch, delivered);
        }
        moved
    }

    /// The state of the Rx ring of `queue`. Frames for a queue that is gone wait for nothing.
    #[cold]
    fn ring_answer(&self, queue: QueueId, mark: Option<u32>) -> RingAnswer {
        let slot = self.slots.find(queue).and_then(|at| self.slots.get(at));
        let ring = slot.and_then(Slot::rx_progress);
        RingAnswer {
            position: ring.map_or(0, |ring| ring.position()),
            is_past: mark.is_some_and(|mark| ring.is_none_or(|ring| ring.has_consumed(mark))),
        }
    }

    /// Delivers a batch's frames, and publishes them, unless the batch is
    /// [merged](crate::merged_burst) with others.
    pub(crate) fn deliver_batch(&mut self, who: Waiting, batch: &mut HandoffBatch) -> Delivered {
        self.measure_batch(batch);
        self.receivers.begin();
        let whole = self.enqueue_batch(who, batch);
        if let Some(at) = self.slots.find(batch.receiver)
            && let Some(slot) = self.slots.get_mut(at)
        {
            batch.added += std::mem::take(&mut slot.receiving.added);
            self.measure_receiver(at);
        }
        if whole && self.may_merge() {
            return Delivered::Merged;
        }
        batch.error = self.publish().or(batch.error);
        if whole { Delivered::Whole } else { Delivered::Partly }
    }

    /// Gives back a batch that was delivered whole, once its copies are made.
    pub(crate) fn give_back(
        &mut self,
        worker: usize,
        batch: Box<HandoffBatch>,
        delivered: Delivered,
    ) {
        if delivered == Delivered::Merged {
            self.receivers.merged_batches.push((worker, batch));
        } else {
            self.handoff.delivered(worker, batch);
        }
    }

    fn enqueue_batch(&mut self, who: Waiting, batch: &mut HandoffBatch) -> bool {
        let frames = batch.burst.frames().len();
        let Some(at) = self.slots.find(batch.receiver) else {
            batch.lost = (frames - batch.next) as u64;
            batch.next = frames;
            return true;
        };
        let Some(slot) = self.slots.get_mut(at) else { return true };
        if slot.open(frames - batch.next, self.profiler.is_on()) {
            self.receivers.dirty.push(at);
        }
        let sender = self.receivers.next_batch();
        self.receivers.grant_copies.set_ends(sender, at as u32);
        let (mut whole, before) = (true, slot.receiving.passed.total());
        while let Some((i, end, tag)) = next_run(&batch.burst, batch.next) {
            let origin = Origin::Batch(batch.number);
            let run = Run { burst: &batch.burst, i, end, tag, origin, now: self.clock.now };
            let full = slot.receive_tapped(run, &mut self.receivers.grant_copies, &mut self.taps);
            batch.next = full.unwrap_or(end);
            self.profiler.note_received(slot, &batch.burst, i..batch.next);
            if full.is_some() {
                let mirror = batch.burst.frames()[batch.next].sharing == Sharing::Mirror;
                if !mirror && slot.receiving.backpressure.full(who, self.clock.now).is_some() {
                    whole = false;
                    break;
                }
                let reason = if mirror { DropReason::MirrorFull } else { who.drop_reason() };
                slot.on.counters.lose(reason, 1);
                slot.tap_lost(&mut self.taps, &batch.burst, batch.next, tag, reason);
                batch.next += 1;
            }
        }
        let passed = (slot.receiving.passed.total() - before) as usize;
        if passed > 0 {
            batch.passed += passed;
            self.receivers.note_outstanding(at);
        }
        if whole {
            batch.next = frames;
        }
        whole
    }
}

/// The next frames of a batch, from `next` on, that are treated alike: the first, the one behind
/// the last, and what happens to their tags.
fn next_run(burst: &Burst, next: usize) -> Option<(usize, usize, frame::TagEdit)> {
    let is_output = |i: &usize| matches!(burst.frames()[*i].action, Action::Output(_));
    let i = (next..burst.frames().len()).find(is_output)?;
    let Action::Output(target) = burst.frames()[i].action else { return None };
    Some((i, burst.run(i, target), target.tag))
}
