//! A limit on a guest's average use of a resource.

use std::time::{Duration, Instant};

/// A rate, given as the time in which one unit is earned, with a burst.
#[derive(Debug)]
pub struct Throttle {
    unit: Duration,
    burst: Duration,
    /// The time at which all use will be earned again.
    earned: Instant,
}

impl Throttle {
    /// A throttle in which `unit` earns one unit, and `burst` earns the most that may be spent at
    /// once.
    pub fn new(unit: Duration, burst: Duration, now: Instant) -> Self {
        Throttle { unit, burst, earned: now }
    }

    /// Charges for `units` units. Returns how long to wait before the next use.
    pub fn spend(&mut self, units: u64, now: Instant) -> Duration {
        let nanoseconds = (self.unit.as_nanos() as u64).saturating_mul(units);
        self.earned = self.earned.max(now) + Duration::from_nanos(nanoseconds);
        self.earned.saturating_duration_since(now).saturating_sub(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn what_goes_beyond_the_burst_has_to_be_waited_for() {
        let start = Instant::now();
        let mut throttle = Throttle::new(10 * US, 1000 * US, start);
        assert_eq!(throttle.spend(100, start), Duration::ZERO);
        assert_eq!(throttle.spend(5, start), 50 * US);
        assert_eq!(throttle.spend(0, start + 20 * US), 30 * US);
        assert_eq!(throttle.spend(5, start + 100 * US), Duration::ZERO);
    }

    #[test]
    fn a_long_pause_earns_one_burst() {
        let start = Instant::now();
        let mut throttle = Throttle::new(US, 100 * US, start);
        throttle.spend(50, start);
        let late = start + Duration::from_secs(3600);
        assert_eq!(throttle.spend(110, late), 10 * US);
    }
}
