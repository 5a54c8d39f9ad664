//! The used descriptors of a packed virtqueue (virtio 1.2, 2.8.14).
//!
//! Used descriptors are written as they come, except for the flags of the first since the last
//! publication. The driver does not look past it, so writing these flags last makes the whole burst
//! appear at once.

use std::sync::atomic::Ordering;

use super::avail::{DescRing, Taken};
use super::{DESC_WRITE, used_flags};
use crate::notify::Place;

/// The device's half of the ring: what was given back.
#[derive(Debug)]
pub(super) struct UsedDescs {
    /// Where the next used descriptor goes.
    pub(super) next: Place,
    /// Number of the chain that it answers, see `DescRing::next_chain`.
    pub(super) chain: u32,
    /// What was written since the last publication.
    pub(super) unpublished: Option<Unpublished>,
}

/// Used descriptors that the driver does not see yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unpublished {
    /// Where the first of them is, and the flags that it lacks.
    pub(super) at: u16,
    pub(super) flags: u16,
    /// Descriptors from there up to `UsedDescs::next`, including those of each chain that get no used
    /// descriptor.
    pub(super) count: u16,
}

impl UsedDescs {
    /// Writes the used descriptor of the oldest chain of `ring`, `len` bytes long.
    #[inline(always)]
    pub(super) fn give_back(&mut self, ring: &DescRing, len: u32) {
        let Taken { id, count } = ring.taken_at(self.chain);
        let flags = used_flags(self.next.wrap) | if len > 0 { DESC_WRITE } else { 0 };
        ring.driver.areas.write_used(self.next.index, id, len);
        match &mut self.unpublished {
            None => self.unpublished = Some(Unpublished { at: self.next.index, flags, count }),
            Some(unpublished) => {
                unpublished.count += count;
                ring.driver.areas.flags(self.next.index).store(flags, Ordering::Relaxed);
            }
        }
        self.next = self.next.forward(count, ring.driver.size);
        self.chain = self.chain.wrapping_add(1);
    }

    /// Writes the used descriptors of `count` chains, from the one whose number ends in `first` on,
    /// once more, as empty.
    #[cold]
    pub(super) fn invalidate(&self, ring: &DescRing, first: u16, count: u16) {
        let Some(unpublished) = &self.unpublished else { return };
        let (mut at, mut chain, mut left) = (self.next, self.chain, unpublished.count);
        while left > 0 {
            chain = chain.wrapping_sub(1);
            let Taken { id, count: descriptors } = ring.taken_at(chain);
            at = at.back(descriptors, ring.driver.size);
            left = left.saturating_sub(descriptors.max(1));
            if (chain as u16).wrapping_sub(first) < count {
                ring.driver.areas.write_used(at.index, id, 0);
            }
        }
    }
}
