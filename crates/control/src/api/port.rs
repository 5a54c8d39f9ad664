//! Ports, their queues and their counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Durations;
use super::limits::LimitsReport;
use crate::kind::Kind;

/// The state of a port with respect to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Waiting for a front-end to connect.
    #[default]
    Listening,
    /// Attempting to connect to a front-end.
    Connecting,
    /// A peer is there.
    Connected,
    /// The interface of the host is down.
    Down,
    /// A peer is there, and posts no buffers for the frames that arrive.
    Stalled,
    /// The port is out of service for good, or never was in service; there is a reason.
    Stopped,
}

impl PortState {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Listening => "listening",
            PortState::Connecting => "connecting",
            PortState::Connected => "connected",
            PortState::Down => "down",
            PortState::Stalled => "stalled",
            PortState::Stopped => "stopped",
        }
    }
}

/// A port, its state and its counters.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PortReport {
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: Kind,
    /// Path of the socket, of a vhost-user or embedded port.
    pub socket: Option<String>,
    /// `server` or `client`, of a vhost-user port.
    pub mode: Option<String>,
    /// The interface of a TAP port; the hotplug script of the vifs that are served.
    pub device: Option<String>,
    /// The state with respect to the peer.
    pub state: PortState,
    /// Why the port is stopped or down, why its last session was ended, or why it cannot connect.
    pub reason: Option<String>,
    /// Process id of the front-end that is connected.
    pub peer: Option<i32>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were ended because the peer broke the protocol.
    pub violations: u64,
    /// Messages of a front-end that waited because the port's control budget was used up. For Xen:
    /// changes of a frontend's state.
    #[serde(default)]
    pub control_delayed: u64,
    /// Rings of a vhost-user port that continued at their own position, although the front-end
    /// named another one. The cause is an earlier daemon that was killed.
    #[serde(default)]
    pub recovered_rings: u64,
    /// Rings of a vhost-user port whose position could not be determined, and may be unknown to the
    /// front-end as well.
    #[serde(default)]
    pub unclear_rings: u64,
    /// The part of the peer's memory that this process has allocated, of a vhost-user port.
    #[serde(default)]
    pub memory: Option<MemoryReport>,
    /// Access VLAN.
    pub vlan: Option<u16>,
    /// VLANs of a tagged port.
    pub trunk: Vec<u16>,
    /// The only source address that the port accepts.
    pub mac: Option<String>,
    /// Longest IP packet in bytes.
    pub mtu: Option<u16>,
    /// How the port is served where there is a choice, by the keys of the configuration in snake
    /// case.
    pub options: BTreeMap<String, Json>,
    /// Limits of the port.
    #[serde(default)]
    pub limits: LimitsReport,
    /// The budget that it shares with other ports.
    #[serde(default)]
    pub budget: Option<String>,
    /// The addresses that its frames may claim; empty: any.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The security groups whose rules allow its connections; empty: it may have any.
    #[serde(default)]
    pub security_groups: Vec<String>,
    /// Connections that the port's filter tracks; null: the port has no filter.
    #[serde(default)]
    pub tracked_connections: Option<u64>,
    /// The port that gets copies of its frames.
    #[serde(default)]
    pub mirror: Option<String>,
    /// The peer's pages that stay mapped, if any may.
    pub cache: Option<CacheReport>,
    /// The device whose receive queues guests can have. For a guest that asked for a queue: its
    /// queue, or why it has none.
    pub device_queue: Option<String>,
    /// The features that were negotiated with the peer, by name.
    pub features: Vec<String>,
    /// The bytes that the guest's own hypervisor calls have copied, if any.
    pub guest_copies: Option<GuestCopies>,
    /// A guest's use of the store of its hypervisor, if it is embedded here.
    #[serde(default)]
    pub store: Option<StoreReport>,
    /// Most queue pairs of the port.
    pub queue_pairs: u16,
    /// Sum over all queues.
    pub total: Counts,
    /// The times that senders waited because the port was full.
    #[serde(default)]
    pub waits: Durations,
    /// Queue pairs that were in use since the port was added.
    pub queues: Vec<QueueReport>,
}

