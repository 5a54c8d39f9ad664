//! Guards around the steps of a burst. A guard takes time stamps while a profile is taken, and
//! otherwise only calls the step.
//!
//! The time since the last stamp belongs to the step that ends, so the steps add up to the whole
//! time of the worker (see [`crate::stage_profiler`]).

use std::ops::Range;

use crate::burst::Burst;
use crate::exchange::Delivered;
use crate::handoff::HandoffBatch;
use crate::pipeline::FramePipeline;
use crate::port::DeviceFrames;
use crate::slot::Slot;
use crate::stage_profiler::StageProfiler;
use crate::step::Step;

impl FramePipeline {
    /// Runs a step.
    #[inline(always)]
    pub(crate) fn step<T>(&mut self, step: Step, work: impl FnOnce(&mut Self) -> T) -> T {
        let done = work(self);
        self.profiler.mark(step);
        done
    }

    /// Fetches a burst. Polling an empty queue is not a step of any burst.
    #[inline(always)]
    pub(crate) fn step_fetch(&mut self, fetch: impl FnOnce(&mut Self) -> usize) -> usize {
        let fetched = fetch(self);
        if fetched > 0 {
            self.profiler.fetched(self.burst.heads_watch());
        }
        fetched
    }

    /// Delivers a burst of the queue in slot `src`.
    #[inline(always)]
    pub(crate) fn step_deliver(
        &mut self,
        src: usize,
        deliver: impl FnOnce(&mut Self) -> usize,
    ) -> usize {
        let finished = deliver(self);
        if self.profiler.is_on() {
            self.delivered(src, finished);
        }
        finished
    }

    #[cold]
    fn delivered(&mut self, src: usize, finished: usize) {
        self.profiler.mark(Step::Deliver);
        if let (Some(since), Some(slot)) = (self.profiler.since(), self.slots.get(src)) {
            slot.on.counters.charged.sent.note(since, self.burst.flows(0..finished));
        }
        // The time spent on frames that another worker delivers is handed over with them.
        let all = self.burst.frames().len();
        for batch in self.handoff.open() {
            batch.spent = self.profiler.give(batch.burst.frames().len(), all);
        }
    }

    /// Completes a burst, and charges its time to the receivers of its frames.
    #[inline(always)]
    pub(crate) fn step_complete(&mut self, complete: impl FnOnce(&mut Self)) {
        complete(self);
        if self.profiler.is_on() {
            self.profiler.mark(Step::Publish);
            self.profiler.charge();
        }
    }

    /// Delivers a batch of another worker.
    #[inline]
    pub(crate) fn profile_batch(
        &mut self,
        batch: &mut HandoffBatch,
        deliver: impl FnOnce(&mut Self, &mut HandoffBatch) -> Delivered,
    ) -> Delivered {
        self.profiler.mark(Step::Poll);
        self.profiler.forget();
        let delivered = deliver(self, batch);
        if self.profiler.is_on() {
            self.profiler.mark(Step::Publish);
            self.profiler.take(std::mem::take(&mut batch.spent));
            self.profiler.charge();
        }
        delivered
    }

    /// Publishes frames that a device put on the ring in slot `at` by itself.
    pub(crate) fn profile_device(
        &mut self,
        at: usize,
        received: DeviceFrames,
        publish: impl FnOnce(&mut Self),
    ) {
        self.profiler.fetched(self.burst.heads_watch());
        if let Some(slot) = self.slots.get(at).filter(|_| self.profiler.is_on()) {
            self.profiler.received(&slot.on.counters, received.frames, received.bytes);
        }
        self.step_complete(publish);
    }

    /// Takes note of what each receiver of the present burst got.
    #[inline]
    pub(crate) fn charge_receivers(&mut self) {
        if !self.profiler.is_on() {
            return;
        }
        for &dst in &self.receivers.dirty {
            if let Some(slot) = self.slots.get(dst) {
                let (frames, bytes) = slot.since_mark();
                self.profiler.received(&slot.on.counters, frames, bytes);
            }
        }
    }
}

impl StageProfiler {
    /// The queue in `slot` received these frames of a burst.
    #[inline]
    pub(crate) fn note_received(&self, slot: &Slot, burst: &Burst, frames: Range<usize>) {
        if let Some(since) = self.since() {
            slot.on.counters.charged.received.note(since, burst.flows(frames));
        }
    }
}

impl Slot {
    /// Remembers what it has received so far.
    pub fn mark(&mut self) {
        self.receiving.marked = (self.on.counters.rx.frames.get(), self.on.counters.rx.bytes.get());
    }

    /// Frames and bytes that it has received since it was marked.
    fn since_mark(&self) -> (u64, u64) {
        let (frames, bytes) = self.receiving.marked;
        let count = &self.on.counters;
        (count.rx.frames.get().saturating_sub(frames), count.rx.bytes.get().saturating_sub(bytes))
    }
}
