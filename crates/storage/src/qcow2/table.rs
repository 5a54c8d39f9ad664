//! The mapping of one image: its L1 table, and as many of its L2 tables as fit into a budget.
//!
//! One thread changes the tables, while any number of workers look up places without locks, since
//! entries are atomic words. An L2 table that is evicted is forgotten first; its room is used again
//! after a grace period ([`Gate`](super::gate::Gate)).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::growing::GrowingList;
use super::header::Header;

/// Bytes of L2 tables that are kept of one image.
const BUDGET: u64 = 16 << 20;

/// Bits of entries.
pub(super) const COPIED: u64 = 1 << 63;
pub(super) const COMPRESSED: u64 = 1 << 62;
pub(super) const ZERO: u64 = 1;
/// The position in an entry.
pub(super) const PLACE: u64 = 0x00ff_ffff_ffff_fe00;

/// An entry of an L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Data of the image at this position, and whether this is the only reference to it.
    Data(u64, bool),
    /// Zeros. A position that is reserved for them, or 0.
    Zero(u64),
    /// The data of the backing file.
    Unallocated,
    /// Compressed data: the position, and most bytes that it takes.
    Compressed(u64, u64),
    /// An invalid entry.
    Damaged,
}

impl Entry {
    pub fn parse(entry: u64, cluster_bits: u32, version: u32) -> Entry {
        if entry & COMPRESSED != 0 {
            // The number of sectors is in the bits above the position, and does not count the first
            // one.
            let bits = 62 - (cluster_bits - 8);
            let place = entry & ((1 << bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> bits;
            return Entry::Compressed(place, (sectors + 1) * 512 - (place & 511));
        }
        let place = entry & PLACE;
        if place & ((1 << cluster_bits) - 1) != 0 {
            return Entry::Damaged;
        }
        match place {
            _ if version >= 3 && entry & ZERO != 0 => Entry::Zero(place),
            0 => Entry::Unallocated,
            _ => Entry::Data(place, entry & COPIED != 0),
        }
    }
}

/// The kind of data at the beginning of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Data at this position of the file; whether it may be written in place.
    Data(u64, bool),
    Zeros,
    /// Not in this image: look in the backing file.
    Unallocated,
    /// To be handled by the thread of the image: compressed, damaged, or not loaded.
    Elsewhere,
}

/// The tables of one image.
#[derive(Debug)]
pub(super) struct Tables {
    pub cluster_bits: u32,
    pub version: u32,
    /// Positions of L2 tables; 0: there is none.
    l1: GrowingList<AtomicU64>,
    /// The slot of each L2 table, plus 1; 0: the table is not loaded.
    kept: GrowingList<AtomicU32>,
    /// Room for L2 tables.
    slots: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl Tables {
    /// Tables without entries.
    pub fn new(header: &Header) -> Tables {
        let entries = header.l1.1 as usize;
        let slots = (BUDGET / header.cluster()).max(4);
        Tables {
            cluster_bits: header.cluster_bits,
            version: header.version,
            l1: GrowingList::new(entries),
            kept: GrowingList::new(entries),
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Grows the L1 table to `entries` entries.
    pub fn grow(&self, entries: usize) {
        self.l1.grow(entries);
        self.kept.grow(entries);
    }

    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Entries of an L2 table.
    pub fn entries(&self) -> u64 {
        self.cluster() / 8
    }

    /// The L1 entry for a byte of the disk, and the entry of its L2 table.
    pub fn indices(&self, offset: u64) -> (usize, usize) {
        let cluster = offset >> self.cluster_bits;
        ((cluster / self.entries()) as usize, (cluster % self.entries()) as usize)
    }

    /// Bytes from `offset` on that the same L2 table covers.
    pub fn left_in_table(&self, offset: u64) -> u64 {
        let covered = self.cluster() * self.entries();
        covered - offset % covered
    }

    /// The position of an L2 table, if there is one.
    pub fn l2_place(&self, index: usize) -> Option<u64> {
        let place = self.l1.get(index)?.load(Ordering::Acquire);
        (place != 0).then_some(place)
    }

    /// Sets the position of an L2 table.
    pub fn set_l2_place(&self, index: usize, place: u64) {
        if let Some(entry) = self.l1.get(index) {
            entry.store(place, Ordering::Release);
        }
    }

    /// An L2 table, if it is loaded.
    pub fn l2(&self, index: usize) -> Option<&[AtomicU64]> {
        let slot = self.kept.get(index)?.load(Ordering::Acquire);
        self.slots.get((slot as usize).checked_sub(1)?)?.get().map(|table| &**table)
    }

    /// Number of slots for L2 tables.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Forgets an L2 table. Its slot must not be used again before a grace period.
    pub fn forget(&self, index: usize) {
        if let Some(kept) = self.kept.get(index) {
            kept.store(0, Ordering::Release);
        }
    }

    /// Keeps an L2 table in an unused slot.
    pub fn keep(&self, slot: usize, index: usize, table: impl Iterator<Item = u64>) {
        let Some((room, kept)) = self.slots.get(slot).zip(self.kept.get(index)) else { return };
        let empty = || (0..self.entries()).map(|_| AtomicU64::new(0)).collect();
        let room = room.get_or_init(empty);
        room.iter().zip(table).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        kept.store(slot as u32 + 1, Ordering::Release);
    }

    /// The entry of an L2 table for a byte of the disk; `None`: the table is not loaded.
    pub fn entry(&self, offset: u64) -> Option<Entry> {
        let (index, entry) = self.indices(offset);
        if self.l2_place(index).is_none() {
            return Some(Entry::Unallocated);
        }
        let word = self.l2(index)?.get(entry)?.load(Ordering::Acquire);
        Some(Entry::parse(word, self.cluster_bits, self.version))
    }

    /// The kind of data at `offset`, and for how many of `most` bytes it holds, at least one.
    pub fn find(&self, offset: u64, most: u64) -> (Found, u64) {
        let most = most.min(self.left_in_table(offset));
        let (index, first) = self.indices(offset);
        if self.l2_place(index).is_none() {
            return (Found::Unallocated, most);
        }
        let Some(table) = self.l2(index) else { return (Found::Elsewhere, most) };
        let within = offset & (self.cluster() - 1);
        let mut entries = table.iter().skip(first).map(|entry| {
            Entry::parse(entry.load(Ordering::Acquire), self.cluster_bits, self.version)
        });
        let mut len = self.cluster() - within;
        let found = match entries.next() {
            Some(Entry::Data(place, own)) => {
                let follows = |(n, entry): (u64, Entry)| {
                    place
                        .checked_add((n + 1) << self.cluster_bits)
                        .is_some_and(|next| entry == Entry::Data(next, own))
                };
                len += self.run((0..).zip(entries), most.saturating_sub(len), follows);
                Found::Data(place + within, own)
            }
            Some(Entry::Zero(_)) => {
                let same = |(_, entry): (u64, Entry)| matches!(entry, Entry::Zero(_));
                len += self.run((0..).zip(entries), most.saturating_sub(len), same);
                Found::Zeros
            }
            Some(Entry::Unallocated) => {
                let same = |(_, entry): (u64, Entry)| entry == Entry::Unallocated;
                len += self.run((0..).zip(entries), most.saturating_sub(len), same);
                Found::Unallocated
            }
            Some(Entry::Compressed(..) | Entry::Damaged) | None => Found::Elsewhere,
        };
        (found, len.min(most))
    }

    /// Bytes of the following entries for which `same` holds, limited to `most`.
    fn run(
        &self,
        entries: impl Iterator<Item = (u64, Entry)>,
        most: u64,
        same: impl Fn((u64, Entry)) -> bool,
    ) -> u64 {
        let needed = most.div_ceil(self.cluster());
        let count = entries.take(needed as usize).take_while(|&entry| same(entry)).count();
        (count as u64) << self.cluster_bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        let header = Header {
            version: 3,
            cluster_bits: 9,
            bytes: 1 << 20,
            l1: (512, 32),
            refcount_table: (1024, 1),
            refcount_order: 4,
            snapshots: 0,
            incompatible: 0,
            autoclear: 0,
            backing: None,
        };
        Tables::new(&header)
    }

    #[test]
    fn entries_that_follow_each_other_are_one_range() {
        let tables = tables();
        assert_eq!(tables.find(100, 10_000), (Found::Unallocated, 10_000));
        tables.set_l2_place(0, 4096);
        assert_eq!(tables.find(100, 1000), (Found::Elsewhere, 1000));
        let data = |place: u64| place | COPIED;
        let table = [data(512), data(1024), data(4096), ZERO, 512 | ZERO, 0, 0, COMPRESSED | 1];
        tables.keep(0, 0, table.into_iter());
        assert_eq!(tables.find(100, 10_000), (Found::Data(612, true), 924));
        assert_eq!(tables.find(100, 500), (Found::Data(612, true), 500));
        assert_eq!(tables.find(1024, 10_000), (Found::Data(4096, true), 512));
        assert_eq!(tables.find(3 * 512 + 12, 10_000), (Found::Zeros, 1012));
        assert_eq!(tables.find(5 * 512, 10_000), (Found::Unallocated, 1024));
        assert_eq!(tables.find(7 * 512, 10_000), (Found::Elsewhere, 512));
        // The table ends after 64 clusters.
        assert_eq!(tables.find(63 * 512, 10_000).1, 512);
        tables.forget(0);
        assert_eq!(tables.find(0, 512).0, Found::Elsewhere);
    }

    #[test]
    fn entries_are_told_apart() {
        let parse = |entry| Entry::parse(entry, 16, 3);
        assert_eq!(parse(0x5_0000 | COPIED), Entry::Data(0x5_0000, true));
        assert_eq!(parse(0x5_0200), Entry::Damaged);
        assert_eq!(Entry::parse(1, 16, 2), Entry::Unallocated);
        // 62 - (16 - 8) bits of position.
        let compressed = COMPRESSED | (3 << 54) | 0x5_0010;
        assert_eq!(parse(compressed), Entry::Compressed(0x5_0010, 4 * 512 - 0x10));
    }
}
