//! Send times of frames with uneven gaps.
//!
//! All kinds have the same mean rate. They differ in how well a sleeping back-end can predict the
//! next frame.

use clap::ValueEnum;

/// The distribution of a rate's frames over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GapDistribution {
    /// Equal gaps.
    Even,
    /// Independent gaps (exponentially distributed).
    Random,
    /// Random gaps, interrupted by bursts (a third of the frames) and by silences of fifty mean
    /// gaps (a third of the time).
    Mixed,
}

/// One gap in [`BURST_EVERY`] ends with a burst of [`BURST_MEAN`] further frames on average: see
/// [`Gaps::mixed`].
const BURST_EVERY: f64 = 32.0;
const BURST_MEAN: f64 = 16.0;
/// One gap in [`SILENCE_EVERY`] is a silence of [`SILENCE_MEAN`] mean gaps.
const SILENCE_EVERY: f64 = 100.0;
const SILENCE_MEAN: f64 = 50.0;

/// Random gaps, the same ones every time.
#[derive(Clone, Debug)]
pub struct Gaps {
    mean: f64,
    mixed: bool,
    /// Frames that follow at once.
    burst: u32,
    random: u64,
}

impl Gaps {
    /// Gaps of `mean` ns on average. `None`: even gaps, which need no random numbers.
    pub fn new(spread: GapDistribution, mean: f64, seed: u64) -> Option<Self> {
        let mixed = match spread {
            GapDistribution::Even => return None,
            GapDistribution::Random => false,
            GapDistribution::Mixed => true,
        };
        // Xorshift never leaves zero.
        Some(Self { mean, mixed, burst: 0, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 })
    }

    /// Draws a gap: nanoseconds from the last frame to the next.
    pub fn draw(&mut self) -> u64 {
        if self.mixed { self.mixed() } else { self.exponential(self.mean) }
    }

    /// Every gap has `BURST_MEAN / BURST_EVERY` further frames on average, which take no time, and
    /// one gap in [`SILENCE_EVERY`] is long. The other gaps are chosen so that the mean rate is
    /// kept.
    fn mixed(&mut self) -> u64 {
        if self.burst > 0 {
            self.burst -= 1;
            return 0;
        }
        if self.unit() < 1.0 / BURST_EVERY {
            self.burst = self.exponential(BURST_MEAN) as u32;
        }
        if self.unit() < 1.0 / SILENCE_EVERY {
            return self.exponential(SILENCE_MEAN * self.mean);
        }
        let frames = 1.0 + BURST_MEAN / BURST_EVERY;
        let usual = (frames - SILENCE_MEAN / SILENCE_EVERY) / (1.0 - 1.0 / SILENCE_EVERY);
        self.exponential(usual * self.mean)
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-self.unit().ln() * mean) as u64
    }

    /// Above 0, at most 1.
    fn unit(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN: f64 = 10_000.0;

    fn gaps(spread: GapDistribution) -> Vec<u64> {
        let mut gaps = Gaps::new(spread, MEAN, 7).unwrap();
        (0..400_000).map(|_| gaps.draw()).collect()
    }

    #[test]
    fn the_mean_is_kept() {
        for spread in [GapDistribution::Random, GapDistribution::Mixed] {
            let all = gaps(spread);
            let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
            assert!((mean / MEAN - 1.0).abs() < 0.05, "{spread:?}: {mean}");
        }
    }

    #[test]
    fn mixed_gaps_have_bursts_and_silences() {
        let all = gaps(GapDistribution::Mixed);
        let share = |what: fn(&u64) -> bool| {
            all.iter().filter(|gap| what(gap)).count() as f64 / all.len() as f64
        };
        let together = share(|gap| *gap == 0);
        assert!((0.28..0.36).contains(&together), "{together}");
        let silent = all.iter().filter(|gap| **gap as f64 > 10.0 * MEAN).sum::<u64>() as f64;
        let silent = silent / all.iter().sum::<u64>() as f64;
        assert!((0.25..0.4).contains(&silent), "{silent}");
    }

    #[test]
    fn even_gaps_are_not_random() {
        assert!(Gaps::new(GapDistribution::Even, MEAN, 7).is_none());
    }
}
