//! Which frames of a burst go to the same queue: a stable partition by egress.
//!
//! Frames for one queue, and so those of each flow, keep their order.
//! [`mixed_burst`](crate::mixed_burst) delivers the groups.

use std::ops::Range;

use frame::FlowHasher;
use switch::Target;

use crate::action::Action;
use crate::burst::{BURST, Burst, Part};
use crate::cost::cost;
use crate::indirection_table::IndirectionTable;
use crate::route::{Route, Routes};

mod groups;
mod listing;

pub use groups::Group;
use groups::{Groups, MAX_GROUPS};
use listing::{Listing, buckets_of};

/// Shortest run of frames for one port for which a table of all its queues is set up. Setting the
/// table up costs as much as some frames, and where receivers alternate, each run is one frame.
const LONG_RUN: usize = 4;

/// The groups of the present burst, and their frames.
pub struct Partition {
    groups: Groups,
    /// The frames of each group, in their order: room for a whole burst for each.
    lists: Box<[u8; MAX_GROUPS * BURST]>,
    is_mixed: bool,
}

impl Default for Partition {
    fn default() -> Self {
        Partition {
            groups: Groups::default(),
            lists: Box::new([0; MAX_GROUPS * BURST]),
            is_mixed: false,
        }
    }
}

impl Partition {
    /// Finds out which frames of `burst`, which was not reordered, go to the same queue. Each
    /// frame's flow is charged for it. Returns how many frames, from the first on, have a group. If
    /// these are not all frames, the groups must not be used: the next frame may have to wait, is
    /// copied, or is dropped.
    #[inline]
    pub fn find(&mut self, burst: &Burst, routes: &Routes) -> usize {
        self.groups.clear();
        let (mut i, frames) = (0, burst.frames().len());
        let mut hasher = FlowHasher::default();
        while i < frames {
            let frame = burst.frame(i);
            let Action::Output(target) = frame.action else { return i };
            if self.add_to_port(i, target, frame.len) {
                i += 1;
                continue;
            }
            let Some(route) = routes.to(target.port) else { return i };
            if route.is_simple() {
                // The next look at the frame finds this group.
                let Some(group) = self.groups.find(*route.egress(burst, i).0, target) else {
                    return i;
                };
                self.groups.note_port(target, group);
                route.use_it();
                continue;
            }
            // Where receivers alternate, most runs are one frame.
            let end = if burst.goes_to(i + 1, target) { burst.run(i, target) } else { i + 1 };
            let run = i..end;
            let found = match route.indirection() {
                Some(table) if run.len() >= LONG_RUN => {
                    self.add_by_hash(burst, run, target, table, &mut hasher)
                }
                _ => self.add_each(burst, run, target, route, &mut hasher),
            };
            if found > 0 {
                route.use_it();
            }
            i += found;
            if i < end {
                return i;
            }
        }
        self.place();
        frames
    }

    /// Adds a frame of `len` bytes to the group of its port, if all frames of the port go to the
    /// same queue and one did before.
    #[inline(always)]
    fn add_to_port(&mut self, i: usize, target: Target, len: u32) -> bool {
        let Some((index, group)) = self.groups.of_port(target) else { return false };
        self.lists[(index * BURST + group.frames.end) % (MAX_GROUPS * BURST)] = i as u8;
        group.frames.end += 1;
        group.bytes += u64::from(len);
        true
    }

    /// Adds frames for one port, whose queues are chosen by the flow hashes. Returns how many have
    /// a group.
    #[inline(always)]
    fn add_by_hash(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        target: Target,
        table: &IndirectionTable,
        hasher: &mut FlowHasher,
    ) -> usize {
        let Partition { groups, lists, .. } = self;
        let (first, (frames, heads)) = (run.start, burst.fetched(run));
        let buckets = buckets_of(frames, heads, hasher);
        let mut listing = Listing::new();
        let mut i = 0;
        loop {
            i += listing.add(&frames[i..], &buckets[i..], first + i, table, lists);
            if i >= frames.len() {
                break;
            }
            let queue = table.buckets().0[usize::from(buckets[i])];
            let found = groups.find(*table.egress_to(queue), target);
            let Some(group) = found.filter(|group| listing.is_free(*group)) else { break };
            listing.begin(queue, group, groups.all()[group].frames.end);
        }
        listing.finish(groups.all_mut());
        i
    }

    /// As [`add_by_hash`](Self::add_by_hash), for any route.
    fn add_each(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        target: Target,
        route: &Route,
        hasher: &mut FlowHasher,
    ) -> usize {
        for i in run.clone() {
            let (egress, charged) = route.egress_by(burst, i, hasher);
            let frame = burst.frame(i);
            if route.over_mtu(frame) {
                return i - run.start;
            }
            let Some(index) = self.groups.find(*egress, target) else { return i - run.start };
            if let Some(charged) = charged {
                charged.set(charged.get() + cost(1, frame.len.into()));
            }
            let group = &mut self.groups.all_mut()[index];
            self.lists[index * BURST + group.frames.end] = i as u8;
            group.frames.end += 1;
            group.bytes += u64::from(frame.len);
        }
        run.len()
    }

    /// Whether frames of different groups are mixed.
    #[inline]
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// How many groups there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.groups.all().len()
    }

    /// Group `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Group> {
        self.groups.all().get(index)
    }

    /// Computes where each group begins, from the groups' lengths, and whether the burst is mixed.
    /// A burst is not mixed if each group already lies at its place.
    #[inline]
    fn place(&mut self) {
        let mut next = 0;
        self.is_mixed = false;
        for (group, list) in self.groups.all_mut().iter_mut().zip(self.lists.as_chunks().0) {
            let list: &[u8; BURST] = list;
            let count = group.frames.len();
            group.frames = next..next + count;
            self.is_mixed |= count > 0 && usize::from(list[count - 1]) != next + count - 1;
            next += count;
        }
    }

    /// Brings the frames of `burst` into the order of their groups.
    #[inline]
    pub fn reorder(&self, burst: &mut Burst) {
        let lists = self.lists.as_chunks().0;
        burst.reorder(self.groups.all().iter().zip(lists).map(|(group, list)| {
            let Group { frames, bytes, .. } = group;
            (list, Part { frames: frames.clone(), bytes: *bytes })
        }));
    }
}
