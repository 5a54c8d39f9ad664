//! Limits of ports and budgets.

use network::token_bucket::Rate;
use storage::limits::DiskRates;

use crate::api::{DirectionReport, DiskLimitsReport, LimitsReport};
use crate::config::{DirectionLimits, RateLimits};

/// The limits in force, with the default bursts where none are set.
pub fn limits(limits: &RateLimits) -> LimitsReport {
    let direction = |limits: &DirectionLimits| {
        let (bytes, frames) = (limits.bytes_rate(), limits.frames_rate());
        DirectionReport {
            bits_per_second: limits.rate.map(|rate| rate.0),
            burst_bytes: bytes.map(|rate| rate.burst),
            frames_per_second: frames.map(|rate| rate.per_second),
            burst_frames: frames.map(|rate| rate.burst),
        }
    };
    LimitsReport { tx: direction(&limits.tx), rx: direction(&limits.rx) }
}

/// The limits of a disk.
pub fn disk_limits(DiskRates { requests, bytes }: DiskRates) -> DiskLimitsReport {
    DiskLimitsReport {
        requests_per_second: requests.map(|rate| rate.per_second),
        burst_requests: requests.map(|rate| rate.burst),
        bytes_per_second: bytes.map(|rate| rate.per_second),
        burst_bytes: bytes.map(|rate| rate.burst),
    }
}

/// The limits of a vif whose port has `limits`, and whose keys have a rate of sending: the stricter
/// one is in force.
pub(super) fn vif_limits(mut limits: LimitsReport, own: Option<Rate>) -> LimitsReport {
    let Some(Rate { per_second, burst }) = own else { return limits };
    let bits = per_second.saturating_mul(8);
    if limits.tx.bits_per_second.is_none_or(|present| bits < present) {
        (limits.tx.bits_per_second, limits.tx.burst_bytes) = (Some(bits), Some(burst));
    }
    limits
}

/// Each in text form.
pub(super) fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(T::to_string).collect()
}
