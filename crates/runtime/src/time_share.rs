//! A share of a worker's time that a peer may use, and how much of it is used.
//!
//! The state is one point in time, as in a token bucket: the time at which all use will have been
//! earned.

use std::time::{Duration, Instant};

/// The share, and the burst that may be used at once.
#[derive(Debug)]
pub struct TimeShare {
    part: u32,
    burst: Duration,
    earned: Option<Instant>,
}

impl TimeShare {
    /// One `part`th of the time, of which `burst` may be used at once. Nothing is used yet.
    pub const fn new(part: u32, burst: Duration) -> TimeShare {
        TimeShare { part, burst, earned: None }
    }

    /// Charges for time that was used up to `now`.
    pub fn charge(&mut self, spent: Duration, now: Instant) {
        let since = self.earned.filter(|earned| *earned > now).unwrap_or(now);
        self.earned = Some(since + spent * self.part);
    }

    /// Whether all that was used is earned at `now`.
    pub fn is_earned(&self, now: Instant) -> bool {
        self.earned.is_none_or(|earned| earned <= now)
    }

    /// The time until which more than a burst is used; `None`: no more than a burst is used at
    /// `now`.
    pub fn overdrawn_until(&self, now: Instant) -> Option<Instant> {
        let ahead = self.earned?.saturating_duration_since(now);
        ahead
            .checked_sub(self.burst * self.part)
            .filter(|debt| !debt.is_zero())
            .map(|debt| now + debt)
    }
}
