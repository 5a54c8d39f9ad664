//! Flows with the same first bits of their hash, which go to the same queue.

use std::cell::Cell;

use super::BUCKETS;

/// One bucket.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// Cost of the bucket's frames in this interval and in the one before.
    pub cost: Cell<u64>,
    pub before: u64,
    /// How often it has changed queues, and until which interval it stays.
    pub moves: u32,
    pub stays_until: u32,
}

impl Bucket {
    /// A table with this bucket in all places.
    pub fn all(bucket: Bucket) -> Box<[Bucket; BUCKETS]> {
        Box::new(std::array::from_fn(|_| bucket.clone()))
    }

    pub fn is_idle(&self) -> bool {
        self.cost.get() == 0 && self.before == 0
    }

    pub fn may_move(&self, interval: u32) -> bool {
        self.cost.get() > 0 && self.stays_until <= interval
    }
}
