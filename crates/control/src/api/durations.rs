//! Histograms of durations.

use runtime::histogram::{BOUNDS, Histogram};
use serde::{Deserialize, Serialize};

/// A histogram of durations.
///
/// Class `i` of `counts` has the durations of at most `2^i` us that exceed the bound of the class
/// before. The last class has all longer ones.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Durations {
    /// Number of durations in each class; empty: there are no durations of this kind.
    pub counts: Vec<u64>,
    /// Sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Durations {
    /// Adds the durations of a histogram.
    pub fn add(&mut self, histogram: &Histogram) {
        self.counts.resize(BOUNDS + 1, 0);
        let counts = histogram.counts();
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns += histogram.sum();
    }
}

impl From<&Histogram> for Durations {
    fn from(histogram: &Histogram) -> Self {
        let mut durations = Durations::default();
        durations.add(histogram);
        durations
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sums_have_the_durations_of_all() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(Duration::from_micros(2));
        other.record(Duration::from_micros(2));
        other.record(Duration::from_secs(100));
        let mut sum = Durations::from(&one);
        sum.add(&other);
        assert_eq!((sum.counts.len(), sum.counts[1], sum.counts[BOUNDS]), (BOUNDS + 1, 2, 1));
        assert_eq!(sum.sum_ns, 100_000_004_000);
    }
}
