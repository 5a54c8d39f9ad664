//! The rings that a burst touches: each is opened once, and published once.

use ring::grant_copy_batch::FaultyEnd;

use crate::pipeline::FramePipeline;
use crate::port::QueueError;
use crate::slot::Slot;
use crate::step::Step;

impl Slot {
    /// Announces about `frames` frames. True when nothing was put since the last flush, so that the
    /// caller must note the ring for publication. `mark`: a profiler will ask for the frames
    /// received from now on.
    #[inline]
    pub fn open(&mut self, frames: usize, mark: bool) -> bool {
        if self.dirty || !self.is_healthy() {
            return false;
        }
        self.dirty = true;
        if mark {
            self.mark();
        }
        if let Err(error) = self.on.pair.prepare(frames) {
            self.fail(error);
        }
        true
    }
}

impl FramePipeline {
    /// Flushes the deferred grant copies, and publishes to all receivers of the burst. Returns the
    /// sender's error, if its bytes could not be copied.
    #[inline]
    pub(crate) fn publish(&mut self) -> Option<QueueError> {
        let error = match self.receivers.grant_copies.is_empty() {
            true => None,
            false => self.step(Step::Copy, Self::flush_grant_copies),
        };
        self.charge_receivers();
        for &dst in &self.receivers.dirty {
            if let Some(slot) = self.slots.get_mut(dst) {
                slot.charge_pieces(self.clock.now);
                self.interrupts.add(dst, slot.flush(self.clock.now));
            }
        }
        self.receivers.dirty.clear();
        error
    }

    /// Publishes the ring of one queue.
    #[inline]
    pub(crate) fn flush(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_healthy()) {
            slot.dirty = true;
            self.interrupts.add(at, slot.flush(self.clock.now));
        }
    }

    /// Flushes the deferred grant copies. Frames that could not be copied are invalidated, and
    /// receivers that made copies fail are stopped. The function is out of line because bursts
    /// between mapped memories never need it, and Xen's always do.
    #[inline(never)]
    fn flush_grant_copies(&mut self) -> Option<QueueError> {
        let mut sender = None;
        for failure in self.receivers.grant_copies.flush() {
            let Some(slot) = self.slots.get_mut(failure.receiver as usize) else { continue };
            if let Some((token, len)) = failure.frame {
                slot.invalidate(token, len);
            }
            match failure.faulty {
                FaultyEnd::Sender => sender = Some(QueueError::Grant(failure.status)),
                FaultyEnd::Receiver => slot.fail(QueueError::Grant(failure.status)),
            }
        }
        sender
    }
}
