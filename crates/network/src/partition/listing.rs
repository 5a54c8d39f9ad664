//! Lists the frames of one port by group, as their flow hashes choose.
//!
//! The loops over frames call nothing, so the compiler keeps all that they need in registers.

use frame::{FlowHasher, Head};

use super::groups::{Group, MAX_GROUPS};
use crate::burst::{BURST, Frame};
use crate::cost::cost;
use crate::indirection_table::IndirectionTable;

/// The group of queues that have none yet.
const NO_GROUP: u8 = u8::MAX;

/// The place of the next frame of a group that is no queue's.
const NOWHERE: u16 = u16::MAX;

/// The groups of a port's queues, and what is added to them.
pub struct Listing {
    /// For each queue, its group.
    groups: [u8; 1 + u8::MAX as usize],
    /// For each group, where its next frame is listed.
    next: [u16; MAX_GROUPS],
    /// For each group, the cost of the frames that were added.
    costs: [u64; MAX_GROUPS],
}

impl Listing {
    /// No queue has a group.
    #[inline]
    pub fn new() -> Self {
        let groups = [NO_GROUP; 1 + u8::MAX as usize];
        Listing { groups, next: [NOWHERE; MAX_GROUPS], costs: [0; MAX_GROUPS] }
    }

    /// Whether no queue has the group. The queues of a table are distinct, so none has the group of
    /// another.
    #[inline]
    pub fn is_free(&self, group: usize) -> bool {
        self.next[group] == NOWHERE
    }

    /// From now on, frames for `queue` are added to a group, which has `frames` frames already.
    #[inline]
    pub fn begin(&mut self, queue: u8, group: usize, frames: usize) {
        self.groups[usize::from(queue)] = group as u8;
        self.next[group] = (group * BURST + frames) as u16;
    }

    /// Lists `frames`, up to one whose queue has no group yet. `first` is the number of the first
    /// one in the burst, and `buckets` has the bucket of each. Each frame's bucket is charged for
    /// it. Returns how many frames were listed.
    #[inline(never)]
    pub fn add(
        &mut self,
        frames: &[Frame],
        buckets: &[u8],
        first: usize,
        table: &IndirectionTable,
        lists: &mut [u8; MAX_GROUPS * BURST],
    ) -> usize {
        let (queues, charged) = table.buckets();
        let mut i = first;
        for (frame, bucket) in frames.iter().zip(buckets) {
            let bucket = usize::from(*bucket);
            let group = usize::from(self.groups[usize::from(queues[bucket])]);
            if group >= MAX_GROUPS {
                break;
            }
            let cost = cost(1, frame.len.into());
            charged[bucket].set(charged[bucket].get() + cost);
            self.costs[group] += cost;
            let at = usize::from(self.next[group]) % (MAX_GROUPS * BURST);
            lists[at] = i as u8;
            self.next[group] = at as u16 + 1;
            i += 1;
        }
        i - first
    }

    /// Adds what was listed to the groups.
    #[inline]
    pub fn finish(&self, groups: &mut [Group]) {
        for (number, (group, next)) in groups.iter_mut().zip(self.next).enumerate() {
            if next != NOWHERE {
                let end = usize::from(next) - number * BURST;
                group.bytes += self.costs[number] - cost(end - group.frames.end, 0);
                group.frames.end = end;
            }
        }
    }
}

/// The buckets of frames, which have these heads.
#[inline]
pub fn buckets_of(frames: &[Frame], heads: &[Head], hasher: &mut FlowHasher) -> [u8; BURST] {
    let mut buckets = [0; BURST];
    let mut i = 0;
    loop {
        i += hash_plain(&frames[i..], &heads[i..], &mut buckets[i..], hasher);
        let (Some(frame), Some(head), Some(bucket)) =
            (frames.get(i), heads.get(i), buckets.get_mut(i))
        else {
            return buckets;
        };
        *bucket = IndirectionTable::bucket(hasher.hash(&frame.headers, head));
        i += 1;
    }
}

/// Finds the buckets of frames, up to one that is not plain. Returns how many were found.
#[inline(never)]
fn hash_plain(
    frames: &[Frame],
    heads: &[Head],
    buckets: &mut [u8],
    hasher: &mut FlowHasher,
) -> usize {
    let mut count = 0;
    for ((frame, head), bucket) in frames.iter().zip(heads).zip(buckets) {
        let Some(hash) = hasher.hash_plain(&frame.headers, head) else { break };
        *bucket = IndirectionTable::bucket(hash);
        count += 1;
    }
    count
}
