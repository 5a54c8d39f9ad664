//! A lock: one holder, the others wait in the order in which they came.

use std::collections::VecDeque;

use crate::event::Time;
use crate::scene::{Scene, Work};

/// A lock, and what it has seen.
#[derive(Debug, Default)]
pub struct Lock {
    /// The time from a holder to the one who waits.
    handover: Time,
    /// The time until a new holder of a free lock has the lock's memory in its cache.
    fetch: Time,
    held: bool,
    last: Option<usize>,
    waiting: VecDeque<(usize, Time)>,
    /// For how long it was held, handing over included.
    pub busy: Time,
    /// How often it was held.
    pub holds: u64,
    /// How often a thread had to wait.
    pub contended: u64,
}

impl Lock {
    /// A free lock, with the time that it takes to go to a thread on another CPU that waits, and to
    /// one that finds it free.
    pub fn new(handover: Time, fetch: Time) -> Self {
        Lock { handover, fetch: fetch.min(handover), ..Lock::default() }
    }

    /// Thread `who` asks for the lock for a time of `hold`. Returns how long that takes in all, if
    /// the lock is free. Otherwise [`Lock::leave`] returns the thread when it gets the lock.
    pub fn ask(&mut self, who: usize, hold: Time) -> Option<Time> {
        if self.held {
            self.contended += 1;
            self.waiting.push_back((who, hold));
            return None;
        }
        Some(self.give(who, hold, self.fetch))
    }

    /// The holder has finished. Returns the next holder, and how long that one takes in all.
    pub fn leave(&mut self) -> Option<(usize, Time)> {
        self.held = false;
        let (who, hold) = self.waiting.pop_front()?;
        Some((who, self.give(who, hold, self.handover)))
    }

    fn give(&mut self, who: usize, hold: Time, moving: Time) -> Time {
        let moved = self.last.replace(who).is_some_and(|last| last != who);
        let all = hold + if moved { moving } else { 0 };
        self.held = true;
        self.busy += all;
        self.holds += 1;
        all
    }
}

/// The locks of a scene: the grant table of each guest, and what all guests have in common.
pub fn of_scene(scene: &Scene) -> Vec<Lock> {
    let Work { handover, fetch, shared, address_space, .. } = scene.duties.worker;
    let tables = (0..scene.guests).map(|_| handover);
    let all = tables.chain([shared, shared, address_space]);
    all.map(|handover| Lock::new(handover, fetch)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_served_in_order() {
        let mut lock = Lock::new(5, 1);
        assert_eq!(lock.ask(0, 10), Some(10));
        assert_eq!((lock.ask(1, 20), lock.ask(2, 30)), (None, None));
        assert_eq!(lock.leave(), Some((1, 25)));
        assert_eq!(lock.leave(), Some((2, 35)));
        assert_eq!(lock.leave(), None);
        assert_eq!(lock.ask(2, 30), Some(30), "its memory is still there");
        assert_eq!(lock.leave(), None);
        assert_eq!(lock.ask(0, 10), Some(11), "it was free, and its memory elsewhere");
        assert_eq!((lock.busy, lock.holds, lock.contended), (111, 5, 2));
    }
}
