//! The path of a frame through a worker: fetch, classify, deliver, complete.
//!
//! [`FramePipeline::carry`] carries one burst of one queue. Each step is a function of its own,
//! called once a burst and never inlined, so that instructions can be counted step by step. No step
//! goes back to an earlier one. Small bursts of Xen guests are completed together at the end of a
//! round ([`merged_burst`](crate::merged_burst)).
//!
//! Work that only some frames need is in modules of its own, each called from a step.
//! [`deliver`](crate::deliver) calls those for [bursts for several queues](crate::mixed_burst),
//! [`software_offload`](crate::software_offload), floods, copies for [mirrors](crate::mirror),
//! passed grants, hand-off to another worker ([`exchange`](crate::exchange)) and waits for a
//! migration. Fetch calls those for a device's own queue and rate limits. Profiles are taken by
//! guards around the steps ([`profiling`](crate::profiling)), and captures by taps beside them
//! ([`capturing`](crate::capturing)).
//!
//! A hostile sender can publish anything. So a frame's head is copied once and only the copy is
//! looked at, a burst has at most [`BURST`](crate::burst::BURST) frames, and all cost of its frames
//! is charged to the sender ([`quantum`](crate::quantum)).

use std::sync::Arc;
use std::time::Instant;

use ring::interrupt_thread::InterruptQueue;
use runtime::fault_meter::FaultMeter;
use runtime::{PendingInterrupts, Served};

use crate::action::Action;
use crate::burst::Burst;
use crate::capture::tap::Taps;
use crate::classifier::{Classified, Classifier};
use crate::cost::MISS;
use crate::count::{DropReason, WorkerCounters};
use crate::handoff::Handoff;
use crate::passed_grants::Origin;
use crate::receivers::{MergedBurst, Receivers};
use crate::route::Routes;
use crate::service::Service;
use crate::slots::Slots;
use crate::stage_profiler::StageProfiler;
use crate::step::Step;
use crate::wait::Wait;

/// The frame pipeline of one worker. Only the switch, the counters and the channels to other
/// workers are shared with other threads.
pub struct FramePipeline {
    pub(crate) slots: Slots,
    /// The present burst.
    pub(crate) burst: Burst,
    /// Cost of serving the present queue.
    pub(crate) service: Service,
    pub(crate) classifier: Classifier,
    pub(crate) routes: Routes,
    pub(crate) receivers: Receivers,
    pub(crate) handoff: Handoff,
    pub(crate) faults: FaultMeter,
    pub(crate) interrupts: PendingInterrupts,
    /// Until the worker's thread starts: its queue to the thread that sends interrupts.
    pub(crate) interrupt_queue: Option<InterruptQueue>,
    pub(crate) profiler: StageProfiler,
    pub(crate) taps: Taps,
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<WorkerCounters>,
}

/// The time of the present round.
pub(crate) struct Clock {
    pub start: Instant,
    pub now: Instant,
    /// Whole seconds since the start, from 1.
    pub seconds: u32,
    /// When `seconds` changes. A comparison once a round is cheaper than a difference.
    pub next_second: Instant,
}

/// A frame of the present burst that has to wait, and all frames behind it with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked {
    pub at: usize,
    pub wait: Wait,
}

impl FramePipeline {
    /// Carries one burst of the queue in slot `src` through all steps, at a cost of about
    /// `quantum`.
    #[inline(never)]
    pub(crate) fn carry(&mut self, src: usize, quantum: u64) -> Served {
        self.service = Service { quantum, ..Service::default() };
        self.begin_measuring();
        if self.step_fetch(|pipeline| pipeline.fetch(src)) == 0 {
            return self.step(Step::Poll, |pipeline| pipeline.fetched_nothing(src));
        }
        self.step(Step::Classify, |pipeline| pipeline.classify(src));
        self.measure_sender(src);
        let finished = self.step_deliver(src, |pipeline| pipeline.deliver(src));
        self.capture_sent(src, finished);
        self.step_complete(|pipeline| pipeline.complete(src, finished));
        self.service.served(finished, finished > 0)
    }

    /// Step 1: fetches the frames that the guest has published, and copies the first bytes of each
    /// into private memory. Returns the number of frames.
    #[inline(never)]
    fn fetch(&mut self, src: usize) -> usize {
        if self.must_wait(src) {
            return 0;
        }
        let Some(slot) = self.slots.get_mut(src) else { return 0 };
        if slot.must_wait_for_faults(self.clock.now) {
            return 0;
        }
        self.service.cost = std::mem::take(&mut slot.sending.debt);
        if !slot.may_start() {
            return 0;
        }
        let limited = slot.is_tx_limited();
        if limited && slot.wait_for_rate(self.clock.now) {
            return 0;
        }
        self.burst.set_limit(slot.sending.limit.next());
        if let Err(error) = slot.on.pair.fetch(&mut self.burst) {
            slot.fail(error);
            return 0;
        }
        let fetched = match self.burst.frames().len() {
            0 => return 0,
            fetched => self.enforce_quantum(src, fetched),
        };
        if limited { self.enforce_rate(src, fetched) } else { fetched }
    }

