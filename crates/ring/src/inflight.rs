//! In-flight records: positions of rings in memory that outlives this process.
//!
//! vhost-user's front-ends can keep such memory for the back-end that comes next (QEMU's
//! docs/interop/vhost-user.rst, "Inflight I/O tracking", has the layouts and the order of stores).
//! Rings of frames complete in order, so their part of a record is the used position; the entries
//! for single descriptors stay empty. Chains in flight lie in the ring behind that position, and
//! are taken from there again. Rings of requests ([`RequestRing`](crate::RequestRing)) use all of a
//! record.
//!
//! The memory belongs to the front-end, which may write anything into it at any time. The caller
//! checks all values that are read, and a process never reads values that it wrote itself.

mod packed;
mod split;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::notify::Place;
use crate::region::Memory;

pub(crate) use packed::Recorded;

/// Version of the layouts.
const VERSION: u16 = 1;

/// Offsets of fields that both layouts have: le64 features, le16 version, le16 number of entries.
const FEATURES_AT: u64 = 0;
const VERSION_AT: u64 = 8;
const ENTRIES_AT: u64 = 10;
/// Split: le16 used index.
const USED_INDEX_AT: u64 = 14;
/// Packed: le16 used index, le16 old used index, u8 used wrap counter, u8 old one, and padding.
const POSITIONS_AT: u64 = 16;

/// Bytes of a record before its entries, and of each entry.
const SPLIT_LEN: [u64; 2] = [16, 16];
const PACKED_LEN: [u64; 2] = [32, 32];
/// Packed: in an entry, le16 number of the next free one.
const NEXT_AT: u64 = 2;

/// The record of one ring.
#[derive(Clone, Debug)]
pub struct RingRecord {
    memory: Arc<Memory>,
    at: u64,
}

impl RingRecord {
    /// Bytes of a record of a ring of `size`.
    pub const fn len(packed: bool, size: u16) -> u64 {
        let [header, entry] = if packed { PACKED_LEN } else { SPLIT_LEN };
        header + entry * size as u64
    }

    /// Makes a record in memory that is still zero, at address `at`, a multiple of 8. `None`: the
    /// record would not lie wholly within the memory.
    pub fn create(memory: Arc<Memory>, at: u64, packed: bool, size: u16) -> Option<RingRecord> {
        let record = RingRecord { memory, at };
        if packed {
            let [header, entry] = PACKED_LEN;
            for i in 0..size {
                let next = header + entry * u64::from(i) + NEXT_AT;
                record.store_u16(next, i + 1)?;
            }
        }
        record.store_u16(ENTRIES_AT, size)?;
        record.store_u16(VERSION_AT, VERSION)?;
        Some(record)
    }

    /// The record at address `at`, which a back-end has made for a ring of `size`. `None`: there is
    /// no valid record, or it is for another kind of ring.
    pub fn open(memory: Arc<Memory>, at: u64, size: u16) -> Option<RingRecord> {
        let record = RingRecord { memory, at };
        let features = record.memory.atomic_u64(at + FEATURES_AT).ok()?.load(Ordering::Relaxed);
        let header = (features, record.load_u16(VERSION_AT)?, record.load_u16(ENTRIES_AT)?);
        (header == (0, VERSION, size)).then_some(record)
    }

    /// Split: records the used index.
    #[inline]
    pub(crate) fn set_used_index(&self, index: u16) {
        // A front-end that truncates the memory loses only the record.
        let _ = self.store_u16(USED_INDEX_AT, index);
    }

    /// Packed: records a step of the ring from `old` to `new`. Both are equal once the step is
    /// done.
    #[inline]
    pub(crate) fn set_positions(&self, old: Place, new: Place) {
        let word = u64::from(new.index)
            | u64::from(old.index) << 16
            | u64::from(new.wrap) << 32
            | u64::from(old.wrap) << 40;
        let _ = self.store_u64(POSITIONS_AT, word);
    }

    /// Packed: the positions that were recorded last, old and new, unchecked.
    pub(crate) fn positions(&self) -> Option<[Place; 2]> {
        let word = self.memory.atomic_u64(self.at + POSITIONS_AT).ok()?.load(Ordering::Acquire);
        let place = |index: u64, wrap: u64| Place { index: index as u16, wrap: wrap & 1 != 0 };
        Some([place(word >> 16, word >> 40), place(word, word >> 32)])
    }

    fn load_u16(&self, offset: u64) -> Option<u16> {
        Some(self.memory.atomic_u16(self.at + offset).ok()?.load(Ordering::Relaxed))
    }

    #[inline]
    fn store_u16(&self, offset: u64, value: u16) -> Option<()> {
        #[cfg(test)]
        if !crate::kill::survives() {
            return None;
        }
        self.memory.atomic_u16(self.at + offset).ok()?.store(value, Ordering::Release);
        Some(())
    }

    fn load_u64(&self, offset: u64) -> Option<u64> {
        Some(self.memory.atomic_u64(self.at + offset).ok()?.load(Ordering::Relaxed))
    }

    #[inline]
    fn store_u64(&self, offset: u64, value: u64) -> Option<()> {
        #[cfg(test)]
        if !crate::kill::survives() {
            return None;
        }
        self.memory.atomic_u64(self.at + offset).ok()?.store(value, Ordering::Release);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [Place; 2] = [Place { index: 5, wrap: false }, Place { index: 9, wrap: true }];

    fn memory() -> Arc<Memory> {
        Arc::new(Memory::anonymous(1 << 16).unwrap())
    }

    /// The structures of the specification, with the padding of a C compiler.
    #[test]
    fn layouts_are_those_of_the_specification() {
        assert_eq!(RingRecord::len(false, 256), 16 + 256 * 16);
        assert_eq!(RingRecord::len(true, 256), 32 + 256 * 32);
        let memory = memory();
        let split = RingRecord::create(memory.clone(), 64, false, 4).unwrap();
        split.set_used_index(0x1234);
        let packed = RingRecord::create(memory.clone(), 1024, true, 4).unwrap();
        packed.set_positions(PLACES[0], PLACES[1]);
        let mut bytes = [0; 32];
        memory.read(64, &mut bytes[..16]).unwrap();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0x34, 0x12]);
        memory.read(1024, &mut bytes).unwrap();
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..], [9, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for i in 0..4u8 {
            memory.read(1024 + 32 + 32 * u64::from(i), &mut bytes[..4]).unwrap();
            assert_eq!(bytes[..4], [0, 0, i + 1, 0]);
        }
    }

    #[test]
    fn a_record_is_opened_only_as_what_it_is() {
        let memory = memory();
        RingRecord::create(memory.clone(), 0, true, 8).unwrap().set_positions(PLACES[0], PLACES[1]);
        let record = RingRecord::open(memory.clone(), 0, 8).unwrap();
        assert_eq!(record.positions(), Some(PLACES));
        assert!(RingRecord::open(memory.clone(), 0, 7).is_none());
        assert!(RingRecord::open(memory.clone(), 4096, 8).is_none());
        assert!(RingRecord::open(memory.clone(), (1 << 16) - 8, 8).is_none());
        memory.write(0, &[1]).unwrap();
        assert!(RingRecord::open(memory, 0, 8).is_none());
    }
}
