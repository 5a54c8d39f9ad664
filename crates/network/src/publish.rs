//! The receivers' rings that a burst touches: each is opened once, and published once.

use ring::grant_copy_batch::Blame;

use crate::port::QueueError;
use crate::put::not_taken;
use crate::slot::Slot;
use crate::stage_profiler::Step;
use crate::worker::Worker;

impl Slot {
    /// About so many frames follow. True when nothing was put since the last flush: then the ring
    /// is to be published. `marks`: what it had received before will be asked for.
    #[inline]
    pub fn open(&mut self, frames: usize, marks: bool) -> bool {
        if self.dirty || !self.is_healthy() {
            return false;
        }
        self.dirty = true;
        if marks {
            self.mark();
        }
        if let Err(error) = self.on.pair.prepare(frames) {
            self.fail(error);
        }
        true
    }
}

impl Worker {
    /// Makes the copies that were put off, and publishes to all receivers of the burst. Says what
    /// is wrong with its sender, if its bytes could not be had.
    pub(crate) fn flush(&mut self) -> Option<QueueError> {
        self.profiler.mark(Step::Deliver);
        let guilty = if self.grant_copies.is_empty() { None } else { self.flush_grant_copies() };
        self.profiler.mark(Step::Copy);
        for dst in self.dirty.drain(..) {
            if let Some(slot) = self.slots.get_mut(dst) {
                if self.profiler.is_on() {
                    let (frames, bytes) = slot.since_mark();
                    self.profiler.received(&slot.on.counters, frames, bytes);
                }
                self.held.add(dst, slot.flush(self.now));
            }
        }
        guilty
    }

    /// Makes the copies that were put off. Frames that could not be copied are spoiled, and
    /// receivers that are to blame for it are stopped. Out of line: bursts between mapped
    /// memories never come here, and Xen's always do.
    #[inline(never)]
    fn flush_grant_copies(&mut self) -> Option<QueueError> {
        let mut guilty = None;
        for failure in self.grant_copies.flush() {
            let Some(slot) = self.slots.get_mut(failure.receiver as usize) else { continue };
            if let Some((token, len)) = failure.frame {
                not_taken(slot, token, len);
            }
            match failure.blame {
                Blame::Sender => guilty = Some(QueueError::Grant(failure.status)),
                Blame::Receiver => slot.fail(QueueError::Grant(failure.status)),
            }
        }
        guilty
    }
}
