//! What a guest has had its hypervisor do.

use std::time::Duration;

use super::Tally;

/// Calls of a guest, and what they took. The processor time is the guest's, though it is spent in
/// this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyUsage {
    /// Calls.
    pub calls: u64,
    /// Copies that they asked for.
    pub copies: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Processor time.
    pub time: Duration,
}

/// An account of it.
#[derive(Debug, Default)]
pub struct CopyAccount {
    calls: Tally,
    copies: Tally,
    bytes: Tally,
    nanoseconds: Tally,
}

impl CopyAccount {
    /// A call was made.
    pub fn called(&self, copies: u64, bytes: u64) {
        self.calls.add(1);
        self.copies.add(copies);
        self.bytes.add(bytes);
    }

    /// Time was spent.
    pub fn took(&self, time: Duration) {
        self.nanoseconds.add(time.as_nanos() as u64);
    }

    /// So far.
    pub fn copy_usage(&self) -> CopyUsage {
        let time = Duration::from_nanos(self.nanoseconds.get());
        CopyUsage {
            calls: self.calls.get(),
            copies: self.copies.get(),
            bytes: self.bytes.get(),
            time,
        }
    }
}
