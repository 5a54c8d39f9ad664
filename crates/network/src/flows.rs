//! The flows that a queue carries, distinguished by their hashes while a profile is taken.
//!
//! Only the queue's worker writes; all threads may read. A hostile sender can fill the few places
//! with a flood of flows: each frame then costs a look at every place, while a profile is taken.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most flows of TCP or UDP that are distinguished.
pub const MOST: usize = 64;

/// Flows of a queue in one direction.
#[derive(Debug)]
pub struct Flows {
    /// The number of the profile request with which counting began.
    since: AtomicU64,
    /// The flows' hashes, by open addressing with linear probing; zero is an empty place.
    seen: [AtomicU32; MOST],
}

impl Default for Flows {
    fn default() -> Self {
        Flows { since: AtomicU64::new(0), seen: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl Flows {
    /// The number of flows since profile request `since`, at most [`MOST`].
    pub fn count(&self, since: u64) -> usize {
        if self.since.load(Relaxed) < since {
            return 0;
        }
        self.seen.iter().filter(|seen| seen.load(Relaxed) != 0).count()
    }

    /// Notes flows with these hashes; profiling began with request `since`.
    pub(crate) fn note(&self, since: u64, hashes: impl Iterator<Item = u32>) {
        if self.since.load(Relaxed) != since {
            self.seen.iter().for_each(|seen| seen.store(0, Relaxed));
            self.since.store(since, Relaxed);
        }
        hashes.for_each(|hash| self.add(hash));
    }

    fn add(&self, hash: u32) {
        let hash = hash.max(1);
        let places = (0..MOST).map(|step| &self.seen[(hash as usize).wrapping_add(step) % MOST]);
        for place in places {
            match place.load(Relaxed) {
                0 => return place.store(hash, Relaxed),
                known if known == hash => return,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_told_apart_as_far_as_there_is_room() {
        let flows = Flows::default();
        for hash in [7, 7 + MOST as u32, 7, 0, 1] {
            flows.add(hash);
        }
        assert_eq!(flows.count(0), 3, "two share a place, and nought is taken for one");
        (0..1000).for_each(|hash| flows.add(hash * 7919));
        assert_eq!(flows.count(0), MOST);
    }

    #[test]
    fn each_profile_begins_with_none() {
        let flows = Flows::default();
        flows.note(3, [5].into_iter());
        assert_eq!((flows.count(2), flows.count(3), flows.count(4)), (1, 1, 0));
        flows.note(3, [5, 6].into_iter());
        assert_eq!(flows.count(3), 2);
        flows.note(4, [].into_iter());
        assert_eq!(flows.count(4), 0);
    }
}
