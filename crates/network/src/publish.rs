//! The rings that a burst touches: each is opened once, and published once.

use ring::grant_copy_batch::FaultyEnd;

use crate::pipeline::FramePipeline;
use crate::port::QueueError;
use crate::receivers::Sender;
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
    /// Flushes the deferred grant copies, completes [merged](crate::merged_burst) bursts, and
    /// publishes to all receivers. Returns the error of the sender of the present batch, if its
    /// bytes could not be copied.
    #[inline]
    pub(crate) fn publish(&mut self) -> Option<QueueError> {
        let mut error = None;
        if !self.receivers.grant_copies.is_empty() {
            error = self.step(Step::Copy, Self::flush_grant_copies);
            self.complete_merged();
        }
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

    /// Publishes the ring of one queue. Frames whose copies wait may lie on it.
    #[inline]
    pub(crate) fn flush(&mut self, at: usize) {
        self.publish_merged();
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.is_healthy()) {
            slot.dirty = true;
            self.interrupts.add(at, slot.flush(self.clock.now));
        }
    }

    /// Flushes the deferred grant copies. Frames that could not be copied are invalidated, and
    /// queues that made copies fail are stopped. The function is out of line because bursts
    /// between mapped memories never need it, and Xen's always do.
    #[inline(never)]
    fn flush_grant_copies(&mut self) -> Option<QueueError> {
        let mut present = None;
        for failure in self.receivers.grant_copies.flush() {
            let Some(slot) = self.slots.get_mut(failure.receiver as usize) else { continue };
            if let Some((token, len)) = failure.frame {
                slot.invalidate(token, len);
            }
            let error = QueueError::Grant(failure.status);
            if failure.faulty == FaultyEnd::Receiver {
                slot.fail(error);
                continue;
            }
            match Sender::of(failure.sender) {
                Sender::Slot(at) => {
                    self.slots.get_mut(at).into_iter().for_each(|slot| slot.fail(error))
                }
                Sender::Batch(index) => match self.receivers.merged_batches.get_mut(index) {
                    Some((_, batch)) => batch.error = Some(error),
                    None => present = Some(error),
                },
            }
        }
        present
    }
}
