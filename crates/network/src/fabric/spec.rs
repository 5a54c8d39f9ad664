//! Specifications of a fabric and its ports, and the reasons for which the fabric refuses one.

use std::sync::Arc;

use runtime::ThreadUsage;
use runtime::coalescing::CoalescingLimits;
use runtime::poll::PollingPolicy;
use switch::{Limits, PortRule, RuleError};
use thiserror::Error;

use crate::restrictions::Restrictions;
use crate::slot::OnError;

/// Most ports that a fabric has at a time.
pub const MAX_PORTS: usize = 4096;

/// Why the fabric refuses something.
#[derive(Debug, Error)]
pub enum FabricError {
    /// All port numbers are taken.
    #[error("there are {MAX_PORTS} ports already")]
    TooManyPorts,
    /// The port's rule contradicts itself or another port's.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// A new port, as the fabric sees it.
pub struct NewPort {
    /// Its name, for the log.
    pub name: Arc<str>,
    /// VLANs and source lock.
    pub rule: PortRule,
    /// Longest IP packet that the port takes, in bytes.
    pub mtu: Option<u16>,
    /// Called with the queue's index when its peer breaks the protocol; from a worker, so it must
    /// not block.
    pub on_error: OnError,
    /// How long its receive interrupts wait; `None`: not at all.
    pub coalescing: Option<CoalescingLimits>,
    /// How workers wait for its frames; `None`: as they do for others.
    pub policy: Option<PollingPolicy>,
    /// Limits on the frames that the port sends and receives.
    pub restrictions: Restrictions,
}

/// The number of workers, and the CPUs that they run on.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// Threads, at least one.
    pub count: usize,
    /// CPUs to pin them to, in turn; empty: not pinned.
    pub cpus: Vec<usize>,
    /// The CPU of a thread that sends interrupts for the workers; `None`: workers send them
    /// themselves. Workers without threads of their own do so in any case.
    pub interrupt_cpu: Option<usize>,
    /// Limits of the switch's table.
    pub limits: Limits,
    /// How workers wait for frames of ports without a policy of their own.
    pub policy: PollingPolicy,
    /// Reads page faults and context switches of the calling worker so far. `None`: the kernel's
    /// counts for its thread, or zero for a worker without a thread of its own, since the thread's
    /// faults may be its owner's.
    pub usage: Option<fn() -> ThreadUsage>,
}
