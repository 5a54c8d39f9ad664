//! The groups of a burst, and quick ways to find the group of a frame.

use std::ops::Range;

use frame::TagEdit;
use switch::Target;

use crate::burst::MAX_PARTS;
use crate::egress::Egress;

/// Most groups of a burst. A burst for more queues stays in order.
pub const MAX_GROUPS: usize = MAX_PARTS;

/// Entries of the tables by which groups are found. Ports, or queues, that share an entry take
/// turns, and the group is searched for then.
const ENTRIES: usize = 64;

/// An entry that names no group.
const NO_GROUP: u8 = u8::MAX;

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
    pub bytes: u64,
}

/// The groups of the present burst.
pub struct Groups {
    all: Vec<Group>,
    /// The groups of ports all of whose frames go to the same queue.
    by_port: [u8; ENTRIES],
    /// The groups of queues, which ports may share.
    by_queue: [u8; ENTRIES],
}

impl Default for Groups {
    fn default() -> Self {
        let by_port = [NO_GROUP; ENTRIES];
        Groups { all: Vec::with_capacity(MAX_GROUPS), by_port, by_queue: by_port }
    }
}

impl Groups {
    /// Forgets all groups, for the next burst.
    #[inline]
    pub fn clear(&mut self) {
        self.all.clear();
        self.by_port = [NO_GROUP; ENTRIES];
        self.by_queue = [NO_GROUP; ENTRIES];
    }

    /// All groups, in the order in which they were made.
    #[inline]
    pub fn all(&self) -> &[Group] {
        &self.all
    }

    /// As [`all`](Self::all), to be changed.
    #[inline]
    pub fn all_mut(&mut self) -> &mut [Group] {
        &mut self.all
    }

    /// The group of a port all of whose frames go to the same queue, if it was
    /// [noted](Self::note_port).
    #[inline(always)]
    pub fn of_port(&mut self, target: Target) -> Option<(usize, &mut Group)> {
        let index = usize::from(self.by_port[usize::from(target.port.0) % ENTRIES]);
        let group = self.all.get_mut(index).filter(|group| group.target == target)?;
        Some((index, group))
    }

    /// Notes that all frames for `target` belong to group `index`.
    pub fn note_port(&mut self, target: Target, index: usize) {
        self.by_port[usize::from(target.port.0) % ENTRIES] = index as u8;
    }

    /// The group of the frames for `target` that go to `egress`, which may be new. `None`: they do
    /// not go to a queue now, or there are too many groups.
    #[inline]
    pub fn find(&mut self, egress: Egress, target: Target) -> Option<usize> {
        let queue = match egress {
            Egress::Local(slot) => slot as u64,
            Egress::Remote(location) => REMOTE | location.queue.0,
            Egress::Unreachable | Egress::Moving | Egress::Rebalancing => return None,
        };
        // Several ports may share a queue: those of one tunnel.
        let key = (queue << 16 | u64::from(target.port.0), target.tag);
        let entry = queue as usize % ENTRIES;
        let known = usize::from(self.by_queue[entry]);
        if self.all.get(known).is_some_and(|group| group.key == key) {
            return Some(known);
        }
        let found = self.all.iter().position(|group| group.key == key);
        let index = found.or_else(|| self.add(key, egress, target))?;
        self.by_queue[entry] = index as u8;
        Some(index)
    }

    fn add(&mut self, key: GroupKey, egress: Egress, target: Target) -> Option<usize> {
        let index = self.all.len();
        let group = Group { key, target, egress, frames: 0..0, bytes: 0 };
        (index < MAX_GROUPS).then(|| self.all.push(group)).map(|()| index)
    }
}

#[cfg(test)]
mod tests {
    use switch::PortId;

    use super::*;

    fn target(port: usize) -> Target {
        Target { port: PortId(port as u16), tag: TagEdit::Keep }
    }

    #[test]
    fn ports_and_queues_that_share_an_entry_have_groups_of_their_own() {
        let mut groups = Groups::default();
        let ports = [1, 1 + ENTRIES, 1 + 2 * ENTRIES];
        for _ in 0..2 {
            for (index, port) in ports.into_iter().enumerate() {
                assert_eq!(groups.find(Egress::Local(port), target(port)), Some(index));
                groups.note_port(target(port), index);
                assert_eq!(groups.of_port(target(port)).map(|(index, _)| index), Some(index));
            }
        }
        let others = |port: usize| ports.into_iter().filter(move |other| *other != port);
        assert!(others(ports[2]).all(|port| groups.of_port(target(port)).is_none()));
        assert_eq!(groups.all().len(), ports.len());
    }

    #[test]
    fn ports_that_share_a_queue_have_groups_of_their_own() {
        let mut groups = Groups::default();
        let tagged = Target { tag: TagEdit::Push(7), ..target(1) };
        for _ in 0..2 {
            for (index, target) in [target(1), target(2), tagged].into_iter().enumerate() {
                assert_eq!(groups.find(Egress::Local(5), target), Some(index));
            }
        }
        groups.note_port(target(1), 0);
        assert!(groups.of_port(tagged).is_none());
    }

    #[test]
    fn groups_are_as_many_as_there_is_room_for_and_go_with_their_burst() {
        let mut groups = Groups::default();
        for port in 0..MAX_GROUPS {
            assert_eq!(groups.find(Egress::Local(port), target(port)), Some(port));
        }
        assert_eq!(groups.find(Egress::Local(MAX_GROUPS), target(MAX_GROUPS)), None);
        assert_eq!(groups.find(Egress::Unreachable, target(0)), None);
        groups.note_port(target(3), 3);
        groups.clear();
        assert!(groups.of_port(target(3)).is_none());
        assert_eq!(groups.find(Egress::Local(3), target(3)), Some(0));
    }
}
