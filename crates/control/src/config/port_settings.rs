//! Settings of a port that can change while the port is in service.

use frame::Prefix;

use super::memory_size::MemorySize;
use super::rates::RateLimits;

/// Settings of a port that can change while the port is in service.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSettings {
    /// Limits of the port.
    pub limits: RateLimits,
    /// The budget that it shares with other ports.
    pub budget: Option<String>,
    /// The addresses that its frames may claim; empty: any.
    pub addresses: Vec<Prefix>,
    /// The security groups whose rules allow its connections; empty: it may have any.
    pub security_groups: Vec<String>,
    /// The port that gets copies of its frames.
    pub mirror: Option<String>,
    /// How much of its peer's memory may be allocated here.
    pub memory: MemorySize,
}
