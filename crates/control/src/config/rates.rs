//! The rates at which a port or a budget may send and receive.

use network::token_bucket::{Rate, Unit};

use super::amount::{BitRate, BurstBytes, Frames};

/// A burst that is not set is the amount that the rate sends in this number of milliseconds.
const BURST_MS: u64 = 10;
/// Least bytes of such a burst: two of the longest frames.
const LEAST_BYTES: u64 = 128 << 10;
/// Least frames of such a burst: two bursts of a ring.
const LEAST_FRAMES: u64 = 128;

/// Limits of both directions. Tx is what guests send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimits {
    /// Limits of sending.
    pub tx: DirectionLimits,
    /// Limits of receiving.
    pub rx: DirectionLimits,
}

/// Limits of one direction. A limit that is not set does not apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectionLimits {
    /// Bits of frames per second.
    pub rate: Option<BitRate>,
    /// Bytes that may go at once after a pause.
    pub burst: Option<BurstBytes>,
    /// Frames per second.
    pub frames: Option<Frames>,
    /// Frames that may go at once after a pause.
    pub frames_burst: Option<Frames>,
}

/// A value that conflicts with another one.
pub(super) struct Conflict {
    /// The key.
    pub key: &'static str,
    /// The key whose value is the reason. If that value is wrong itself, the conflict is not
    /// reported.
    pub because: &'static str,
    /// The problem.
    pub problem: String,
}

impl Conflict {
    /// A burst, by its key, whose rate is not set.
    pub(super) fn burst_alone(key: &'static str, because: &'static str) -> Conflict {
        let problem = format!("a burst is of a rate; give {because}, too");
        Conflict { key, because, problem }
    }
}

impl DirectionLimits {
    /// The limit of bytes.
    pub fn bytes_rate(&self) -> Option<Rate> {
        let BitRate(bits) = self.rate?;
        let per_second = bits / 8;
        let default = (per_second * BURST_MS / 1000).max(LEAST_BYTES);
        Some(Rate { per_second, burst: self.burst.map_or(default, |BurstBytes(burst)| burst) })
    }

    /// The limit of frames.
    pub fn frames_rate(&self) -> Option<Rate> {
        let Frames(per_second) = self.frames?;
        let default = (per_second * BURST_MS / 1000).max(LEAST_FRAMES);
        Some(Rate { per_second, burst: self.frames_burst.map_or(default, |Frames(burst)| burst) })
    }

    /// All limits.
    pub fn rates(&self) -> Vec<(Unit, Rate)> {
        let bytes = self.bytes_rate().map(|rate| (Unit::Bytes, rate));
        bytes.into_iter().chain(self.frames_rate().map(|rate| (Unit::Items, rate))).collect()
    }

    /// Leaves out bursts without a rate.
    fn drop_bursts(&mut self) {
        self.burst = self.burst.filter(|_| self.rate.is_some());
        self.frames_burst = self.frames_burst.filter(|_| self.frames.is_some());
    }
}

impl RateLimits {
    /// Leaves out bursts without a rate: the rate was removed.
    pub(super) fn drop_bursts(&mut self) {
        self.tx.drop_bursts();
        self.rx.drop_bursts();
    }

    /// Bursts without a rate.
    pub(super) fn conflicts(&self) -> Vec<Conflict> {
        let RateLimits { tx, rx } = self;
        let pairs = [
            ("tx-burst", "tx-rate", tx.burst.is_some() && tx.rate.is_none()),
            ("tx-frames-burst", "tx-frames", tx.frames_burst.is_some() && tx.frames.is_none()),
            ("rx-burst", "rx-rate", rx.burst.is_some() && rx.rate.is_none()),
            ("rx-frames-burst", "rx-frames", rx.frames_burst.is_some() && rx.frames.is_none()),
        ];
        let without = pairs.into_iter().filter(|(.., lacks)| *lacks);
        without.map(|(key, because, _)| Conflict::burst_alone(key, because)).collect()
    }
}
