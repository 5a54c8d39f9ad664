//! How long a sender's frames may wait for a receiver that is full.
//!
//! A frame for a full receiver can stay in the sender's own ring and be fetched again a moment
//! later: two well-behaved guests then lose nothing, and no queue grows anywhere. But the frames
//! behind it wait too (head-of-line blocking), so a receiver has a credit of time: it earns credit
//! by taking frames, and uses it up while it is full. A receiver that takes nothing, or a trickle,
//! has none left at once, and frames for it are dropped.

use std::time::{Duration, Instant};

/// The most credit that a receiver can have: as long as a guest's vCPU may have to wait for a CPU
/// on a host that has fewer of them.
const CAP: Duration = Duration::from_millis(20);
/// Earned with each frame, and with each 64 bytes.
const PER_FRAME: Duration = Duration::from_micros(2);
const PER_64_BYTES: Duration = Duration::from_micros(1);

/// One receiver's credit.
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
        let mut credit = BackpressureCredit::default();
        let start = Instant::now();
        assert_eq!(credit.full(start), Some(start + CAP));
        assert_eq!(credit.full(start + CAP / 2), Some(start + CAP));
        assert_eq!(credit.full(start + CAP), None);
        assert_eq!(credit.full(start + CAP * 100), None);
    }

    #[test]
    fn a_trickle_buys_microseconds_only() {
        let mut credit = BackpressureCredit::default();
        let mut now = Instant::now();
        credit.full(now);
        now += CAP;
        assert_eq!(credit.full(now), None);
        credit.took(1, 64);
        assert_eq!(credit.full(now), Some(now + PER_FRAME + PER_64_BYTES));
        assert_eq!(credit.full(now + PER_FRAME + PER_64_BYTES), None);
    }

    #[test]
    fn credit_is_capped_however_much_was_taken() {
        let mut credit = BackpressureCredit::default();
        for _ in 0..1000 {
            credit.took(64, 64 * 65_536);
        }
        let now = Instant::now();
        assert_eq!(credit.full(now), Some(now + CAP));
    }

    #[test]
    fn time_spent_empty_is_not_charged() {
        let mut credit = BackpressureCredit::default();
        let start = Instant::now();
        credit.full(start);
        credit.took(1, 1514);
        assert_eq!(credit.full(start + CAP * 10), Some(start + CAP * 10 + CAP));
    }
}
