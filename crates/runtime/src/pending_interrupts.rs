//! The interrupts that a worker defers (see [`crate::coalescing`]), and when the next one is due.
//!
//! No timer belongs to them: a worker looks once a round, and sleeps no longer than until the
//! first one is due.

use std::time::Instant;

/// Queues whose interrupts are deferred.
#[derive(Default)]
pub struct PendingInterrupts {
    slots: Vec<usize>,
    /// No interrupt is due before. The time may have passed: the interrupt that was due then was
    /// sent for another reason.
    first: Option<Instant>,
}

impl PendingInterrupts {
    /// An interrupt of the queue in slot `at` is deferred, until `until` at the latest. `None`: the
    /// queue has none that is.
    #[inline]
    pub fn add(&mut self, at: usize, until: Option<Instant>) {
        let Some(until) = until else { return };
        if !self.slots.contains(&at) {
            self.slots.push(at);
        }
        self.first = earliest(self.first, Some(until));
    }

    /// Whether an interrupt may be due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.first.is_some_and(|first| now >= first)
    }

    /// Calls `fire` for each queue that may have an interrupt that is due: it sends that, or says
    /// until when it is deferred. `None`: none is.
    pub fn fire_due(&mut self, mut fire: impl FnMut(usize) -> Option<Instant>) {
        self.first = None;
        let first = &mut self.first;
        self.slots.retain(|&at| {
            let until = fire(at);
            *first = earliest(*first, until);
            until.is_some()
        });
    }

    /// When the next interrupt is due.
    pub fn next(&self) -> Option<Instant> {
        self.first
    }
}

/// The less of two, of which nothing is the greatest.
fn earliest<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.into_iter().chain(other).min()
}
