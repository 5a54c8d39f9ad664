//! Future events in the order of time. Events of the same moment happen in the order in which they
//! were announced, so that one seed gives one course of events.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A moment, or a length of time, in picoseconds. The range is 200 days.
pub type Time = u64;

/// Picoseconds in a second.
const SECOND: f64 = 1e12;

/// A number of nanoseconds; 0 for a negative value or NaN.
pub fn ns(nanoseconds: f64) -> Time {
    (nanoseconds * 1e3).round() as Time
}

/// A length of time in seconds.
pub fn seconds(time: Time) -> f64 {
    time as f64 / SECOND
}

/// Announced events.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now: Time,
    announced: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: (Time, u64),
    event: E,
}

impl<E> Default for Events<E> {
    /// None yet.
    fn default() -> Self {
        Events { heap: BinaryHeap::new(), now: 0, announced: 0 }
    }
}

impl<E> Events<E> {
    /// The moment of the last event that happened.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Announces `event` after a delay.
    pub fn after(&mut self, time: Time, event: E) {
        self.announced += 1;
        self.heap
            .push(Reverse(Entry { at: (self.now.saturating_add(time), self.announced), event }));
    }

    /// Goes on to the next event.
    pub fn happen(&mut self) -> Option<E> {
        let Reverse(Entry { at, event }) = self.heap.pop()?;
        self.now = at.0;
        Some(event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_then_by_announcement() {
        let mut events = Events::default();
        for (time, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            events.after(time, event);
        }
        assert_eq!(std::iter::from_fn(|| events.happen()).collect::<String>(), "abcd");
        assert_eq!(events.now(), 5);
    }

    #[test]
    fn lengths_of_time() {
        assert_eq!((ns(1.5), ns(-1.0), ns(f64::NAN)), (1500, 0, 0));
        assert_eq!(seconds(ns(2e9)), 2.0);
    }
}
