//! What goes over the control socket: one JSON object a line, in each direction.
//!
//! A request is `{"version":1,"do":"port.show","name":"vm-a"}`, the answer
//! `{"version":1,"ok":{"port":{...}}}` or `{"version":1,"error":"..."}`. Fields may be added within
//! a version; none is renamed or changes its meaning.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
pub use xen::netif::guest_times::GuestTimes;

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// What can be asked of the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", deny_unknown_fields)]
pub enum Request {
    /// Add a port.
    #[serde(rename = "port.add")]
    PortAdd {
        /// Keys and values as in a `[[port]]` table of the configuration.
        port: Map<String, Json>,
    },
    /// Remove a port.
    #[serde(rename = "port.remove")]
    PortRemove {
        /// Its name.
        name: String,
    },
    /// All ports.
    #[serde(rename = "port.list")]
    PortList,
    /// One port.
    #[serde(rename = "port.show")]
    PortShow {
        /// Its name.
        name: String,
    },
    /// All counters.
    #[serde(rename = "stats")]
    Stats,
    /// The address table.
    #[serde(rename = "mac")]
    Mac,
    /// Where time goes: from now on it is counted, and what was counted so far is the reply.
    #[serde(rename = "profile")]
    Profile {
        /// For how long.
        seconds: u32,
    },
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is done.
    Done,
    /// The ports, sorted by name.
    Ports(Vec<PortReport>),
    /// One port.
    Port(Box<PortReport>),
    /// All counters.
    Stats(Box<Stats>),
    /// The address table, sorted by VLAN and address.
    Macs(Vec<MacRow>),
    /// Where time went.
    Profile(Box<Profile>),
}

/// One line from the daemon: a reply or an error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Reply>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a port stands with its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Waiting for a front-end to connect.
    #[default]
    Listening,
    /// Trying to connect to a front-end.
    Connecting,
    /// A peer is there.
    Connected,
    /// A peer is there, and posts no buffers for what comes.
    Stalled,
    /// The port is out of service for good; the reason says why.
    Stopped,
}

impl PortState {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Listening => "listening",
            PortState::Connecting => "connecting",
            PortState::Connected => "connected",
            PortState::Stalled => "stalled",
            PortState::Stopped => "stopped",
        }
    }
}

/// A port, its state and its counters.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// `vhost-user`, `tap` or `xen`.
    pub kind: String,
    /// Path of the socket, of a vhost-user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// `server` or `client`, of a vhost-user port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The interface of a TAP port; the hotplug script of the vifs that are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// How it stands with its peer.
    pub state: PortState,
    /// Why it is stopped, why its last session was ended, or why it cannot connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Process id of the front-end that is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<i32>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were ended because the peer broke the protocol.
    pub violations: u64,
    /// Access VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// VLANs of a tagged port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trunk: Vec<u16>,
    /// The only source address that is let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Longest IP packet in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// How it is served where there is a choice: keys of a port, and their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Its peer's pages that stay mapped, if any may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// The device whose receive queues guests can have; of a guest that asked for one, which it
    /// has, or why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_queue: Option<String>,
    /// What was negotiated with the peer, by name.
    pub features: Vec<String>,
    /// What the guest has had copied for itself, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_copies: Option<OwnCopies>,
    /// Queue pairs that the port has at most.
    pub queue_pairs: u16,
    /// Sum over all queues.
    pub total: Counts,
    /// Queue pairs that were in use since the port came.
    pub queues: Vec<QueueReport>,
}

/// A guest's pages that stay mapped, since it connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheReport {
    /// How many they are.
    pub pages: u64,
    /// How many they may be.
    pub most: u64,
    /// Pages to be copied from or to that were among them.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
}

/// What a guest has had its hypervisor copy for it. The time is the guest's, and no worker's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnCopies {
    /// Calls of the hypervisor.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
    /// Processor time that it took, in microseconds.
    pub cpu_us: u64,
}

