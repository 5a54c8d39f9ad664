//! The interrupts that a worker holds back (see [`crate::coalescing`]), and when the next one must be
//! sent.

use std::time::{Duration, Instant};

use crate::slab::Slab;

/// Slots whose interrupts wait. No timer belongs to it: the worker looks once a turn, and sleeps no
/// longer than it may.
#[derive(Default)]
pub struct Held {
    slots: Vec<usize>,
    /// No wait ends before. It may be past its time: what waited then was sent for another reason.
    first: Option<Instant>,
}

impl Held {
    /// An interrupt of the slot `at` waits, until `until` at the latest. `None`: it has none that
    /// does.
    #[inline]
    pub fn add(&mut self, at: usize, until: Option<Instant>) {
        let Some(until) = until else { return };
        if !self.slots.contains(&at) {
            self.slots.push(at);
        }
        self.first = earliest(self.first, Some(until));
    }

    /// Sends the interrupts that have waited long enough at `now`.
    #[inline]
    pub fn send(&mut self, slots: &mut Slab, now: Instant) {
        if self.is_due(now) {
            self.send_due(slots, now);
        }
    }

    /// Whether a wait may be over.
    pub fn is_due(&self, now: Instant) -> bool {
        self.first.is_some_and(|first| now >= first)
    }

    fn send_due(&mut self, slots: &mut Slab, now: Instant) {
        self.first = None;
        let first = &mut self.first;
        self.slots.retain(|&at| {
            let until = slots.get_mut(at).and_then(|slot| slot.tell(now));
            *first = earliest(*first, until);
            until.is_some()
        });
    }

    /// How long the worker may sleep that would sleep for `limit` (`None`: for ever).
    pub fn limit(&self, limit: Option<Duration>, now: Instant) -> Option<Duration> {
        let first = self.first.map(|first| first.saturating_duration_since(now));
        earliest(limit, first)
    }
}

/// The less of two, of which nothing is the greatest.
fn earliest<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.into_iter().chain(other).min()
}
