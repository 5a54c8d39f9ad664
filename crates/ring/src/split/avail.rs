//! The available ring of a split virtqueue: takes chains (virtio 1.2, 2.7.6).
//!
//! Entries are taken in batches, in two passes, so that the cache misses of a burst overlap: the
//! first pass reads the heads and prefetches their descriptors; the second copies each descriptor
//! once, and prefetches its buffer.
//!
//! A hostile driver can move the available index by any distance, give heads and links beyond the
//! table, link descriptors in a cycle, nest indirect tables, and point anywhere. So the index is
//! checked against the number of outstanding entries, heads and links are checked against the
//! table, and the number of descriptors of a chain is bounded.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::areas::{Areas, desc_of};
use super::position::Position;
use super::{DESC_INDIRECT, DESC_NEXT, DESC_SIZE, DESC_WRITE, Desc, USED_ENTRY};
use crate::copy::{CACHE_LINE, prefetch, prefetch_write};
use crate::driver_memory::DriverMemory;
use crate::gather::MAX_CHAIN;
use crate::piece::Span;
use crate::violation::Violation;
use crate::walk::{Sink, Stop, Walk, is_table};

/// Entries that are taken together.
const BATCH: usize = 64;

/// The driver's half of the ring, and how much of it was taken.
#[derive(Debug)]
pub(super) struct AvailRing {
    pub(super) driver: DriverMemory<Areas>,
    /// Next entry of the available ring to take.
    pub(super) next: Position,
    /// The available index when it was last read: entries before it are ours to take.
    pub(super) seen: Position,
    /// The used index as the driver sees it. It can have made no more than `size` entries
    /// available beyond.
    pub(super) published: Position,
    /// Heads of the chains between the used and the available position, by slot.
    pub(super) heads: Box<[u16]>,
}

impl AvailRing {
    /// How many entries can be taken, up to `max`. Reads the available index only when the entries
    /// seen before are not enough.
    #[inline]
    pub(super) fn ready(&mut self, max: usize) -> Result<usize, Violation> {
        let known = usize::from(self.seen.get().wrapping_sub(self.next.get()));
        if known >= max {
            return Ok(max);
        }
        let index = self.driver.areas.avail_index().load(Ordering::Acquire);
        self.check_index(index)?;
        Ok(usize::from(index.wrapping_sub(self.next.get())).min(max))
    }

    /// Accepts an available index if it is possible: not before the entries taken, and at most a
    /// ring beyond the entries that the driver got back.
    #[inline]
    pub(super) fn check_index(&mut self, index: u16) -> Result<(), Violation> {
        let ahead = index.wrapping_sub(self.published.get());
        if ahead > self.driver.size || ahead < self.next.get().wrapping_sub(self.published.get()) {
            return Err(self.driver.mem.root_cause(Violation::AvailableJump {
                index,
                ahead,
                size: self.driver.size,
            }));
        }
        self.seen = Position::of(index);
        Ok(())
    }

