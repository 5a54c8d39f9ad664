//! What of a port can change while it is in service.

use frame::Prefix;

use super::memory_size::MemorySize;
use super::rates::RateLimits;

/// What of a port can change while it is in service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSettings {
    /// What it may send and receive.
    pub limits: RateLimits,
    /// The budget that it shares with other ports.
    pub budget: Option<String>,
    /// The addresses that its frames may claim; empty: any.
    pub addresses: Vec<Prefix>,
    /// How much of its peer's memory may be allocated here.
    pub memory: MemorySize,
}
