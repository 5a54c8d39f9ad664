//! The groups that a frontend has joined (`request-multicast-control`): shared by the queues
//! of a vif, and changed by any of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use frame::Mac;
use parking_lot::Mutex;

/// Groups that a frontend may name, as with Linux' backend.
const MOST: usize = 64;

/// A vif's list.
#[derive(Debug, Default)]
pub struct Groups {
    /// Whether the frontend receives only these groups.
    only: AtomicBool,
    /// Changes with the list.
    version: AtomicU64,
    list: Mutex<Vec<Mac>>,
}

/// A queue's view of the list.
#[derive(Debug, Default)]
pub struct View {
    version: u64,
    list: Vec<Mac>,
}

impl Groups {
    /// Sets whether the frontend receives only groups of the list from now on.
    pub fn set_only(&self, only: bool) {
        self.only.store(only, Ordering::Relaxed);
    }

    /// Adds or removes a group. False: there is no room, because the list has [`MOST`] groups
    /// already.
    pub fn set(&self, group: Mac, join: bool) -> bool {
        let mut list = self.list.lock();
        match list.iter().position(|other| *other == group) {
            Some(at) if !join => drop(list.swap_remove(at)),
            None if join && list.len() == MOST => return false,
            None if join => list.push(group),
            _ => return true,
        }
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    /// Whether the frontend receives frames for the group `dst`. Takes a lock only when the list
    /// has changed.
    pub fn receives(&self, view: &mut View, dst: Mac) -> bool {
        if !self.only.load(Ordering::Relaxed) || dst.is_broadcast() {
            return true;
        }
        let version = self.version.load(Ordering::Acquire);
        if version != view.version {
            view.list.clone_from(&self.list.lock());
            view.version = version;
        }
        view.list.contains(&dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn group(last: u8) -> Mac {
        Mac([1, 0, 0x5e, 0, 0, last])
    }

    #[test]
    fn only_joined_groups_arrive_on_request() {
        let (groups, mut view) = (Groups::default(), View::default());
        assert!(groups.receives(&mut view, group(1)));
        groups.set(group(2), true);
        groups.set_only(true);
        assert!(!groups.receives(&mut view, group(1)));
        assert!(groups.receives(&mut view, group(2)));
        assert!(groups.receives(&mut view, Mac([255; 6])));
        groups.set(group(1), true);
        groups.set(group(2), false);
        assert!(groups.receives(&mut view, group(1)));
        assert!(!groups.receives(&mut view, group(2)));
        groups.set_only(false);
        assert!(groups.receives(&mut view, group(2)));
    }

    #[test]
    fn the_list_is_bounded() {
        let (groups, mut view) = (Groups::default(), View::default());
        groups.set_only(true);
        assert_eq!((0..200).filter(|last| groups.set(group(*last), true)).count(), MOST);
        assert!(groups.set(group(0), true), "it is there");
        assert!(groups.set(group(199), false), "it is not there");
        assert_eq!((0..200).filter(|last| groups.receives(&mut view, group(*last))).count(), MOST);
    }
}
