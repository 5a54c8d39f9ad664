//! The entries of a split ring's record: one for each descriptor, used for those that begin a
//! request.
//!
//! le8 in flight, padding, le16 next of the last batch, le64 counter.

use super::{RingRecord, SPLIT_LEN};

/// le16 head of the last batch that was completed.
const LAST_BATCH_AT: u64 = 12;

const HEADER: u64 = SPLIT_LEN[0];
const ENTRY: u64 = SPLIT_LEN[1];
/// In an entry.
const IN_FLIGHT_AT: u64 = 0;
const NEXT_AT: u64 = 6;
const COUNTER_AT: u64 = 8;

fn entry(head: u16) -> u64 {
    HEADER + ENTRY * u64::from(head)
}

// A store fails only if the front-end has truncated the record, and then only the record is lost.
impl RingRecord {
    /// Records that the request that begins at descriptor `head` is in flight, as number `counter`.
    pub(crate) fn begin_head(&self, head: u16, counter: u64) {
        let _ = self.store_u64(entry(head) + COUNTER_AT, counter);
        let _ = self.store_u16(entry(head) + IN_FLIGHT_AT, 1);
    }

    /// Records that the request is about to be published as used, with others of its batch.
    pub(crate) fn link_head(&self, head: u16) {
        let last = self.load_u16(LAST_BATCH_AT).unwrap_or_default();
        let _ = self.store_u16(entry(head) + NEXT_AT, last);
        let _ = self.store_u16(LAST_BATCH_AT, head);
    }

    /// Records that the request has been published as used.
    pub(crate) fn end_head(&self, head: u16) {
        let _ = self.store_u16(entry(head) + IN_FLIGHT_AT, 0);
    }

    /// Counters and heads of the requests in flight of a ring of `size` whose used index is `used`,
    /// in the order in which they were taken. A batch that was published, but not removed from the
    /// record yet, is removed.
    pub(crate) fn heads_in_flight(&self, size: u16, used: u16) -> Vec<(u64, u16)> {
        let batch = used.wrapping_sub(self.used_index().unwrap_or(used));
        let mut head = self.load_u16(LAST_BATCH_AT).unwrap_or(size);
        // A record that was never written may name any used index, since its entries are empty.
        for _ in 0..batch.min(size) {
            if head >= size {
                break;
            }
            self.end_head(head);
            head = self.load_u16(entry(head) + NEXT_AT).unwrap_or(size);
        }
        let is_in_flight = |head: &u16| {
            self.load_u16(entry(*head) + IN_FLIGHT_AT).is_some_and(|word| word & 0xff != 0)
        };
        let counter = |head| (self.load_u64(entry(head) + COUNTER_AT).unwrap_or_default(), head);
        let mut all: Vec<_> = (0..size).filter(is_in_flight).map(counter).collect();
        all.sort_unstable();
        all
    }

    fn used_index(&self) -> Option<u16> {
        self.load_u16(super::USED_INDEX_AT)
    }
}