/// Counters of one queue pair. *Tx* is what the guest transmits, *Rx* what it receives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueReport {
    /// Number of the queue pair in its port.
    pub index: u16,
    /// The worker that has it, unless the peer has it switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    /// A device fills its Rx ring: it is no pair, and none of those that the port has at most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device: bool,
    /// Its counters.
    #[serde(flatten)]
    pub counts: Counts,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of a queue pair, or a sum of such.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct Counts {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Frames that were dropped, by reason; reasons without any are left out.
            pub drops: BTreeMap<String, u64>,
        }

        impl Counts {
            /// Adds another's counters to these.
            pub fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
                for (reason, frames) in &other.drops {
                    *self.drops.entry(reason.clone()).or_default() += frames;
                }
            }
        }
    };
}

counts! {
    /// Frames fetched from the guest.
    tx_frames,
    /// Bytes of those frames.
    tx_bytes,
    /// Bursts that fetched at least one frame.
    tx_bursts,
    /// Interrupts sent for completed Tx entries.
    tx_interrupts,
    /// Times that completed Tx entries were published without an interrupt, since the guest wanted none.
    tx_suppressed,
    /// Frames delivered to the guest.
    rx_frames,
    /// Bytes of those frames.
    rx_bytes,
    /// Bursts that delivered at least one frame.
    rx_bursts,
    /// Interrupts sent for Rx entries.
    rx_interrupts,
    /// Times that Rx entries were published without an interrupt, since the guest wanted none.
    rx_suppressed,
    /// Times that Rx entries were published, and the interrupt for them had to wait until it was worth it.
    rx_deferred,
    /// Frames that a device wrote into the guest's buffers by itself; they are not among those delivered.
    direct_frames,
    /// Bytes of those frames.
    direct_bytes,
    /// Frames that flooding and segmentation added to those fetched.
    copies,
    /// Frames held back for a moment because a receiver was full.
    blocked,
    /// Wake-ups by the guest.
    kicks,
}

impl Counts {
    /// Frames that were dropped for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

impl PortReport {
    /// What the port attaches to: a socket or an interface.
    pub fn endpoint(&self) -> &str {
        self.socket.as_deref().or(self.device.as_deref()).unwrap_or("")
    }
}

/// Counters of one worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Its number.
    pub index: usize,
    /// The CPU that it is pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u16>,
    /// Passes over its queues that found something.
    pub busy_passes: u64,
    /// Passes that found nothing.
    pub idle_passes: u64,
    /// Times that it slept in the kernel.
    pub sleeps: u64,
    /// Frames whose flow was in its cache.
    pub cache_hits: u64,
    /// Frames that it had to ask the switch about.
    pub cache_misses: u64,
    /// Batches of frames handed to other workers.
    pub handoff_batches: u64,
    /// Frames in those batches.
    pub handed_off: u64,
    /// Microseconds of passes that found something.
    #[serde(default)]
    pub busy_us: u64,
    /// Percent of the last half second that those took, where loads are balanced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<u8>,
    /// Times that flows which had hashed badly were pointed to another queue of their receiver.
    #[serde(default)]
    pub rebalanced: u64,
    /// How it waits for frames; not before its first turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<PollingReport>,
}

/// How a worker waits for frames, and what it decides that by. All times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PollingReport {
    /// The value of `polling` that it goes by: that of the most impatient of the ports that were
    /// busy lately.
    pub policy: String,
    /// Time spent in each state: `busy`, `spin`, `nap`, `sleep`.
    pub nanoseconds: BTreeMap<String, u64>,
    /// How often it has napped. Naps count as sleeps, too.
    pub naps: u64,
    /// How long it looks or naps at present before it arms its queues; `None`: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// How long a nap is at present; zero: it looks instead.
    pub nap: u64,
    /// What 50, 90 and 99 percent of the recent gaps do not exceed, to a factor of two.
    pub gaps: [u64; 3],
    /// CPU time of a sleep that a signal ends.
    pub sleep_cost: u64,
    /// From before that signal until the worker runs.
    pub wake: u64,
    /// CPU time of a sleep that a timer ends.
    pub nap_cost: u64,
    /// How much longer than wanted that is.
    pub late: u64,
    /// How often polling began to give way, because the host was short of CPU time.
    pub gave_way: u64,
    /// Whether it does at present.
    pub gives_way: bool,
}

