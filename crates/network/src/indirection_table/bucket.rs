//! Flows with the same first bits of their hash, which go to the same queue.

use super::BUCKETS;

/// One bucket.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// Cost of the bucket's frames in the last interval.
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
}
