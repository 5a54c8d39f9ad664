//! Generations: a check, without a lock, whether a cached verdict is still valid.
//!
//! A verdict depends on the configuration, on the port of its destination and on the port of its
//! source. There is one counter for the configuration and a fixed number of counters (buckets) for
//! stations. Every change of the table increments the bucket of the station concerned. A verdict
//! carries the values under which it was made, and is valid while they are unchanged. So a new
//! station invalidates only the verdicts that share its bucket, and workers ask the switch for
//! those again.
//!
//! Bumps happen inside `&mut Switch` after the change. Stamps are also taken inside `&mut Switch`,
//! so a stamp never combines the old table with the new generation. A reader that sees the old
//! value during a change acts as if it had come just before the change.
//!
//! Counters wrap at 2^32. A stale verdict would pass as valid only if it was not looked at during
//! exactly 2^32 changes of its bucket.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::station::Station;

/// Number of station buckets; a power of two.
const BUCKETS: usize = 4096;

/// The counters of one switch, shared by all who cache its verdicts.
pub struct Generations {
    config: AtomicU32,
    // Keyed per instance: a guest cannot choose addresses that fall into the bucket of a certain
    // station, to slow that station down.
    keys: RandomState,
    buckets: Box<[AtomicU32; BUCKETS]>,
}

/// The generations that a verdict was made under. 16 bytes, to fit into a cache entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    config: u32,
    src: u32,
    dst: u32,
    src_at: u16,
    dst_at: u16,
}

impl Generations {
    pub(crate) fn new() -> Self {
        Generations {
            config: AtomicU32::new(0),
            keys: RandomState::new(),
            buckets: Box::new([const { AtomicU32::new(0) }; BUCKETS]),
        }
    }

    /// Whether a verdict with this stamp is still valid. Three loads, no lock.
    #[inline]
    pub fn holds(&self, stamp: &Stamp) -> bool {
        stamp.config == self.config.load(Ordering::Acquire)
            && stamp.dst == self.bucket(stamp.dst_at).load(Ordering::Acquire)
            && stamp.src == self.bucket(stamp.src_at).load(Ordering::Acquire)
    }

    /// The present generations of a source and a destination.
    pub(crate) fn stamp(&self, src: Station, dst: Station) -> Stamp {
        let (src_at, dst_at) = (self.place(src), self.place(dst));
        Stamp {
            config: self.config.load(Ordering::Acquire),
            src: self.bucket(src_at).load(Ordering::Acquire),
            dst: self.bucket(dst_at).load(Ordering::Acquire),
            src_at,
            dst_at,
        }
    }

    /// Invalidates verdicts about a station that was learned, moved or forgotten.
    pub(crate) fn bump(&self, station: Station) {
        self.bucket(self.place(station)).fetch_add(1, Ordering::Release);
    }

    /// Invalidates all earlier verdicts, because the configuration changed.
    pub(crate) fn bump_all(&self) {
        self.config.fetch_add(1, Ordering::Release);
    }

    fn place(&self, station: Station) -> u16 {
        (self.keys.hash_one(station) % BUCKETS as u64) as u16
    }

    #[inline]
    fn bucket(&self, at: u16) -> &AtomicU32 {
        &self.buckets[at as usize % BUCKETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vlan::Network;
    use frame::Mac;

    fn station(last: u8) -> Station {
        Station { network: Network::UNTAGGED, mac: Mac([2, 0, 0, 0, 0, last]) }
    }

    #[test]
    fn a_stamp_holds_until_one_of_its_three_counters_moves() {
        let generations = Generations::new();
        let fresh = || generations.stamp(station(1), station(2));

        let stamp = fresh();
        assert!(generations.holds(&stamp));
        generations.bump(station(1));
        assert!(!generations.holds(&stamp));

        let stamp = fresh();
        assert!(generations.holds(&stamp));
        generations.bump(station(2));
        assert!(!generations.holds(&stamp));

        let stamp = fresh();
        generations.bump_all();
        assert!(!generations.holds(&stamp));
        assert!(generations.holds(&fresh()));
    }

    #[test]
    fn a_bump_leaves_other_stations_alone() {
        let generations = Generations::new();
        let stamps: Vec<_> = (10..110).map(|n| generations.stamp(station(n), station(n))).collect();
        generations.bump(station(1));
        let broken = stamps.iter().filter(|stamp| !generations.holds(stamp)).count();
        assert!(broken < 5, "{broken} of 100 verdicts fell with one unrelated station");
    }

    #[test]
    fn a_stamp_is_small() {
        assert_eq!(size_of::<Stamp>(), 16);
    }
}
