//! A guest's use of the store.

use std::time::Duration;

use super::tally::Tally;

/// The requests of a guest to the store, and their outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Requests.
    pub requests: u64,
    /// Requests that were refused because a quota was used up.
    pub refused: u64,
    /// For how long requests were left waiting, because there were too many.
    pub throttled: Duration,
}

/// The counters of one guest.
#[derive(Debug, Default)]
pub struct StoreAccount {
    requests: Tally,
    refused: Tally,
    nanoseconds: Tally,
}

impl StoreAccount {
    /// Counts a request.
    pub fn asked(&self, refused: bool) {
        self.requests.add(1);
        self.refused.add(u64::from(refused));
    }

    /// Counts time in which the guest was left waiting.
    pub fn throttled(&self, time: Duration) {
        self.nanoseconds.add(time.as_nanos() as u64);
    }

    /// The counts so far.
    pub fn usage(&self) -> StoreUsage {
        let throttled = Duration::from_nanos(self.nanoseconds.get());
        StoreUsage { requests: self.requests.get(), refused: self.refused.get(), throttled }
    }
}
