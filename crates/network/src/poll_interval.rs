//! The interval at which a queue is polled whose peer does not signal.

use std::time::Duration;

/// How long the queue is left alone after nothing was found for the first time.
const SHORTEST: Duration = Duration::from_micros(1);

/// The longest time for which the queue is left alone, and so for which a frame may wait.
const LONGEST: Duration = Duration::from_millis(1);

/// How often a queue is polled whose peer does not signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollInterval(Duration);

impl PollInterval {
    /// Notes another empty poll. Returns how long the queue is left alone.
    pub(crate) fn lengthen(&mut self) -> Duration {
        self.0 = (2 * self.0).clamp(SHORTEST, LONGEST);
        self.0
    }

    /// Notes that the queue had something.
    pub(crate) fn reset(&mut self) {
        self.0 = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_doubles_up_to_a_bound_and_starts_anew() {
        let mut interval = PollInterval::default();
        let intervals: Vec<_> = (0..16).map(|_| interval.lengthen()).collect();
        assert_eq!(intervals[..3], [1, 2, 4].map(Duration::from_micros));
        assert!(intervals.iter().all(|interval| *interval <= LONGEST));
        assert_eq!(intervals.last(), Some(&LONGEST));
        interval.reset();
        assert_eq!(interval.lengthen(), SHORTEST);
    }
}
