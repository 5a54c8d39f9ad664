//! The entries of a packed ring's record: copies of the descriptors in flight.
//!
//! A packed ring's descriptors are overwritten by used ones while their requests are in flight, so
//! a record has copies. Free entries form a list. A request of `n` descriptors takes the first `n`
//! entries of it, and is known by the first of those. In an entry: le8 in flight, padding, le16
//! next in the list, le16 last of the request, le16 number of its descriptors, le64 counter, and
//! the descriptor: le16 id, le16 flags, le32 length, le64 address.

use super::{NEXT_AT, PACKED_LEN, RingRecord};
use crate::packed::Desc;

/// le16 first free entry, and the one before the last change.
const FREE_AT: u64 = 12;
const OLD_FREE_AT: u64 = 14;

const HEADER: u64 = PACKED_LEN[0];
const ENTRY: u64 = PACKED_LEN[1];
/// In an entry.
const IN_FLIGHT_AT: u64 = 0;
const LAST_AT: u64 = 4;
const COUNT_AT: u64 = 6;
const COUNTER_AT: u64 = 8;
const DESC_AT: u64 = 16;

fn entry(at: u16) -> u64 {
    HEADER + ENTRY * u64::from(at)
}

/// A request in flight, according to the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) counter: u64,
    /// Its entries, in the order of its descriptors.
    pub(crate) entries: Vec<u16>,
}

/// The state of a ring according to its record.
#[derive(Debug)]
pub(crate) struct PackedState {
    /// The requests in flight, in the order in which they were taken.
    pub(crate) in_flight: Vec<Recorded>,
    /// The free entries, in the order of the list.
    pub(crate) free: Vec<u16>,
    /// Requests were recorded at some time.
    pub(crate) was_used: bool,
}

// A store fails only if the front-end has truncated the record, and then only the record is lost.
impl RingRecord {
    /// Records request number `counter`: its descriptors `descs` are stored in `entries`, and
    /// `free` is the first free entry behind those.
    pub(crate) fn begin_entries(&self, entries: &[u16], descs: &[Desc], counter: u64, free: u16) {
        let (Some(&first), Some(&last)) = (entries.first(), entries.last()) else { return };
        for (&at, desc) in entries.iter().zip(descs) {
            let word = u64::from(desc.id) | u64::from(desc.flags) << 16 | u64::from(desc.len) << 32;
            let _ = self.store_u64(entry(at) + DESC_AT, word);
            let _ = self.store_u64(entry(at) + DESC_AT + 8, desc.addr);
        }
        let _ = self.store_u16(entry(first) + COUNT_AT, entries.len() as u16);
        let _ = self.store_u16(entry(first) + LAST_AT, last);
        let _ = self.store_u64(entry(first) + COUNTER_AT, counter);
        let _ = self.store_u16(entry(first) + IN_FLIGHT_AT, 1);
        let _ = self.store_u16(FREE_AT, free);
        let _ = self.store_u16(OLD_FREE_AT, free);
    }

    /// Puts the entries from `first` to `last` at the front of the list, before `free`. The change
    /// is valid once [`commit_free`](Self::commit_free) was called, or the ring shows that it
    /// should have been.
    pub(crate) fn free_entries(&self, first: u16, last: u16, free: u16) {
        let _ = self.store_u16(entry(last) + NEXT_AT, free);
        let _ = self.store_u16(FREE_AT, first);
    }

    /// Records that the request has been published as used.
    pub(crate) fn end_entry(&self, first: u16) {
        let _ = self.store_u16(entry(first) + IN_FLIGHT_AT, 0);
    }

    /// Records that the list of free entries begins at `free`.
    pub(crate) fn commit_free(&self, free: u16) {
        let _ = self.store_u16(OLD_FREE_AT, free);
    }

    /// The descriptor in an entry.
    pub(crate) fn desc(&self, at: u16) -> Option<Desc> {
        let word = self.load_u64(entry(at) + DESC_AT)?;
        let addr = self.load_u64(entry(at) + DESC_AT + 8)?;
        let (id, flags) = (word as u16, (word >> 16) as u16);
        Some(Desc { addr, len: (word >> 32) as u32, id, flags })
    }

    /// Reads the record of a ring of `size`. `published`: the last batch was published, so its
    /// change of the list is valid. `None`: the record contradicts itself.
    pub(crate) fn packed_state(&self, size: u16, published: bool) -> Option<PackedState> {
        let head = self.load_u16(if published { FREE_AT } else { OLD_FREE_AT })?;
        let mut seen = vec![false; usize::from(size)];
        let mut free = Vec::new();
        let mut at = head;
        while at < size {
            if std::mem::replace(seen.get_mut(usize::from(at))?, true) {
                return None;
            }
            free.push(at);
            at = self.load_u16(entry(at) + NEXT_AT)?;
        }
        free.iter().for_each(|at| self.end_entry(*at));
        let _ = self.store_u16(FREE_AT, head);
        let _ = self.store_u16(OLD_FREE_AT, head);
        let mut in_flight = Vec::new();
        for first in 0..size {
            let begins = self.load_u16(entry(first) + IN_FLIGHT_AT)? & 0xff != 0;
            if begins {
                in_flight.push(self.recorded(first, &mut seen)?);
            }
        }
        in_flight.sort_unstable_by_key(|recorded| recorded.counter);
        let counters = (0..size).filter_map(|at| self.load_u64(entry(at) + COUNTER_AT));
        let was_used = counters.into_iter().any(|counter| counter != 0);
        seen.iter().all(|seen| *seen).then_some(PackedState { in_flight, free, was_used })
    }

    /// The request whose first entry is `first`. Each entry belongs to one request.
    fn recorded(&self, first: u16, seen: &mut [bool]) -> Option<Recorded> {
        let count = self.load_u16(entry(first) + COUNT_AT)?;
        let mut entries = Vec::new();
        let mut at = first;
        for _ in 0..count {
            if std::mem::replace(seen.get_mut(usize::from(at))?, true) {
                return None;
            }
            entries.push(at);
            at = self.load_u16(entry(at) + NEXT_AT)?;
        }
        let is_whole = entries.last() == Some(&self.load_u16(entry(first) + LAST_AT)?);
        let counter = self.load_u64(entry(first) + COUNTER_AT)?;
        is_whole.then_some(Recorded { counter, entries })
    }
}
