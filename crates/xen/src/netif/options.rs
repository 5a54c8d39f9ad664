//! Options of serving vifs. All of them are off by default.

use std::time::Duration;

use network::coalescing::CoalescingLimits;
use network::poll::PollingPolicy;
use network::restrictions::RestrictionsTemplate;

/// The options of a service's vifs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortOptions {
    /// Limits of the delay of receive interrupts.
    pub coalescing: Option<CoalescingLimits>,
    /// The polling policy for frames of the vifs; `None`: that of other ports.
    pub policy: Option<PollingPolicy>,
    /// Most pages of a vif that stay mapped, of those that its frontend announces as static.
    pub cache: u16,
    /// Whether frames begin where copies into the receiver's pages are aligned.
    pub align: bool,
}

/// The configuration of a service for vifs.
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    /// Queues that a vif may have.
    pub queues: u16,
    /// Longest time without posted buffers, while frames come, before a frontend counts as stalled.
    pub stall: Duration,
    /// The options of serving vifs.
    pub options: PortOptions,
    /// Restrictions of each vif. Settings of its own apply besides (see `Settings`).
    pub restrictions: RestrictionsTemplate,
}
