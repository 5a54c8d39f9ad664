//! Polling policies: how much CPU time a shorter wait is worth. This is the only parameter of
//! polling that has to be chosen.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest window that can be given by hand.
const LONGEST: Duration = Duration::from_millis(10);

/// How a worker weighs waiting against CPU time. Ordered: the later, the less it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PollingPolicy {
    /// Never polls in vain: for comparison.
    Never,
    /// CPU time is all that counts.
    Eco,
    /// Ten nanoseconds of waiting are worth one of CPU time.
    #[default]
    Balanced,
    /// Polls for this time, whatever happened before: for comparison.
    Fixed(Duration),
    /// A nanosecond of waiting is worth ten of CPU time.
    Latency,
    /// Never sleeps: for comparison.
    Always,
}

/// A word that names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a way of polling")]
pub struct Unknown;

impl PollingPolicy {
    /// The words that can be written, for the error about any other.
    pub const WORDS: &'static str =
        r#""eco", "balanced" or "latency" (to compare: "never", "always" or a time like "50us")"#;

    /// Nanoseconds of CPU time that a nanosecond of waiting is worth. Policies for comparison have
    /// rules of their own.
    pub(super) fn worth(self) -> f64 {
        match self {
            PollingPolicy::Never
            | PollingPolicy::Eco
            | PollingPolicy::Always
            | PollingPolicy::Fixed(_) => 0.0,
            PollingPolicy::Balanced => 0.1,
            PollingPolicy::Latency => 10.0,
        }
    }

    /// Longest that a frame may wait because the worker naps, in ns; 0: it does not nap.
    pub(super) fn longest_nap(self) -> u64 {
        match self {
            PollingPolicy::Eco => 80_000,
            PollingPolicy::Balanced => 30_000,
            PollingPolicy::Never
            | PollingPolicy::Fixed(_)
            | PollingPolicy::Latency
            | PollingPolicy::Always => 0,
        }
    }

    /// Whether the policy adapts to the measured gaps, and is not a fixed rule for comparison.
    pub(super) fn is_adaptive(self) -> bool {
        matches!(self, PollingPolicy::Eco | PollingPolicy::Balanced | PollingPolicy::Latency)
    }
}

impl FromStr for PollingPolicy {
    type Err = Unknown;

    fn from_str(word: &str) -> Result<Self, Unknown> {
        Ok(match word {
            "never" => PollingPolicy::Never,
            "eco" => PollingPolicy::Eco,
            "balanced" => PollingPolicy::Balanced,
            "latency" => PollingPolicy::Latency,
            "always" => PollingPolicy::Always,
            time => {
                let micros: u64 =
                    time.strip_suffix("us").and_then(|n| n.parse().ok()).ok_or(Unknown)?;
                let time = Duration::from_micros(micros);
                if time.is_zero() || time > LONGEST {
                    return Err(Unknown);
                }
                PollingPolicy::Fixed(time)
            }
        })
    }
}

impl fmt::Display for PollingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollingPolicy::Never => f.write_str("never"),
            PollingPolicy::Eco => f.write_str("eco"),
            PollingPolicy::Balanced => f.write_str("balanced"),
            PollingPolicy::Latency => f.write_str("latency"),
            PollingPolicy::Always => f.write_str("always"),
            PollingPolicy::Fixed(time) => write!(f, "{}us", time.as_micros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for word in ["never", "eco", "balanced", "50us", "latency", "always"] {
            assert_eq!(word.parse::<PollingPolicy>().unwrap().to_string(), word);
        }
        for word in
            ["", "Eco", "us", "0us", "10001us", "-1us", "50", "50ms", "99999999999999999999us"]
        {
            assert_eq!(word.parse::<PollingPolicy>(), Err(Unknown), "{word}");
        }
    }

    #[test]
    fn the_most_impatient_policy_is_the_greatest() {
        let order = ["never", "eco", "balanced", "50us", "60us", "latency", "always"];
        assert!(order.map(|word| word.parse::<PollingPolicy>().unwrap()).is_sorted());
    }
}
