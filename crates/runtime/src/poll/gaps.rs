//! Recent gaps: times during which nothing came.

/// Gaps shorter than this, in ns, share one bucket.
const LEAST: u64 = 64;
/// The last holds all gaps from about two seconds on.
const BUCKETS: usize = 26;
/// The number of gaps after which the weight of all is halved.
const FULL: u32 = 128;

/// Lengths of the last gaps, by powers of two. The older a gap, the less it counts.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    counts: [u32; BUCKETS],
    total: u32,
}

/// Where a bucket begins, in ns.
fn start(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { LEAST << (bucket - 1) }
}

impl Gaps {
    /// Notes a gap of `gap` ns.
    pub fn add(&mut self, gap: u64) {
        let bucket = (u64::BITS - (gap / LEAST).leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.total += 1;
        if self.total >= FULL {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// How many count, more or less.
    pub fn known(&self) -> u32 {
        self.total
    }

    /// The share of gaps that are longer than `window` ns, and the average part of the window, in
    /// ns, that a gap takes. A longer gap takes the whole window. The gaps of one bucket are
    /// assumed to be spread evenly over it.
    pub fn beyond(&self, window: u64) -> (f64, f64) {
        if self.total == 0 {
            return (1.0, window as f64);
        }
        let (mut longer, mut taken) = (0.0, 0.0);
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (from, to) = (start(bucket), start(bucket + 1));
            let count = f64::from(*count);
            let inside = window.clamp(from, to);
            let share = (inside - from) as f64 / (to - from) as f64;
            longer += count * (1.0 - share);
            let ended = share * (from + inside) as f64 / 2.0;
            taken += count * (ended + (1.0 - share) * window.min(to) as f64);
        }
        let total = f64::from(self.total);
        (longer / total, taken / total)
    }

    /// A percentile of the gaps, in ns, to a factor of two.
    pub fn percentile(&self, percent: u32) -> u64 {
        let wanted = u64::from(self.total) * u64::from(percent);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count) * 100;
            if seen >= wanted && seen > 0 {
                return start(bucket + 1);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_lengths_are_near_the_truth() {
        let mut gaps = Gaps::default();
        // Evenly from 0 to 64 us, less than what makes older ones count less.
        (0..FULL as u64 - 1).for_each(|n| gaps.add(n * 512));
        for window in [0u64, 1_000, 8_000, 20_000, 50_000, 64_000] {
            let (longer, taken) = gaps.beyond(window);
            let (w, all) = (window as f64, 65_000.0);
            assert!((longer - (1.0 - w / all)).abs() < 0.06, "{window}: {longer}");
            assert!((taken - (w - w * w / all / 2.0)).abs() < 0.05 * all, "{window}: {taken}");
        }
        assert_eq!(gaps.beyond(10_000_000).0, 0.0);
        assert!((32_768..=65_536).contains(&gaps.percentile(50)), "{}", gaps.percentile(50));
        assert_eq!(gaps.percentile(100), 65_536);
    }

    #[test]
    fn old_gaps_are_forgotten() {
        let mut gaps = Gaps::default();
        (0..1000).for_each(|_| gaps.add(1_000_000_000));
        assert_eq!(gaps.beyond(1_000_000).0, 1.0);
        (0..1000).for_each(|_| gaps.add(500));
        assert!(gaps.beyond(1_000).0 < 0.01);
    }

    #[test]
    fn any_length_is_a_gap() {
        let mut gaps = Gaps::default();
        [0, 1, 63, 64, u64::MAX, 1 << 40].into_iter().for_each(|gap| gaps.add(gap));
        let (longer, taken) = gaps.beyond(u64::MAX / 4);
        assert!(longer <= 1.0 && taken.is_finite());
        assert_eq!(
            Gaps::default().beyond(5_000),
            (1.0, 5_000.0),
            "without any gap, the next one may be long"
        );
        assert_eq!((Gaps::default().percentile(50), Gaps::default().known()), (0, 0));
    }
}
