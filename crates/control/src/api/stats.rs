//! The daemon's workers, its counters, and the address table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Durations;
use super::disk::DiskReport;
use super::overlay::OverlayReport;
use super::port::{Counts, PortReport};

/// Counters of one worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The worker's number.
    pub index: usize,
    /// The CPU that the worker is pinned to.
    pub cpu: Option<u16>,
    /// Passes over its queues that found something.
    pub busy_passes: u64,
    /// Passes that found nothing.
    pub idle_passes: u64,
    /// Times that the worker slept in the kernel.
    pub sleeps: u64,
    /// Frames whose flow was in the flow cache.
    pub cache_hits: u64,
    /// Frames that the switch had to decide on.
    pub cache_misses: u64,
    /// Batches of frames handed to other workers.
    pub handoff_batches: u64,
    /// Frames in those batches.
    pub handed_off: u64,
    /// Microseconds of passes that found something.
    pub busy_us: u64,
    /// Lengths of those passes.
    #[serde(default)]
    pub busy: Durations,
    /// Percent of the last half second that busy passes took, if loads are balanced.
    pub load: Option<u8>,
    /// Times that flows of a receiver were moved to another of its queues, to spread them better.
    pub rebalanced: u64,
    /// How the worker waits for frames; null before its first pass.
    pub polling: Option<PollingReport>,
}

/// How a worker waits for frames, and the figures of its decision.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PollingReport {
    /// The policy in force: that of the port with the least tolerance for latency among those that
    /// were busy lately.
    pub policy: String,
    /// Nanoseconds spent in each state: `busy`, `spin`, `nap`, `sleep`.
    pub state_ns: BTreeMap<String, u64>,
    /// Number of naps. Naps count as sleeps, too.
    pub naps: u64,
    /// How long the worker polls or naps at present before it arms its queues; null: without end.
    pub window_ns: Option<u64>,
    /// Length of a nap at present; zero: the worker spins instead.
    pub nap_ns: u64,
    /// The 50th, 90th and 99th percentile of the recent gaps, with a resolution of a factor of two;
    /// null: longer than the longest class of gaps.
    pub gaps_ns: [Option<u64>; 3],
    /// CPU time of a sleep that a signal ends.
    pub sleep_cost_ns: u64,
    /// Time from that signal until the worker runs.
    pub wake_latency_ns: u64,
    /// CPU time of a sleep that a timer ends.
    pub nap_cost_ns: u64,
    /// How late that timer is.
    pub timer_lateness_ns: u64,
    /// How often polling was suspended because the host was short of CPU time.
    pub suspensions: u64,
    /// Whether polling is suspended at present.
    pub suspended: bool,
}

/// A layer of the daemon's sandbox.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SandboxLayer {
    /// The layer.
    pub layer: String,
    /// `active`, `partial` or `missing`.
    pub state: String,
    /// Details, or the reason.
    pub detail: String,
}

/// How copies from a length on are made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopyMethod {
    /// The shortest of these copies, in bytes. The next object, if there is one, is about longer
    /// ones.
    pub from: usize,
    /// The method.
    pub method: String,
}

/// The daemon and all its counters. At rest, over all ports and `removed`:
/// `tx_frames + copies = rx_frames + drops`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version.
    pub release: String,
    /// How long the daemon has been running.
    pub uptime_seconds: f64,
    /// CPU time that the daemon has used.
    pub cpu_seconds: f64,
    /// The layers of its sandbox; empty without one.
    pub sandbox: Vec<SandboxLayer>,
    /// How it makes long copies.
    #[serde(default)]
    pub copies: Vec<CopyMethod>,
    /// Its workers.
    pub workers: Vec<WorkerReport>,
    /// Times that a queue pair changed workers.
    pub queue_migrations: u64,
    /// Interrupts that the thread for interrupts has sent; `None`: there is no such thread.
    #[serde(default)]
    pub interrupt_thread_interrupts: Option<u64>,
    /// Its ports, sorted by name.
    pub ports: Vec<PortReport>,
    /// Its disks, sorted by name.
    #[serde(default)]
    pub disks: Vec<DiskReport>,
    /// Its overlays.
    #[serde(default)]
    pub overlays: Vec<OverlayReport>,
    /// The counts of ports that have been removed.
    pub removed: Counts,
}

/// An event of the daemon's log, as the dashboard shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventReport {
    /// When it happened, in milliseconds since 1970.
    pub unix_ms: u64,
    /// `ERROR`, `WARN` or `INFO`; `DEBUG` and `TRACE` where the log has those.
    pub level: String,
    /// The line of the log.
    pub text: String,
}

/// One line of the address table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MacRow {
    /// The VLAN; null in the untagged network.
    pub vlan: Option<u16>,
    /// The address.
    pub mac: String,
    /// The port's name.
    pub port: String,
    /// Whether the configuration ties the address to the port.
    pub locked: bool,
    /// Seconds since a frame came from the address; null for locked addresses.
    pub idle_seconds: Option<u32>,
}