    /// Step 2: finds the action for each frame, in the flow cache, or else by asking the switch.
    #[inline(never)]
    fn classify(&mut self, src: usize) {
        let Some(slot) = self.slots.get(src) else { return };
        let port = self.burst.ingress().unwrap_or(slot.on.port);
        if slot.restrictions.is_some() {
            self.verify_sources(src);
            self.filter_sent(src);
        }
        let frames = self.burst.frames_mut();
        let Classified { hits, misses, alike } =
            self.classifier.classify(port, frames, self.clock.seconds);
        self.burst.note_alike(alike);
        self.counters.cache_hits.add(hits);
        self.counters.cache_misses.add(misses);
        let resolved = self.classifier.resolve(port, &mut self.burst, self.clock.seconds);
        self.service.cost += (misses + resolved.asked) * MISS;
        if resolved.refused > 0 {
            self.count_refused_addresses(src, resolved.refused);
        }
    }

    /// Step 3: copies each frame into its receivers' buffers. Returns how many frames are finished;
    /// the next one has to wait.
    #[inline(never)]
    fn deliver(&mut self, src: usize) -> usize {
        let Some(slot) = self.slots.get(src) else { return 0 };
        let origin = Origin::Burst { sender: slot.on.id, number: slot.sending.in_flight.next() };
        let mut last = slot.sending.destinations.last;
        (self.receivers.origin, self.receivers.passed) = (origin, 0);
        self.receivers.begin();
        let mut i = 0;
        while i < self.burst.frames().len() {
            let (end, blocked) = match &self.burst.frames()[i].action {
                Action::Output(target) => {
                    let target = *target;
                    let end = self.burst.run(i, target);
                    if i == 0 && self.may_be_mixed(target, end) && self.partition(src) {
                        (self.burst.frames().len(), self.output_groups(src, last))
                    } else {
                        self.note_destination(src, target.port, &mut last);
                        (end, self.output(src, i..end, target))
                    }
                }
                Action::Flood(targets) => (i + 1, self.flood(src, i, Arc::clone(targets))),
                Action::Answer(owner) => {
                    let owner = *owner;
                    (i + 1, self.answer(src, i, owner))
                }
                Action::Mirrored(mirrored) => {
                    let mirrored = Arc::clone(mirrored);
                    (i + 1, self.carry_mirrored(src, i, &mirrored))
                }
                Action::Drop(reason) => (i + 1, self.discard(src, *reason)),
                Action::Unclassified => (i + 1, self.discard(src, DropReason::NoReceiver)),
            };
            if let Some(blocked) = blocked {
                self.block(src, blocked.wait);
                return blocked.at;
            }
            i = end;
            if self.is_used_up(src, i) {
                return i;
            }
        }
        i
    }

    /// Step 4: publishes the outcome to receivers and sender, once each, unless the burst is
    /// [merged](crate::merged_burst) with those of other queues.
    #[inline(never)]
    fn complete(&mut self, src: usize, finished: usize) {
        let unfinished = self.burst.frames().len() - finished;
        let batches = self.send_batches();
        let merged = unfinished == 0 && self.may_merge();
        if !merged {
            // The sender is on this worker, and was stopped if its bytes could not be copied.
            let _ = self.publish();
        }
        if unfinished > 0 {
            self.give_back_rate(src, finished);
            self.truncate_burst(finished);
            self.service.more = false;
        }
        self.service.cost += self.service.carriage;
        // From here on nothing points into the sender's memory any more.
        self.burst.reset();
        let Some(slot) = self.slots.get_mut(src) else { return };
        slot.sent(finished, self.service.bytes);
        if !slot.is_healthy() {
            return;
        }
        slot.sending.limit.carried(unfinished == 0);
        slot.on.pair.rewind(unfinished);
        let parts = batches + self.receivers.passed + usize::from(merged);
        let number = slot.sending.in_flight.next();
        let complete = slot.sending.in_flight.push(finished, parts);
        if merged {
            self.receivers.merged.push(MergedBurst { slot: src, number });
            return;
        }
        slot.on.pair.complete(complete);
        slot.dirty = true;
        self.interrupts.add(src, slot.flush(self.clock.now));
    }

    /// Handles an empty fetch. The sender may have used up its rate, or a device may have put
    /// frames on the queue's Rx ring itself.
    fn fetched_nothing(&mut self, src: usize) -> Served {
        self.burst.reset();
        self.poll_rate_limit(src);
        let moved = self.poll_device(src);
        self.poll_later(src);
        self.service.served(0, moved)
    }
}
