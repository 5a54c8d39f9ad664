//! The used descriptors of a packed virtqueue (virtio 1.2, 2.8.14).
//!
//! Used descriptors are written as they come, except for the first since the last publication. The
//! driver does not look past the first one, so writing that last makes the whole burst appear at
//! once.
//!
//! Each used descriptor is one store, and all descriptors of a chain are marked used, its first one
//! last. The driver looks only at the first one of each chain; the marks on the others are for
//! [`recovery`](super::recovery), which finds the position of the ring in them after this process
//! was killed between any two stores.

use std::sync::atomic::Ordering;

use super::avail::{DescRing, Taken};
use super::{marked_used, used_word};
use crate::notify::Place;

/// The device's half of the ring: the chains that were given back.
#[derive(Debug)]
pub(super) struct UsedDescs {
    /// Where the next used descriptor goes.
    pub(super) next: Place,
    /// Number of the chain that the next used descriptor answers, see `DescRing::next_chain`.
    pub(super) chain: u32,
    /// The descriptors written since the last publication.
    pub(super) unpublished: Option<Unpublished>,
}

/// Used descriptors that the driver does not see yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unpublished {
    /// The place of the first of them, which is not written yet, and its value.
    pub(super) at: u16,
    pub(super) word: u64,
    /// Descriptors from there up to `UsedDescs::next`, including those of each chain that get no
    /// used descriptor.
    pub(super) count: u16,
}

impl UsedDescs {
    /// Writes the used descriptor of the oldest chain of `ring`, `len` bytes long.
    #[inline(always)]
    pub(super) fn give_back(&mut self, ring: &DescRing, len: u32) {
        let Taken { id, count } = ring.taken_at(self.chain);
        let word = used_word(len, id, self.next.wrap);
        if count > 1 {
            mark_rest(ring, self.next, count);
        }
        match &mut self.unpublished {
            None => self.unpublished = Some(Unpublished { at: self.next.index, word, count }),
            Some(unpublished) => {
                unpublished.count += count;
                ring.driver.areas.store_word(self.next.index, word);
            }
        }
        self.next = self.next.forward(count, ring.driver.size);
        self.chain = self.chain.wrapping_add(1);
    }

    /// Writes the used descriptors of `count` chains, from the one whose number ends in `first` on,
    /// once more, as empty.
    #[cold]
    pub(super) fn invalidate(&mut self, ring: &DescRing, first: u16, count: u16) {
        let Some(unpublished) = &mut self.unpublished else { return };
        let (mut at, mut chain, mut left) = (self.next, self.chain, unpublished.count);
        while left > 0 {
            chain = chain.wrapping_sub(1);
            let Taken { id, count: descriptors } = ring.taken_at(chain);
            at = at.back(descriptors, ring.driver.size);
            left = left.saturating_sub(descriptors.max(1));
            if (chain as u16).wrapping_sub(first) >= count {
                continue;
            }
            let word = used_word(0, id, at.wrap);
            match left {
                0 => unpublished.word = word,
                _ => ring.driver.areas.store_word(at.index, word),
            }
        }
    }
}

/// Marks all descriptors but the first of the chain of `count` at `head` used. Only the marks
/// change, so they can be undone.
#[inline(never)]
fn mark_rest(ring: &DescRing, head: Place, count: u16) {
    for i in 1..count {
        let place = head.forward(i, ring.driver.size);
        let flags = ring.driver.areas.flags(place.index).load(Ordering::Relaxed);
        ring.driver.areas.store_flags(place.index, marked_used(flags, place.wrap));
    }
}
