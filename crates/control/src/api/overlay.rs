//! Overlays: virtual networks, and the tunnels that carry them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::port::PortState;

/// An overlay, its state and its counters.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OverlayReport {
    /// The name. The port of the same name counts all traffic from other hosts.
    pub name: String,
    /// The networks.
    pub networks: Vec<OverlayNetwork>,
    /// This host's VTEP.
    pub local: String,
    /// The UDP port of all VTEPs.
    pub port: u16,
    /// What carries datagrams: `udp`, `tap` or `xdp`.
    #[serde(default)]
    pub underlay: String,
    /// The TAP device, or the interface of the card.
    #[serde(default)]
    pub device: Option<String>,
    /// The source of hosts and stations: `static` or `evpn`.
    pub control: String,
    /// Whether the hosts of stations are learned from their frames.
    pub learning: bool,
    /// `connected`, or `stopped`.
    pub state: PortState,
    /// Why it is not in service, or why one of its peers is not.
    pub reason: Option<String>,
    /// Longest IP packet of the networks; null while the overlay is not in service.
    pub mtu: Option<u16>,
    /// Stations that the configuration names.
    pub macs: usize,
    /// IP addresses of stations on other hosts that the control plane has announced.
    pub neighbours: usize,
    /// IP addresses of stations of this host that are announced.
    #[serde(default)]
    pub announced: usize,
    /// IP addresses that were learned from frames of stations of this host.
    #[serde(default)]
    pub learned: usize,
    /// The other hosts in each network.
    pub peers: Vec<OverlayPeer>,
    /// Received datagrams: those that became frames, and those that were refused.
    pub datagrams_received: u64,
    /// System calls that returned received datagrams.
    pub receive_calls: u64,
    /// Datagrams that the kernel accepted for sending.
    pub datagrams_sent: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Datagrams that were lost, by reason. Frames that were dropped are counted at ports.
    pub drops: BTreeMap<String, u64>,
}

/// A virtual network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OverlayNetwork {
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The VLAN of the network on this host; null: the untagged network.
    pub vlan: Option<u16>,
}

/// Another host in a network.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OverlayPeer {
    /// Its address.
    pub vtep: String,
    /// The network.
    pub vni: u32,
    /// The name of the port that stands for it.
    pub port: String,
    /// Whether it gets a copy of each frame that is flooded.
    pub flood: bool,
    /// Whether the control plane has withdrawn it, and it stays in use for a while.
    pub stale: bool,
    /// Stations that are known to be there.
    pub macs: usize,
    /// Frames that were sent to it.
    pub frames: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Frames for it that were dropped.
    pub dropped: u64,
}
