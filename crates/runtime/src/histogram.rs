//! Histograms of durations: one writer each, readable by anyone at any time.

use std::time::Duration;

use crate::counter::Counter;

/// Number of classes of lengths with an upper bound: the longest is about 17 s.
pub const BOUNDS: usize = 25;

/// Counts durations in classes, each of which is twice as long as the one before.
///
/// Class `i` counts durations that are longer than the bound of the class before it, and no longer
/// than its own bound, `2^i` us. The last class has everything that is longer than
/// [`bound`]`(BOUNDS - 1)`.
#[derive(Default, Debug)]
pub struct Histogram {
    counts: [Counter; BOUNDS + 1],
    /// Nanoseconds in all.
    sum: Counter,
}

/// The longest duration of class `class`. `None`: there is no bound.
pub fn bound(class: usize) -> Option<Duration> {
    (class < BOUNDS).then(|| Duration::from_micros(1 << class))
}

impl Histogram {
    /// Counts a duration. Call this from the owning worker only: concurrent writers would lose
    /// counts.
    #[inline]
    pub fn record(&self, duration: Duration) {
        // Durations here are differences of a monotonic clock: 64 bits last for centuries.
        let nanoseconds = duration.as_nanos() as u64;
        let microseconds = nanoseconds.div_ceil(1000).max(1);
        let class = (u64::BITS - (microseconds - 1).leading_zeros()) as usize;
        self.counts[class.min(BOUNDS)].add(1);
        self.sum.add(nanoseconds);
    }

    /// Number of durations in each class.
    pub fn counts(&self) -> [u64; BOUNDS + 1] {
        self.counts.each_ref().map(Counter::get)
    }

    /// Sum of all durations in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class that a duration is counted in.
    fn class(duration: Duration) -> usize {
        let histogram = Histogram::default();
        histogram.record(duration);
        assert_eq!(histogram.sum(), duration.as_nanos() as u64);
        let counts = histogram.counts();
        assert_eq!(counts.iter().sum::<u64>(), 1);
        counts.iter().position(|count| *count == 1).unwrap()
    }

    #[test]
    fn a_class_ends_with_its_bound() {
        assert_eq!(class(Duration::ZERO), 0);
        for at in 0..BOUNDS {
            let bound = bound(at).unwrap();
            assert_eq!(class(bound), at, "{bound:?}");
            assert_eq!(class(bound + Duration::from_nanos(1)), at + 1, "{bound:?}");
        }
    }

    #[test]
    fn the_last_class_has_no_end() {
        assert_eq!(bound(BOUNDS - 1), Some(Duration::from_micros(16_777_216)));
        assert_eq!(bound(BOUNDS), None);
        assert_eq!(class(Duration::from_secs(1 << 31)), BOUNDS);
    }
}
