//! How long a sender's frames may wait for a receiver that is full.
//!
//! A frame for a full receiver can stay where it is, in the sender's own ring, and be fetched again
//! a moment later: two well-behaved guests then lose nothing, and no queue grows anywhere. But the
//! frames behind it wait too, so the wait must be earned: a receiver earns time by taking frames,
//! and spends it while it is full. One that takes nothing, or a trickle, runs out at once, and what
//! is sent to it is dropped.

use std::time::{Duration, Instant};

/// The most that a receiver can have earned: as long as a guest's processor may have to wait for
/// its turn on a host that has fewer of them.
const CAP: Duration = Duration::from_millis(20);
/// Earned with each frame, and with each 64 bytes.
const PER_FRAME: Duration = Duration::from_micros(2);
const PER_64_BYTES: Duration = Duration::from_micros(1);

/// One receiver's account.
#[derive(Debug)]
pub struct BackpressureCredit {
    credit: Duration,
    full_since: Option<Instant>,
}

impl Default for BackpressureCredit {
    fn default() -> Self {
        BackpressureCredit { credit: CAP, full_since: None }
    }
}

impl BackpressureCredit {
    /// The receiver took `frames` frames of `bytes` bytes in all.
    #[inline]
    pub fn took(&mut self, frames: u32, bytes: u32) {
        self.full_since = None;
        if self.credit < CAP {
            self.credit = CAP.min(self.credit + PER_FRAME * frames + PER_64_BYTES * (bytes / 64));
        }
    }

    /// The receiver was full at `now`. Until when a frame may be held for it; `None`: drop it.
    pub fn full(&mut self, now: Instant) -> Option<Instant> {
        let since = *self.full_since.get_or_insert(now);
        self.credit = self.credit.saturating_sub(now.saturating_duration_since(since));
        self.full_since = Some(now);
        (!self.credit.is_zero()).then(|| now + self.credit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_that_takes_nothing_runs_out_and_stays_out() {
        let mut hold = BackpressureCredit::default();
        let start = Instant::now();
        assert_eq!(hold.full(start), Some(start + CAP));
        assert_eq!(hold.full(start + CAP / 2), Some(start + CAP));
        assert_eq!(hold.full(start + CAP), None);
        assert_eq!(hold.full(start + CAP * 100), None);
    }

    #[test]
    fn a_trickle_buys_microseconds_only() {
        let mut hold = BackpressureCredit::default();
        let mut now = Instant::now();
        hold.full(now);
        now += CAP;
        assert_eq!(hold.full(now), None);
        hold.took(1, 64);
        assert_eq!(hold.full(now), Some(now + PER_FRAME + PER_64_BYTES));
        assert_eq!(hold.full(now + PER_FRAME + PER_64_BYTES), None);
    }

    #[test]
    fn credit_is_capped_however_much_was_taken() {
        let mut hold = BackpressureCredit::default();
        for _ in 0..1000 {
            hold.took(64, 64 * 65_536);
        }
        let now = Instant::now();
        assert_eq!(hold.full(now), Some(now + CAP));
    }

    #[test]
    fn time_spent_empty_is_not_charged() {
        let mut hold = BackpressureCredit::default();
        let start = Instant::now();
        hold.full(start);
        hold.took(1, 1514);
        assert_eq!(hold.full(start + CAP * 10), Some(start + CAP * 10 + CAP));
    }
}
