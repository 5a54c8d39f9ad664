//! Profiles of time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xen::netif::guest_times::GuestTimes;

use crate::kind::Kind;

/// The use of time while profiling was on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// The time of the reply, in nanoseconds since the daemon started. In the difference of two
    /// replies, the time between them.
    pub duration_ns: u64,
    /// All that the workers did.
    pub workers: Vec<WorkerProfile>,
    /// Times spent on the frames that each port received, sorted by name.
    pub ports: Vec<PortProfile>,
}

/// The use of a worker's time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerProfile {
    /// The worker's number.
    pub index: usize,
    /// Nanoseconds by step: those of a port, and `poll` (of empty rings) and `sleep`.
    pub steps_ns: BTreeMap<String, u64>,
}

/// The time that was spent on the frames that a port received.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortProfile {
    /// The port's name.
    pub name: String,
    /// The port's kind.
    pub kind: Kind,
    /// Frames that the port received.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Bursts that they came in.
    pub bursts: u64,
    /// Nanoseconds of workers by step: `fetch`, `classify`, `deliver`, `copy`, `publish`.
    pub steps_ns: BTreeMap<String, u64>,
    /// The flows of each of its queues, by index.
    pub flows: Vec<QueueFlows>,
    /// The guest's own times; null if the guest does not report them.
    pub guest: Option<GuestTimes>,
}

/// Flows of TCP and UDP that a queue carried since profiling began. At most 64 are distinguished in
/// each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueFlows {
    /// Flows that the guest received.
    pub received: usize,
    /// Flows that the guest sent.
    pub sent: usize,
}
