//! Bursts that end where their quantum ([`service`](crate::service)) does.
//!
//! The lengths of frames are not known before they are fetched. So a burst that turns out to cost
//! more than its quantum is shortened, and the lengths of the next bursts are estimated from its
//! frames. Little is fetched in vain, and a sender gains nothing by suddenly sending longer frames.
//! A burst of floods also ends early when its copies have used up the quantum.

use crate::burst::{BURST, Frame};
use crate::pipeline::FramePipeline;

impl FramePipeline {
    /// Gives back the frames beyond the sender's quantum, but keeps at least one. Returns how many
    /// are left.
    #[inline]
    pub(crate) fn enforce_quantum(&mut self, src: usize, fetched: usize) -> usize {
        self.measure_burst(fetched);
        let cost = self.service.carriage;
        if cost > self.service.quantum {
            return self.shorten_burst(src, fetched);
        }
        if let Some(slot) = self.slots.get_mut(src) {
            let limit = &mut slot.sending.limit;
            self.service.more = fetched == limit.estimate;
            if self.service.more && 2 * cost <= self.service.quantum {
                limit.estimate = (2 * limit.estimate).min(BURST);
            }
        }
        fetched
    }

    /// Computes the cost of carrying the first `frames` frames of the burst.
    #[inline]
    fn measure_burst(&mut self, frames: usize) {
        self.service.bytes = self.burst.bytes();
        self.service.carriage = self.burst.cost(frames, self.service.bytes);
    }

    /// Gives up all frames of the burst from number `frames` on.
    pub(crate) fn truncate_burst(&mut self, frames: usize) {
        self.burst.truncate(frames);
        self.measure_burst(frames);
    }

    /// Whether the quantum is used up before frame `i`, not counting the frames themselves. Copies
    /// of a flood and segments are only known when they are made; if they have used up the quantum,
    /// the burst ends here.
    #[inline]
    pub(crate) fn is_used_up(&mut self, src: usize, i: usize) -> bool {
        self.service.cost >= self.service.quantum && self.end_burst(src, i)
    }

    #[cold]
    fn end_burst(&mut self, src: usize, i: usize) -> bool {
        let rest = self.burst.frames().len() - i;
        if rest == 0 || self.service.added == 0 {
            return false;
        }
        self.give_back_rate(src, i);
        self.truncate_burst(i);
        if let Some(slot) = self.slots.get_mut(src).filter(|slot| slot.is_healthy()) {
            slot.on.pair.rewind(rest);
            slot.sending.limit.estimate = i;
        }
        self.service.more = true;
        true
    }

    #[cold]
    fn shorten_burst(&mut self, src: usize, fetched: usize) -> usize {
        let mut left = self.service.quantum;
        let fits = |frame: &&Frame| {
            let rest = left.checked_sub(frame.cost());
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let fits = self.burst.frames().iter().take_while(fits).count().max(1);
        self.truncate_burst(fits);
        if let Some(slot) = self.slots.get_mut(src) {
            slot.on.pair.rewind(fetched - fits);
            slot.sending.limit.estimate = fits;
        }
        self.service.more = true;
        fits
    }
}
