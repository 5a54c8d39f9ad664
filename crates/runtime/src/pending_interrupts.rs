//! The interrupts that a worker defers (see [`crate::coalescing`]), and when the next one is due.
//!
//! Deferred interrupts need no timer: a worker checks them once a round, and sleeps no longer than
//! until the first one is due.

use std::time::Instant;

/// Queues whose interrupts are deferred.
#[derive(Default)]
pub struct PendingInterrupts {
    slots: Vec<usize>,
    /// A lower bound of the time at which an interrupt is due. An interrupt may be missing at this
    /// time, because it was sent for another reason.
    first: Option<Instant>,
}

impl PendingInterrupts {
    /// Notes that an interrupt of the queue in slot `at` is deferred until `until` at the latest.
    /// `None`: the queue has no deferred interrupt.
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

    /// Calls `fire` for each queue that may have a due interrupt. `fire` sends the interrupt, or
    /// returns until when it is deferred (`None`: the queue has no deferred interrupt left).
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

/// The lesser of two values, where `None` is the greatest.
fn earliest<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.into_iter().chain(other).min()
}