    /// Takes the next `n` entries, which are ready, into `sink`: fewer when the sink is full, or
    /// when a broken chain follows. A broken chain is an error only if it comes first.
    #[inline]
    pub(super) fn take<S: Sink>(&mut self, n: usize, sink: &mut S) -> Result<usize, Violation> {
        let mut taken = 0;
        while taken < n {
            let batch = (n - taken).min(BATCH);
            match self.take_batch(batch, sink) {
                Err(violation) if taken == 0 => return Err(self.driver.mem.root_cause(violation)),
                Ok(got) if got == batch => taken += got,
                Ok(got) => return Ok(taken + got),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    #[inline]
    fn take_batch<S: Sink>(&mut self, n: usize, sink: &mut S) -> Result<usize, Violation> {
        let n = self.copy_heads(n)?;
        let mut i = 0;
        while i < n {
            let (taken, unusual) = self.take_alone(i..n, sink);
            i += taken;
            let Some(desc) = unusual else { break };
            match self.walk_chain(desc, sink) {
                Ok(()) => i += 1,
                Err(Stop::Broken(violation)) if i == 0 => {
                    sink.cancel();
                    return Err(violation);
                }
                Err(_) => {
                    sink.cancel();
                    break;
                }
            }
        }
        self.next.advance(i);
        Ok(i)
    }

    /// Takes chains of the usual kind, one descriptor for a buffer in one piece, for entries
    /// `range` of those to take. Returns how many, and the first descriptor of the next chain if
    /// that is of another kind. This descriptor was copied, and must not be read again.
    ///
    /// The fields of the ring that the loop needs are copied first. Otherwise the compiler would
    /// reload them for each chain, since it must assume that the sink overwrites them.
    #[inline(always)]
    fn take_alone<S: Sink>(&self, range: Range<usize>, sink: &mut S) -> (usize, Option<Desc>) {
        let plain = if S::WRITABLE { DESC_WRITE } else { 0 };
        let (areas, heads) = (self.driver.areas, &*self.heads);
        let window = self.driver.mem.window(self.driver.hint);
        let (next, mask) = (self.next.get(), self.driver.size - 1);
        for i in range.clone() {
            let slot = next.wrapping_add(i as u16) & mask;
            let desc = areas.desc(heads[usize::from(slot)]);
            let is_taken = desc.flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == plain
                && window.find(desc.addr, desc.len, |at| {
                    S::prefetch(at.as_ptr());
                    S::prefetch(at.as_ptr().wrapping_add(CACHE_LINE));
                    sink.push_alone(Span { at, len: desc.len })
                });
            if !is_taken {
                return (i - range.start, Some(desc));
            }
        }
        (range.len(), None)
    }

    /// The slot of the `i`th entry to take, in the available ring and in `heads`.
    #[inline(always)]
    pub(super) fn slot(&self, i: usize) -> usize {
        usize::from(self.next.get().wrapping_add(i as u16) & (self.driver.size - 1))
    }

    /// Copies the next `n` heads, up to the first invalid one, and prefetches their descriptors.
    #[inline]
    fn copy_heads(&mut self, n: usize) -> Result<usize, Violation> {
        // Copied for the same reason as in `take_alone`.
        let (areas, size, next) = (self.driver.areas, self.driver.size, self.next.get());
        let heads = &mut *self.heads;
        for i in 0..n {
            let slot = usize::from(next.wrapping_add(i as u16) & (size - 1));
            let head = areas.head(slot);
            if head >= size {
                let violation = Violation::DescriptorIndex { index: head, table: u32::from(size) };
                return if i == 0 { Err(violation) } else { Ok(i) };
            }
            prefetch(areas.desc_at(head));
            heads[slot] = head;
        }
        self.prefetch_used(n);
        Ok(n)
    }

    /// Prefetches the first descriptors of the next batch, if it is known to be there, while this
    /// batch is carried. Drivers mostly use descriptors in order, so one of each cache line is
    /// prefetched.
    #[inline]
    pub(super) fn look_ahead(&self) {
        let known = usize::from(self.seen.get().wrapping_sub(self.next.get())).min(BATCH);
        for i in (0..known).step_by(CACHE_LINE / DESC_SIZE as usize) {
            let head = self.driver.areas.head(self.slot(i));
            if head < self.driver.size {
                prefetch(self.driver.areas.desc_at(head));
            }
        }
    }

    /// Prefetches the entries of the used ring that answer the next `n`, because the driver has
    /// just read nearby.
    #[inline]
    fn prefetch_used(&self, n: usize) {
        for i in (0..n).step_by(CACHE_LINE / USED_ENTRY as usize) {
            prefetch_write(self.driver.areas.used_at(self.slot(i)));
        }
    }

    /// Follows a chain that begins with `desc` to its end, in the ring's table and at most one
    /// indirect table.
    #[inline(never)]
    fn walk_chain<S: Sink>(&mut self, mut desc: Desc, sink: &mut S) -> Result<(), Stop> {
        let mut walk = Walk::new(&self.driver.mem, &mut self.driver.hint, sink);
        let bound = u32::from(self.driver.size).min(MAX_CHAIN);
        for _ in 0..bound {
            if is_table(desc.flags, self.driver.indirect)? {
                walk_table(&mut walk, &desc)?;
                return walk.close();
            }
            walk.add(desc.addr, desc.len, desc.flags)?;
            if desc.flags & DESC_NEXT == 0 {
                return walk.close();
            }
            if desc.next >= self.driver.size {
                return Err(Violation::DescriptorIndex {
                    index: desc.next,
                    table: u32::from(self.driver.size),
                }
                .into());
            }
            desc = self.driver.areas.desc(desc.next);
        }
        Err(Violation::ChainTooLong(bound).into())
    }
}

/// Follows the links of the indirect table that `desc` names, from its entry 0.
fn walk_table<S: Sink>(walk: &mut Walk<'_, S>, desc: &Desc) -> Result<(), Stop> {
    let table = walk.table(desc.addr, desc.len)?;
    let mut index = 0;
    for _ in 0..table.entries() {
        let desc = desc_of(table.entry(index)?);
        if desc.flags & DESC_INDIRECT != 0 {
            return Err(Violation::IndirectNested.into());
        }
        walk.add(desc.addr, desc.len, desc.flags)?;
        if desc.flags & DESC_NEXT == 0 {
            return Ok(());
        }
        index = u32::from(desc.next);
    }
    Err(Violation::ChainTooLong(table.entries()).into())
}
