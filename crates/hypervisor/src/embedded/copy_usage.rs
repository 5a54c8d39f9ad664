//! The cost of a guest's grant copies.

use std::time::Duration;

use super::tally::Tally;

/// The copy hypercalls of a guest, and their cost. The processor time is charged to the guest,
/// though this process spends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyUsage {
    /// Calls.
    pub calls: u64,
    /// Copies requested.
    pub copies: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Processor time.
    pub time: Duration,
    /// For how long calls were left waiting, because the guest used more time than its share.
    pub throttled: Duration,
}

/// The counters of one guest.
#[derive(Debug, Default)]
pub struct CopyAccount {
    calls: Tally,
    copies: Tally,
    bytes: Tally,
    nanoseconds: Tally,
    throttled: Tally,
}

impl CopyAccount {
    /// Counts a call.
    pub fn called(&self, copies: u64, bytes: u64) {
        self.calls.add(1);
        self.copies.add(copies);
        self.bytes.add(bytes);
    }

    /// Counts processor time, and a wait that follows for it.
    pub fn took(&self, time: Duration, wait: Duration) {
        self.nanoseconds.add(time.as_nanos() as u64);
        self.throttled.add(wait.as_nanos() as u64);
    }

    /// The counts so far.
    pub fn copy_usage(&self) -> CopyUsage {
        let time = Duration::from_nanos(self.nanoseconds.get());
        CopyUsage {
            calls: self.calls.get(),
            copies: self.copies.get(),
            bytes: self.bytes.get(),
            time,
            throttled: Duration::from_nanos(self.throttled.get()),
        }
    }
}
