//! Ways in which vifs can be served that are a matter of choice. All of them are off by default.

use std::time::Duration;

use network::coalescing::CoalescingLimits;
use network::poll::PollingPolicy;
use network::restrictions::RestrictionsTemplate;

/// The options of a service's vifs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortOptions {
    /// How long their receive interrupts wait.
    pub coalescing: Option<CoalescingLimits>,
    /// How workers wait for their frames; `None`: as they do for others.
    pub policy: Option<PollingPolicy>,
    /// How many pages of each may stay mapped, because its frontend says that they come back.
    pub cache: u16,
    /// Whether frames begin where copies into the receiver's pages are aligned.
    pub align: bool,
}

/// How vifs are to be served.
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    /// Queues that a vif may have.
    pub queues: u16,
    /// How long a frontend may go without posting buffers while frames for it come, before it
    /// counts as stalled.
    pub stall: Duration,
    /// How vifs are served, where there is a choice.
    pub options: PortOptions,
    /// Restrictions of each vif. Settings of its own come on top (see `Settings`).
    pub restrictions: RestrictionsTemplate,
}