/// The daemon and all its counters. At rest, over all ports and `removed`:
/// `tx_frames + copies = rx_frames + drops`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's version.
    pub release: String,
    /// How long it has been running.
    pub uptime_seconds: f64,
    /// CPU time that it has used.
    pub cpu_seconds: f64,
    /// Its workers.
    pub workers: Vec<WorkerReport>,
    /// Times that a queue pair changed workers.
    #[serde(default)]
    pub moves: u64,
    /// Its ports, sorted by name.
    pub ports: Vec<PortReport>,
    /// What was counted on ports that are no longer there.
    pub removed: Counts,
}

/// One line of the address table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MacRow {
    /// The VLAN, unless it is the untagged network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The address.
    pub mac: String,
    /// The port's name.
    pub port: String,
    /// Whether the configuration ties the address to the port.
    pub locked: bool,
    /// Seconds since it was last heard; not for locked addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u32>,
}

/// Where time went, while it was counted. All times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// The moment of the reply; the length of a profile that lies between two of them.
    pub nanoseconds: u64,
    /// All that the workers did.
    pub workers: Vec<WorkerProfile>,
    /// What was done for the frames that each port received, sorted by name.
    pub ports: Vec<PortProfile>,
}

/// Where a worker's time went.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerProfile {
    /// Its number.
    pub index: usize,
    /// Time by step: `fetch`, `classify`, `deliver`, `copy`, `publish`, `look`, `sleep`.
    pub spent: BTreeMap<String, u64>,
}

/// Where the time went that the frames took which a port received.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortProfile {
    /// Its name.
    pub name: String,
    /// `vhost-user`, `tap`, `xen` or `embedded`.
    pub kind: String,
    /// Frames that it received.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Bursts that they came in.
    pub bursts: u64,
    /// Workers' time by step: `fetch`, `classify`, `deliver`, `copy`, `publish`.
    pub spent: BTreeMap<String, u64>,
    /// The flows of each of its queues, by index.
    #[serde(default)]
    pub flows: Vec<QueueFlows>,
    /// What the guest says of its own time, if it is one that can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestTimes>,
}

/// Flows of TCP and UDP that a queue carried since profiling began: 64 are told apart in each
/// direction, and no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueFlows {
    /// Those that the guest received.
    pub received: usize,
    /// Those that it sent.
    pub sent: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_look_as_documented() {
        let cases = [
            (Request::PortList, r#"{"do":"port.list"}"#),
            (Request::PortShow { name: "a".into() }, r#"{"do":"port.show","name":"a"}"#),
            (Request::PortRemove { name: "a".into() }, r#"{"do":"port.remove","name":"a"}"#),
            (Request::Stats, r#"{"do":"stats"}"#),
            (Request::Mac, r#"{"do":"mac"}"#),
            (Request::Profile { seconds: 5 }, r#"{"do":"profile","seconds":5}"#),
            (Request::PortAdd { port: Map::new() }, r#"{"do":"port.add","port":{}}"#),
        ];
        for (request, json) in cases {
            assert_eq!(serde_json::to_string(&request).unwrap(), json);
            assert_eq!(serde_json::from_str::<Request>(json).unwrap(), request);
        }
    }

    #[test]
    fn sums_keep_reasons_apart() {
        let one = Counts {
            tx_frames: 5,
            kicks: 1,
            drops: [("runt".to_owned(), 2), ("rx_full".to_owned(), 1)].into(),
            ..Counts::default()
        };
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.tx_frames, sum.kicks, sum.dropped()), (10, 2, 6));
        assert_eq!(sum.drops["runt"], 4);
    }
}