impl PortReport {
    /// The end that the port attaches to: a socket or an interface.
    pub fn endpoint(&self) -> &str {
        self.socket.as_deref().or(self.device.as_deref()).unwrap_or("")
    }
}

/// Memory of a front-end that the daemon was the first to touch, and that is therefore charged to
/// the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes in this session: an upper bound.
    pub allocated_bytes: u64,
    /// Bytes that may be allocated.
    pub limit_bytes: u64,
}

/// The cache of a guest's mapped pages, since the guest connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CacheReport {
    /// Pages that are mapped now.
    pub pages: u64,
    /// Pages that may be mapped.
    pub limit: u64,
    /// Copied pages that were mapped already.
    pub hits: u64,
    /// Copied pages that were not mapped.
    pub misses: u64,
}

/// The copies that a guest's hypervisor has made for it. The CPU time is charged to the guest, and
/// not to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GuestCopies {
    /// Calls of the hypervisor.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Microseconds for which calls were left waiting, because the guest used more CPU time than
    /// its share.
    #[serde(default)]
    pub throttled_us: u64,
}

/// The work that a guest's store has done for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreReport {
    /// Requests.
    pub requests: u64,
    /// Requests that were refused because a quota was used up.
    pub refused: u64,
    /// Microseconds for which requests were left waiting, because there were too many.
    pub throttled_us: u64,
}

/// Counters of one queue pair. *Tx* is what the guest transmits, *Rx* what it receives.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueReport {
    /// Number of the queue pair in its port.
    pub index: u16,
    /// The worker that serves it; null if the peer has disabled it.
    pub worker: Option<usize>,
    /// Whether a device fills its Rx ring. Such a queue is no pair, and does not count as one.
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
            /// Frames that were dropped, by reason.
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
    /// Times that completed Tx entries were published without an interrupt, as the guest asked.
    tx_suppressed,
    /// Frames delivered to the guest.
    rx_frames,
    /// Bytes of those frames.
    rx_bytes,
    /// Bursts that delivered at least one frame.
    rx_bursts,
    /// Interrupts sent for Rx entries.
    rx_interrupts,
    /// Times that Rx entries were published without an interrupt, as the guest asked.
    rx_suppressed,
    /// Times that the interrupt for published Rx entries was postponed, to be shared with others.
    rx_deferred,
    /// Frames that a device wrote into the guest's buffers; they are not among those delivered.
    direct_frames,
    /// Bytes of those frames.
    direct_bytes,
    /// Frames that flooding and segmentation added to those fetched.
    copies,
    /// Times that a frame was held back because a receiver was full.
    blocked,
    /// Nanoseconds for which senders waited for room.
    waited_ns,
    /// Times that frames waited in the guest's ring because the rate of its port, or of the port's
    /// budget, was used up.
    tx_limited,
    /// Page faults in the guest's memory, counted while a worker has many.
    page_faults,
    /// Times that frames waited in the guest's ring because page faults in its memory had taken too
    /// much time.
    fault_waits,
    /// Interrupts that took long to send, because many watch the guest's descriptor.
    slow_interrupts,
    /// Requests of the guest for IP addresses of guests on other hosts that were answered here.
    answered_requests,
    /// Times that an IP address which the guest says it has was not learned, because there were too
    /// many or the configuration gives the address to another port.
    refused_addresses,
    /// Wake-ups by the guest.
    kicks,
}

impl Counts {
    /// Frames that were dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn enumerations_are_snake_case_and_unset_fields_are_null() {
        let json = serde_json::to_value(PortReport::default()).unwrap();
        assert_eq!((&json["kind"], &json["state"]), (&"vhost_user".into(), &"listening".into()));
        assert!(json.as_object().unwrap().contains_key("vlan") && json["vlan"].is_null());
    }
}
