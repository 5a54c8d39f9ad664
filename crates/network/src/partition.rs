//! Which frames of a burst go to the same queue: a stable partition by egress.
//!
//! Frames for one queue, and so those of each flow, keep their order.
//! [`mixed_burst`](crate::mixed_burst) delivers the groups.

use std::ops::Range;

use frame::{FlowHasher, TagEdit};
use switch::Target;

use crate::action::Action;
use crate::burst::{BURST, Burst, MAX_PARTS, Part};
use crate::cost::cost;
use crate::egress::Egress;
use crate::indirection_table::IndirectionTable;
use crate::route::{Route, Routes};

/// Most groups of a burst. A burst for more queues stays in order.
const MAX_GROUPS: usize = MAX_PARTS;

/// Shortest run of frames for one port for which a table of all its queues is set up. Setting the
/// table up costs as much as some frames, and where receivers alternate, each run is one frame.
const LONG_RUN: usize = 4;

/// The place of frames for queues that have no group yet.
const NOWHERE: u16 = u16::MAX;

/// The key of a group: a queue and a port in one number, and the change of tags.
type GroupKey = (u64, TagEdit);

/// The bit that marks queues of other workers, in the number before the port is appended.
const REMOTE: u64 = 1 << 47;

/// Frames of a burst, behind each other, that go to the same queue, for the same port.
#[derive(Clone, Debug)]
pub struct Group {
    key: GroupKey,
    /// The port, and the change of the frames' tags.
    pub target: Target,
    /// The queue.
    pub egress: Egress,
    /// The frames.
    pub frames: Range<usize>,
    /// Their bytes.
    bytes: u64,
}

/// The groups of the present burst.
pub struct Partition {
    groups: Vec<Group>,
    /// The frames of each group, in their order: room for a whole burst for each.
    lists: Box<[u8; MAX_GROUPS * BURST]>,
    is_mixed: bool,
}

impl Default for Partition {
    fn default() -> Self {
        let (groups, lists) = (Vec::with_capacity(MAX_GROUPS), Box::new([0; MAX_GROUPS * BURST]));
        Partition { groups, lists, is_mixed: false }
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
        while i < frames {
            let Action::Output(target) = burst.frame(i).action else { return i };
            let Some(route) = routes.to(target.port) else { return i };
            let run = i..burst.run(i, target);
            let end = run.end;
            let found = match route.indirection() {
                Some(table) if run.len() >= LONG_RUN => self.add_by_hash(burst, run, target, table),
                _ => self.add_each(burst, run, target, route),
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

    /// Adds frames for one port, whose queues are chosen by the flow hashes. Returns how many have
    /// a group.
    #[inline(always)]
    fn add_by_hash(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        target: Target,
        table: &IndirectionTable,
    ) -> usize {
        let Partition { groups, lists, .. } = self;
        let lists = &mut **lists;
        // For each queue, where its next frame is listed; and for each group, its queue.
        let (mut next, mut queues) = ([NOWHERE; 1 + u8::MAX as usize], [None; MAX_GROUPS]);
        let mut bytes = [0; 1 + u8::MAX as usize];
        let mut hasher = FlowHasher::default();
        let mut i = run.start;
        for (frame, head) in burst.fetched(run.clone()) {
            let (queue, charged) = table.queue(hasher.hash(&frame.headers, head.as_slice()));
            let place = &mut next[usize::from(queue)];
            if *place == NOWHERE {
                let found = find_group(groups, *table.egress_to(queue), target);
                // The queues of a table are distinct, so no other queue has this group.
                let Some(group) = found.filter(|group| queues[*group].is_none()) else { break };
                *place = (group * BURST + groups[group].frames.end) as u16;
                queues[group] = Some(queue);
            }
            charged.set(charged.get() + cost(1, frame.len.into()));
            bytes[usize::from(queue)] += frame.len;
            lists[usize::from(*place) % (MAX_GROUPS * BURST)] = i as u8;
            *place += 1;
            i += 1;
        }
        for (number, (group, queue)) in groups.iter_mut().zip(&queues).enumerate() {
            if let Some(queue) = *queue {
                group.frames.end = usize::from(next[usize::from(queue)]) - number * BURST;
                group.bytes += u64::from(bytes[usize::from(queue)]);
            }
        }
        i - run.start
    }

    /// As [`add_by_hash`](Self::add_by_hash), for any route.
    fn add_each(
        &mut self,
        burst: &Burst,
        run: Range<usize>,
        target: Target,
        route: &Route,
    ) -> usize {
        for i in run.clone() {
            let (egress, charged) = route.egress(burst, i);
            let frame = burst.frame(i);
            if route.over_mtu(frame) {
                return i - run.start;
            }
            let Some(group) = find_group(&mut self.groups, *egress, target) else {
                return i - run.start;
            };
            if let Some(charged) = charged {
                charged.set(charged.get() + cost(1, frame.len.into()));
            }
            let Group { frames: Range { end, .. }, bytes, .. } = &mut self.groups[group];
            self.lists[group * BURST + *end] = i as u8;
            *end += 1;
            *bytes += u64::from(frame.len);
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
        self.groups.len()
    }

    /// Group `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Group> {
        self.groups.get(index)
    }

    /// Computes where each group begins, from the groups' lengths, and whether the burst is mixed.
    /// A burst is not mixed if each group already lies at its place.
    #[inline]
    fn place(&mut self) {
        let mut next = 0;
        self.is_mixed = false;
        for (group, list) in self.groups.iter_mut().zip(self.lists.as_chunks().0) {
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
        burst.reorder(self.groups.iter().zip(lists).map(|(group, list)| {
            let Group { frames, bytes, .. } = group;
            (list, Part { frames: frames.clone(), bytes: *bytes })
        }));
    }
}

/// The group of the frames for `target` that go to `egress`, which may be new. `None`: they do not
/// go to a queue now, or there are too many groups.
fn find_group(groups: &mut Vec<Group>, egress: Egress, target: Target) -> Option<usize> {
    let queue = match egress {
        Egress::Local(slot) => slot as u64,
        Egress::Remote(location) => REMOTE | location.queue.0,
        Egress::Unreachable | Egress::Moving | Egress::Rebalancing => return None,
    };
    // Several ports may share a queue: those of one tunnel.
    let key = (queue << 16 | u64::from(target.port.0), target.tag);
    let count = groups.len();
    groups.iter().position(|group| group.key == key).or_else(|| {
        let group = Group { key, target, egress, frames: 0..0, bytes: 0 };
        (count < MAX_GROUPS).then(|| groups.push(group)).map(|()| count)
    })
}
