//! Frames into one receiver's ring.

use std::ops::Range;
use std::time::Instant;

use frame::TagEdit;
use ring::GrantCopyBatch;
use ring::device::Put;
use ring::gather::Body;
use runtime::coalescing::InterruptCoalescer;

use crate::burst::Burst;
use crate::count::DropReason;
use crate::passed_grants::{Origin, PassedGrant};
use crate::pipeline::FramePipeline;
use crate::port::QueueError;
use crate::slot::Slot;
use crate::software_offload::software_offload;

/// What became of one frame at one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It went out as so many frames; some more may have been dropped, and are counted.
    Out(u32),
    /// The receiver has no room at the moment; nothing was taken.
    Full,
    /// It cannot be delivered there.
    Refused(DropReason),
}

/// Frames of a burst that go to one receiver.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    /// The burst.
    pub burst: &'a Burst,
    /// The first of them.
    pub i: usize,
    /// The one behind the last.
    pub end: usize,
    /// What happens to their tags.
    pub tag: TagEdit,
    /// What waits for their end, if they are passed.
    pub origin: Origin,
    /// When they are delivered.
    pub now: Instant,
}

/// A frame whose receiver is full; it waits, and all frames behind it with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// Which one of its burst.
    pub at: usize,
    /// When to drop it rather than wait on.
    pub until: Instant,
}

impl<'a> Run<'a> {
    /// The bytes of the first frame that are still with its sender.
    pub fn body(&self) -> Body<'a> {
        self.burst.body(self.i)
    }

    /// Length of the first frame in bytes.
    fn len(&self) -> u32 {
        self.burst.frames()[self.i].len
    }
}

impl FramePipeline {
    /// Puts frames of the burst on the ring in slot `dst`, or drops and counts them there, up to
    /// one that has to wait.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        dst: usize,
        frames: Range<usize>,
        tag: TagEdit,
    ) -> Option<Full> {
        let left = self.burst.frames().len() - frames.start;
        let slot = self.slots.get_mut(dst)?;
        if slot.open(left, self.profiler.is_on()) {
            self.receivers.dirty.push(dst);
        }
        self.receivers.grant_copies.set_receiver(dst as u32);
        let before = slot.passed.total();
        let run = Run {
            burst: &self.burst,
            i: frames.start,
            end: frames.end,
            tag,
            origin: self.receivers.origin,
            now: self.clock.now,
        };
        let full = slot.receive(run, &mut self.receivers.grant_copies);
        let end = full.map_or(frames.end, |full| full.at);
        self.profiler.note_received(slot, &self.burst, frames.start..end);
        self.receivers.note_passed(dst, (slot.passed.total() - before) as usize);
        full
    }

    /// Counts frames as dropped at the queue in `slot`.
    pub(crate) fn drop_at(&mut self, slot: usize, reason: DropReason, frames: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.on.counters.lose(reason, frames as u64);
        }
    }
}

impl Slot {
    /// Puts frames on the ring, or drops and counts them, up to one that has to wait.
    pub(crate) fn receive(
        &mut self,
        mut run: Run<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Option<Full> {
        while run.i < run.end {
            if !self.is_healthy() {
                self.on.counters.lose(DropReason::PortDown, (run.end - run.i) as u64);
                return None;
            }
            let outcome = match self.passthrough(&run) {
                0 => software_offload(self, &run, grant_copies),
                frames => {
                    let end = run.i + frames;
                    let (done, put) = self.put_run(&run, end, grant_copies);
                    run.i += done;
                    if put == Ok(Put::Done) {
                        continue;
                    }
                    put.map(|put| taken(self, put, run.len(), &run))
                }
            };
            if let Some(until) = self.account(outcome, run.now) {
                return Some(Full { at: run.i, until });
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
        let accepts = self.on.pair.accepts();
        let frames = &run.burst.frames()[run.i..run.end];
        frames.iter().take_while(|frame| accepts.takes(&frame.offload)).count()
    }

    /// Puts frames up to `end` as they are, and counts those that the receiver took; returns how
    /// many, and the result of the next one.
    fn put_run(
        &mut self,
        run: &Run<'_>,
        end: usize,
        grant_copies: &mut GrantCopyBatch,
    ) -> (usize, Result<Put, QueueError>) {
        let Run { burst, i, .. } = *run;
        let may_pass = self.may_pass();
        let (done, put) = self.on.pair.put_run(burst, i..end, may_pass, grant_copies);
        if done > 0 {
            let frames = &burst.frames()[i..i + done];
            let bytes: u64 = frames.iter().map(|frame| u64::from(frame.len)).sum();
            self.passed.took(done as u32, bytes as u32);
            self.count_received(done as u32, bytes as u32);
        }
        (done, put)
    }

    /// Counts the outcome of one frame; or says until when it may wait.
    fn account(&mut self, outcome: Result<Outcome, QueueError>, now: Instant) -> Option<Instant> {
        match outcome {
            Ok(Outcome::Out(_)) => {}
            Ok(Outcome::Refused(reason)) => self.on.counters.lose(reason, 1),
            Ok(Outcome::Full) => {
                self.coalescer.iter_mut().for_each(InterruptCoalescer::full);
                let until = self.backpressure.full(now);
                if until.is_none() {
                    self.on.counters.lose(DropReason::RxFull, 1);
                }
                return until;
            }
            Err(error) => {
                self.on.counters.lose(DropReason::PortDown, 1);
                self.fail(error);
            }
        }
        None
    }

    /// The receiver took frames of `bytes` bytes in all.
    #[inline]
    fn count_received(&mut self, frames: u32, bytes: u32) -> Outcome {
        self.backpressure.took(frames, bytes);
        self.on.counters.rx_frames.add(frames.into());
        self.on.counters.rx_bytes.add(bytes.into());
        Outcome::Out(frames)
    }

    /// A frame of `len` bytes that the receiver took could not be copied: it is invalidated, and
    /// counted as lost.
    pub(crate) fn invalidate(&mut self, token: u32, len: u32) {
        self.passed.discount(token);
        self.on.counters.rx_frames.subtract(1);
        self.on.counters.rx_bytes.subtract(len.into());
        self.on.counters.lose(DropReason::NotGranted, 1);
        if self.is_healthy() {
            self.on.pair.invalidate(token);
        }
    }
}

/// What a receiver's answer to a whole frame of `len` bytes means.
#[inline]
pub(crate) fn taken(slot: &mut Slot, put: Put, len: u32, run: &Run<'_>) -> Outcome {
    match put {
        Put::Done => {
            slot.passed.took(1, len);
            slot.count_received(1, len)
        }
        Put::Passed { token } => {
            let (origin, since) = (run.origin, run.now);
            slot.passed.add(PassedGrant { origin, len, token, since, counts: true });
            slot.count_received(1, len)
        }
        Put::Full => Outcome::Full,
        Put::TooBig => Outcome::Refused(DropReason::RxTooSmall),
        Put::Refused => Outcome::Refused(DropReason::RxRefused),
        Put::Unwanted => Outcome::Refused(DropReason::Multicast),
    }
}
