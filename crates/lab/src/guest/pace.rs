//! The pace of a migration.

/// How fast QEMU copies a guest's memory, and when it stops the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes a second, at most, while the guest runs.
    pub bandwidth: u64,
    /// QEMU stops the guest once it can copy the rest in this time, in milliseconds.
    pub downtime: u64,
}

impl Pace {
    /// QEMU copies all memory while the guest runs, and then, several times, what was written
    /// meanwhile. What arrives depends on the logs of written pages.
    pub const GRADUAL: Pace = Pace { bandwidth: 128 << 20, downtime: 50 };
    /// QEMU stops the guest soon after the start, and copies most of the memory afterwards.
    pub const STOPPED: Pace = Pace { bandwidth: 1 << 33, downtime: 5000 };
}
