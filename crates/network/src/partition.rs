//! Which frames of a burst go to the same queue: a stable partition by egress.
//!
//! Frames for one queue, and so those of each flow, keep their order. What becomes of the groups is
//! in [`mixed_burst`](crate::mixed_burst).

use std::ops::Range;

use frame::TagEdit;
use switch::Target;

use crate::action::Action;
use crate::burst::{BURST, Burst, Reordering};
use crate::cost::cost;
use crate::egress::Egress;
use crate::route::Routes;

/// Most groups of a burst. A burst for more queues stays in order.
const MAX_GROUPS: usize = 16;

/// What tells groups apart: a queue and a port in one number, and the change of tags.
type GroupKey = (u64, TagEdit);

/// The bit that queues of other workers have, before the port is put behind it.
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
}

/// The groups of the present burst.
pub struct Partition {
    groups: Vec<Group>,
    /// The group of each frame.
    of: [u8; BURST],
    /// How often a frame goes to another queue than the frame before, from 1.
    runs: usize,
    room: Reordering,
}

impl Default for Partition {
    fn default() -> Self {
        Partition {
            groups: Vec::with_capacity(MAX_GROUPS),
            of: [0; BURST],
            runs: 0,
            room: Reordering::default(),
        }
    }
}

impl Partition {
    /// Finds out which frames of `burst` go to the same queue. Each frame's flow is charged for it.
    /// Returns how many frames, from the first on, have a group. If these are not all, there are no
    /// groups to be used: the next frame may have to wait, is copied, or is dropped.
    #[inline]
    pub fn find(&mut self, burst: &Burst, routes: &Routes) -> usize {
        self.groups.clear();
        self.runs = 0;
        let (mut last, mut of_last) = (0, None);
        for (i, (frame, of)) in burst.frames().iter().zip(&mut self.of).enumerate() {
            let Action::Output(target) = &frame.action else { return i };
            let Some(route) = routes.to(target.port) else { return i };
            let (egress, charged) = route.egress(burst, i);
            let queue = match egress {
                Egress::Local(slot) => *slot as u64,
                Egress::Remote(location) => REMOTE | location.queue.0,
                Egress::Unreachable | Egress::Moving | Egress::Rebalancing => return i,
            };
            // Several ports may share a queue: those of one tunnel.
            let key = (queue << 16 | u64::from(target.port.0), target.tag);
            if route.over_mtu(frame) {
                return i;
            }
            if of_last != Some(key) {
                let Some(group) = find_group(&mut self.groups, key, *egress, *target) else {
                    return i;
                };
                (last, of_last) = (group, Some(key));
                self.runs += 1;
            }
            route.use_it();
            if let Some(charged) = charged {
                charged.set(charged.get() + cost(1, frame.len.into()));
            }
            *of = last as u8;
            self.groups[last].frames.end += 1;
        }
        self.place();
        burst.frames().len()
    }

    /// Whether frames of different groups are mixed.
    #[inline]
    pub fn is_mixed(&self) -> bool {
        self.runs > self.groups.len()
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

    /// Says where each group begins, which until now is only known to have so many frames.
    #[inline]
    fn place(&mut self) {
        let mut next = 0;
        for group in &mut self.groups {
            let count = group.frames.len();
            group.frames = next..next + count;
            next += count;
        }
    }

    /// Brings the frames of `burst` into the order of their groups.
    #[inline]
    pub fn reorder(&mut self, burst: &mut Burst) {
        let mut next = [0; MAX_GROUPS];
        for (next, group) in next.iter_mut().zip(&self.groups) {
            *next = group.frames.start;
        }
        let of = &self.of;
        burst.reorder(&mut self.room, |i| {
            let next = &mut next[usize::from(of[i]) % MAX_GROUPS];
            *next += 1;
            *next - 1
        });
    }
}

/// The group with this key, which may be new.
#[inline]
fn find_group(
    groups: &mut Vec<Group>,
    key: GroupKey,
    egress: Egress,
    target: Target,
) -> Option<usize> {
    let count = groups.len();
    groups.iter().position(|group| group.key == key).or_else(|| {
        let group = Group { key, target, egress, frames: 0..0 };
        (count < MAX_GROUPS).then(|| groups.push(group)).map(|()| count)
    })
}
