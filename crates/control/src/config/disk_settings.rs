//! Settings of a disk that can change while it is in service.

use network::token_bucket::Rate;
use storage::limits::DiskRates;

use super::amount::BurstBytes;
use super::disk_amount::{ByteRate, Requests};
use super::memory_size::MemorySize;
use super::rates::Conflict;

/// The time, in milliseconds, whose amount at the rate is the default burst.
const BURST_MS: u64 = 10;
/// Least bytes of such a burst: the longest request of most guests.
const LEAST_BYTES: u64 = 1 << 20;
/// Least requests of such a burst: as many as a queue has under way.
const LEAST_REQUESTS: u64 = 128;

/// Settings of a disk that can change while it is in service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiskSettings {
    /// The limits of the disk.
    pub limits: DiskLimits,
    /// The limit of its peer's memory that may be allocated here; `None`: the default.
    pub memory: Option<MemorySize>,
}

impl DiskSettings {
    /// The limit of its peer's memory that may be allocated here, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory.map_or_else(default_memory, |MemorySize(bytes)| bytes)
    }
}

/// Three quarters of the host's memory, in bytes. A guest fills its page cache with what it reads,
/// and all of that may be allocated here: a fixed size would stop a guest that has more memory.
fn default_memory() -> u64 {
    let host = rustix::system::sysinfo();
    (host.totalram as u64).saturating_mul(host.mem_unit.into()) / 4 * 3
}

/// Limits of a disk. A limit that is not set does not apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskLimits {
    /// Requests per second.
    pub iops: Option<Requests>,
    /// Requests that may begin at once after a pause.
    pub iops_burst: Option<Requests>,
    /// Bytes per second.
    pub bandwidth: Option<ByteRate>,
    /// Bytes that may be moved at once after a pause.
    pub bandwidth_burst: Option<BurstBytes>,
}

impl DiskLimits {
    /// The limits, with the default bursts where none are set.
    pub fn rates(&self) -> DiskRates {
        let rate = |per_second: u64, burst: Option<u64>, least: u64| {
            let default = (per_second * BURST_MS / 1000).max(least);
            Rate { per_second, burst: burst.unwrap_or(default) }
        };
        let (requests, bytes) =
            (self.iops_burst.map(|it| it.0), self.bandwidth_burst.map(|it| it.0));
        DiskRates {
            requests: self.iops.map(|Requests(iops)| rate(iops, requests, LEAST_REQUESTS)),
            bytes: self.bandwidth.map(|ByteRate(bandwidth)| rate(bandwidth, bytes, LEAST_BYTES)),
        }
    }

    /// Leaves out bursts without a rate.
    pub(super) fn drop_bursts(&mut self) {
        self.iops_burst = self.iops_burst.filter(|_| self.iops.is_some());
        self.bandwidth_burst = self.bandwidth_burst.filter(|_| self.bandwidth.is_some());
    }

    /// Bursts without a rate.
    pub(super) fn conflicts(&self) -> Vec<Conflict> {
        let alone = [
            ("iops-burst", "iops", self.iops_burst.is_some() && self.iops.is_none()),
            (
                "bandwidth-burst",
                "bandwidth",
                self.bandwidth_burst.is_some() && self.bandwidth.is_none(),
            ),
        ];
        let alone = alone.into_iter().filter(|(.., alone)| *alone);
        alone.map(|(key, because, _)| Conflict::burst_alone(key, because)).collect()
    }
}
