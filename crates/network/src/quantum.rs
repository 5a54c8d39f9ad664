//! How many frames are fetched at a time, and bursts that end where their quantum does.
//!
//! How long frames are is not known before they are fetched. So a burst that turns out to cost more
//! than its quantum is shortened, and the next ones are as long as frames such as those allow:
//! little is fetched in vain, and a sender that makes its frames long all of a sudden gains nothing
//! by it. A burst of floods ends early, too, when their copies have used up the quantum.

use runtime::Served;

use crate::burst::{BURST, Frame};
use crate::pipeline::FramePipeline;

/// How many frames of a queue are fetched at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstLimit {
    /// A full burst, unless a receiver was found full lately: what that has no room for would be
    /// fetched in vain, and again. Grows with each burst that found room, from one.
    pub usual: usize,
    /// For the next burst only: as many as the receiver that was waited for has room for.
    pub room: Option<usize>,
    /// How many frames such as the last ones fit in a quantum.
    pub estimate: usize,
}

impl Default for BurstLimit {
    fn default() -> Self {
        BurstLimit { usual: BURST, room: None, estimate: BURST }
    }
}

impl BurstLimit {
    /// How many frames the next burst may have.
    #[inline]
    pub fn next(&self) -> usize {
        self.room.unwrap_or(self.usual).min(self.estimate)
    }

    /// A burst was carried, all of it (`whole`) or not.
    #[inline]
    pub fn carried(&mut self, whole: bool) {
        match (self.room.take(), whole) {
            (_, false) => self.usual = 1,
            // It says nothing of more room than that.
            (Some(_), true) => {}
            (None, true) => self.usual = (2 * self.usual).min(BURST),
        }
    }
}

/// What serving one queue once costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// What it may cost.
    pub quantum: u64,
    /// Bytes of the frames of the burst.
    pub bytes: u64,
    /// What these frames cost to carry: bytes, and pieces of memory.
    pub carriage: u64,
    /// What the service has cost besides.
    pub cost: u64,
    /// What of that was not known when the burst was fetched: copies of floods, and segments.
    pub added: u64,
    /// So many of its first frames have taken room in the limits of their port.
    pub taken: usize,
    /// The queue is likely to have more: its burst was as long as it could be, and all of it is
    /// done.
    pub more: bool,
}

impl Service {
    /// The result, with so many frames carried; `moved`: or anything else.
    #[inline]
    pub fn served(&self, frames: usize, moved: bool) -> Served {
        Served { cost: self.cost, units: frames as u64, moved, more: self.more }
    }
}

impl FramePipeline {
    /// Gives back what goes beyond the sender's quantum, but for one frame. Returns how many are
    /// left.
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

    /// Finds out what the burst's `frames` cost to carry.
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

    /// Whether the quantum is used up before frame `i`, not counting the frames themselves. If it
    /// was used for copies of a flood or for segments, which are only known when they are made, the
    /// burst ends here.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frame::VNET_LEN;
    use ring::region::Memory;
    use ring::violation::Violation;

    use super::*;
    use crate::burst::{Burst, Frame};
    use crate::cost::{PIECE, cost};

    #[test]
    fn each_piece_of_a_frame_costs() {
        let memory = Arc::new(Memory::anonymous(4096).unwrap());
        let mut burst = Burst::new();
        let pieces = |count: u64| (0..count).map(|at| (at, 1));
        burst
            .fill(VNET_LEN, |gather, chains, _| {
                chains.push(gather.push_range(&memory, 0, 72)?);
                chains.push(gather.push_ranges(&memory, pieces(1000))?);
                chains.push(gather.push_range(&memory, 0, 72)?);
                Ok::<_, Violation>(3)
            })
            .unwrap();
        let (short, long) = (cost(1, 60), cost(1, 988) + 999 * PIECE);
        assert_eq!(
            burst.frames().iter().map(Frame::cost).collect::<Vec<_>>(),
            [short, long, short]
        );
        for (n, bytes, total) in
            [(0, 0, 0), (1, 60, short), (2, 1048, short + long), (3, 1108, 2 * short + long)]
        {
            assert_eq!(burst.cost(n, bytes), total, "{n} frames");
        }
    }

    #[test]
    fn a_limit_shrinks_at_once_and_grows_again() {
        let limit = |usual, room| BurstLimit { usual, room, estimate: BURST };
        let mut tested = BurstLimit::default();
        tested.carried(true);
        assert_eq!(tested, limit(BURST, None));
        tested.carried(false);
        assert_eq!(tested, limit(1, None));
        tested.room = Some(7);
        tested.carried(true);
        assert_eq!(tested, limit(1, None), "what was known to be there says nothing of more");
        for usual in [2, 4, 8, 16, 32, 64, 64] {
            tested.carried(true);
            assert_eq!(tested, limit(usual, None));
        }
    }
}
