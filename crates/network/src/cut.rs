//! Bursts that end where their sender's turn does (see [`crate::drr`]).
//!
//! How long frames are is not known before they are fetched. So a burst that turns out to cost more
//! than its turn may is cut short, and the next ones are as long as frames such as those allow:
//! little is fetched in vain, and a sender that makes its frames long all of a sudden gains nothing
//! by it. A burst of floods ends early, too, when their copies have cost what the turn may.

use crate::burst::{BURST, Frame};
use crate::drr::cost;
use crate::flowcache::Action;
use crate::worker::Worker;

impl Worker {
    /// Gives back what goes beyond the sender's turn, but for one frame. Returns how many are left.
    #[inline]
    pub(crate) fn cut(&mut self, src: usize, fetched: usize) -> usize {
        self.service.bytes = self.burst.bytes();
        let cost = cost(fetched, self.service.bytes);
        if cost > self.service.allowance {
            return self.cut_short(src, fetched);
        }
        if let Some(slot) = self.slots.get_mut(src) {
            self.service.more = fetched == slot.span;
            if self.service.more && 2 * cost <= self.service.allowance {
                slot.span = (2 * slot.span).min(BURST);
            }
        }
        fetched
    }

    /// What the sender's turn has cost already, without the frames before `i` themselves, is all
    /// that it may: if that is for copies of a flood, which are only known when they are made,
    /// the burst ends here.
    #[cold]
    pub(crate) fn stops_short(&mut self, src: usize, i: usize) -> bool {
        let frames = self.burst.frames();
        let rest = frames.len() - i;
        if rest == 0 || !matches!(frames[i - 1].action, Action::Flood(_)) {
            return false;
        }
        self.burst.truncate(i);
        self.service.bytes = self.burst.bytes();
        if let Some(slot) = self.slots.get_mut(src).filter(|slot| slot.is_healthy()) {
            slot.on.pair.rewind(rest);
            slot.span = i;
        }
        self.service.more = true;
        true
    }

    #[cold]
    fn cut_short(&mut self, src: usize, fetched: usize) -> usize {
        let mut left = self.service.allowance;
        let fits = |frame: &&Frame| {
            let rest = left.checked_sub(cost(1, frame.len.into()));
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let fits = self.burst.frames().iter().take_while(fits).count().max(1);
        self.burst.truncate(fits);
        self.service.bytes = self.burst.bytes();
        if let Some(slot) = self.slots.get_mut(src) {
            slot.on.pair.rewind(fetched - fits);
            slot.span = fits;
        }
        self.service.more = true;
        fits
    }
}
