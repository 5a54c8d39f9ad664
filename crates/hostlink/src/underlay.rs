//! An IP underlay: VXLAN tunnels to other hosts as ports.
//!
//! The underlay is one port of the fabric, from which the frames of all other hosts are fetched.
//! The port has a queue pair for each worker, or for each queue of a card. Each VTEP in each
//! network is another port, to which frames for the VTEP are sent. So a frame's decision names its
//! VTEP, and flow caches, learning, floods and counters work as for all ports.
//!
//! By sockets, sent frames are not copied here: the kernel copies them out of the sender's memory,
//! many datagrams by one system call. The flow's hash selects one of 16 source ports, which spreads
//! flows over paths of the underlay and queues of the receiver. Sockets need no privilege.
//!
//! A [TAP device](Transport::Tap) takes frames to be segmented whole. A [card](Transport::Card)
//! sends and receives datagrams without the kernel's network stack.

mod arrival;
mod card;
mod counters;
mod datagram;
mod egress;
mod ingress;
mod landed;
mod receiver;
mod senders;
mod socket;
mod tap;

pub use counters::{SEND_DROPS, UnderlayCounters, UnderlayCounts};
pub use socket::path_mtu;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use frame::Vni;
use network::fabric::{Fabric, FabricError, NewPort};
use network::port::QueueError;
use network::restrictions::Restrictions;
use network::topology::QueueId;
use overlay::{VtepError, VtepTable};
use parking_lot::Mutex;
use ring::region::MapError;
use switch::{PortId, PortRule, Tunnel, Vlan};
use thiserror::Error;

use card::SharedMac;
use ingress::IngressPair;
use senders::Senders;

/// Why an underlay, or a peer of it, cannot be used.
#[derive(Debug, Error)]
pub enum UnderlayError {
    /// The local address is not this host's, or another program has the port.
    #[error("can't use {address} for VXLAN: {error}{}", hint(.error))]
    Socket {
        /// Address and port.
        address: SocketAddr,
        /// The kernel's error.
        error: io::Error,
    },
    /// The TAP device, or the card, cannot be used.
    #[error("can't {what} {device:?}: {error}{}", device_hint(.error))]
    Device {
        /// The device.
        device: String,
        /// What was to be done with it.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// No memory for buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The fabric refused a port.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A peer cannot be one.
    #[error(transparent)]
    Vtep(#[from] VtepError),
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => "; it must be an address of this host",
        Some(libc::EADDRINUSE) => {
            "; another program, or a VXLAN device of the kernel, uses the port"
        }
        _ => "",
    }
}

fn device_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; run as root, or with CAP_NET_ADMIN (for a card: CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK, too)"
        }
        Some(libc::ENODEV) => "; there is no such interface",
        Some(libc::EBUSY | libc::EEXIST) => "; another program uses the device",
        _ => "",
    }
}

/// What carries datagrams between this host's VTEP and the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// UDP sockets. The VTEP has an address of this host.
    Sockets,
    /// A TAP device with this name, to which the host routes the VTEP's address. No interface of
    /// the host has this address, and the host forwards packets. Frames that need no segmentation
    /// are sent by sockets, too.
    Tap(String),
    /// Queues of the card whose interface has this name, by AF_XDP. The VTEP has an address of the
    /// interface, and all peers are reached through it.
    Card(String),
}

impl Transport {
    /// The name in configurations and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Sockets => "udp",
            Transport::Tap(_) => "tap",
            Transport::Card(_) => "xdp",
        }
    }

    /// The name of the TAP device, or of the card's interface.
    pub fn device(&self) -> Option<&str> {
        match self {
            Transport::Sockets => None,
            Transport::Tap(device) | Transport::Card(device) => Some(device),
        }
    }
}

/// The table by which workers admit datagrams, and the workers' counters.
pub(crate) struct Shared {
    table: Mutex<Arc<VtepTable>>,
    version: AtomicU64,
    counters: Arc<UnderlayCounters>,
}

impl Shared {
    /// The number of the present table: one load for each system call.
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn table(&self) -> (Arc<VtepTable>, u64) {
        let table = self.table.lock();
        (Arc::clone(&table), self.version())
    }

    fn change<T>(&self, change: impl FnOnce(&mut VtepTable) -> T) -> T {
        let mut table = self.table.lock();
        let done = change(Arc::make_mut(&mut table));
        self.version.fetch_add(1, Ordering::Release);
        done
    }
}

/// Hops that a datagram may take, like one of a socket.
const HOPS: u8 = 64;

/// A peer in a network.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// The network.
    pub vni: Vni,
    /// Its VTEP.
    pub vtep: IpAddr,
    /// The VLAN of the network. `None`: the untagged one.
    pub vlan: Option<u16>,
    /// Longest IP packet that the path carries, in bytes.
    pub mtu: u16,
    /// Split horizon, learning and floods.
    pub tunnel: Tunnel,
}

/// A peer in service.
struct PeerPort {
    port: PortId,
    queues: Vec<QueueId>,
    /// The next hop to it, if a card needs that.
    next_hop: Arc<SharedMac>,
}

/// An underlay in service. Dropping it takes its ports out of the fabric.
pub struct Underlay {
    fabric: Arc<Fabric>,
    name: Arc<str>,
    local: SocketAddr,
    port: PortId,
    queues: Vec<QueueId>,
    shared: Arc<Shared>,
    senders: Senders,
    peers: Mutex<BTreeMap<(Vni, IpAddr), PeerPort>>,
    stopped: Arc<Mutex<Option<QueueError>>>,
}

impl Underlay {
    /// Opens what `transport` needs for each worker, and attaches it. There are no networks yet.
    ///
    /// # Errors
    /// When the kernel or the fabric refuse.
    pub fn start(
        fabric: Arc<Fabric>,
        name: &str,
        local: SocketAddr,
        transport: &Transport,
    ) -> Result<Self, UnderlayError> {
        let shared = Arc::new(Shared {
            table: Mutex::new(Arc::new(VtepTable::new(local.ip()))),
            version: AtomicU64::new(0),
            counters: Arc::default(),
        });
        let (senders, receivers) = Senders::open(transport, local, fabric.worker_count())?;
        let pair = |receiver| Box::new(IngressPair::new(receiver, Arc::clone(&shared)));
        let pairs: Vec<_> = receivers.into_iter().map(pair).collect();
        let stopped: Arc<Mutex<Option<QueueError>>> = Arc::default();
        // The port belongs to no network: frames come in on the ports of their VTEPs.
        let rule = PortRule { vlan: Vlan::Trunk(Vec::new()), mac: None };
        let port = fabric.add_port(spec(name.into(), rule, None, &stopped))?;
        let attach = |(index, pair): (_, Box<IngressPair>)| fabric.attach(port, index, pair, false);
        let queues = (0..).zip(pairs).filter_map(attach).collect();
        let (name, peers) = (name.into(), Mutex::default());
        Ok(Underlay { fabric, name, local, port, queues, shared, senders, peers, stopped })
    }

    /// The port from which frames of other hosts are fetched.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Why the underlay is out of service, if it is.
    pub fn stopped(&self) -> Option<QueueError> {
        *self.stopped.lock()
    }

    /// The counts of datagrams so far.
    pub fn counts(&self) -> UnderlayCounts {
        self.shared.counters.counts()
    }

    /// Makes a network known, perhaps without any peer.
    pub fn add_network(&self, vni: Vni) {
        self.shared.change(|table| table.add_network(vni));
    }

    /// Puts a peer into service. Returns the port that stands for it.
    ///
    /// # Errors
    /// When it cannot be a peer, or there are too many ports.
    pub fn add_peer(&self, peer: &PeerSpec) -> Result<PortId, UnderlayError> {
        let mut peers = self.peers.lock();
        self.shared.table().0.check(peer.vni, peer.vtep)?;
        let vlan = peer.vlan.map_or(Vlan::None, Vlan::Access);
        let name = peer_name(&self.name, peer.vni, peer.vtep).into();
        let rule = PortRule { vlan, mac: None };
        let spec = spec(name, rule, Some(peer.mtu), &self.stopped);
        let card = self.senders.card();
        let coalescing = if card.is_some() { None } else { egress::coalescing() };
        let port = self.fabric.add_port(NewPort { coalescing, ..spec })?;
        self.fabric.set_tunnel(port, peer.tunnel);
        let next_hop = Arc::new(SharedMac::default());
        if let Some(card) = card {
            card.find(self.local.ip(), peer.vtep, &next_hop);
        }
        let pairs = self.senders.pairs(self.local, peer, &next_hop, &self.shared.counters);
        let attach = |(index, pair)| self.fabric.attach(port, index, pair, true);
        let queues = (0..).zip(pairs).filter_map(attach).collect();
        peers.insert((peer.vni, peer.vtep), PeerPort { port, queues, next_hop });
        // Frames may come in on the port only after it exists.
        self.shared.change(|table| table.add(peer.vni, peer.vtep, port))?;
        Ok(port)
    }

    /// Looks up the next hops to all peers again, if datagrams leave without the kernel's routing.
    pub fn refresh(&self) {
        let Some(card) = self.senders.card() else { return };
        let peers = self.peers.lock();
        let hops: BTreeMap<IpAddr, Vec<Arc<SharedMac>>> =
            peers.iter().fold(BTreeMap::new(), |mut hops, ((_, vtep), peer)| {
                hops.entry(*vtep).or_default().push(Arc::clone(&peer.next_hop));
                hops
            });
        // Nothing is locked while the kernel is asked.
        drop(peers);
        for (vtep, macs) in hops {
            card.refresh(self.local.ip(), vtep, &macs);
        }
    }

    /// Takes a peer out of service. Returns whether it was there.
    pub fn remove_peer(&self, vni: Vni, vtep: IpAddr) -> bool {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.remove(&(vni, vtep)) else { return false };
        self.shared.change(|table| table.remove(vni, vtep));
        self.end(peer);
        true
    }

    /// All peers, and the ports that stand for them.
    pub fn peers(&self) -> Vec<(Vni, IpAddr, PortId)> {
        let peers = self.peers.lock();
        peers.iter().map(|((vni, vtep), peer)| (*vni, *vtep, peer.port)).collect()
    }

    fn end(&self, peer: PeerPort) {
        for queue in peer.queues {
            drop(self.fabric.detach(queue));
        }
        self.fabric.remove_port(peer.port);
    }
}

/// The name of the port that stands for a VTEP in a network of the underlay with this name.
pub fn peer_name(underlay: &str, vni: Vni, vtep: IpAddr) -> String {
    format!("{underlay}/{vni}/{vtep}")
}

fn spec(
    name: Arc<str>,
    rule: PortRule,
    mtu: Option<u16>,
    stopped: &Arc<Mutex<Option<QueueError>>>,
) -> NewPort {
    let note = Arc::clone(stopped);
    let on_error = Arc::new(move |_, error| *note.lock() = Some(error));
    let restrictions = Restrictions::default();
    NewPort { name, rule, mtu, on_error, coalescing: None, policy: None, restrictions }
}

impl Drop for Underlay {
    fn drop(&mut self) {
        let peers = std::mem::take(self.peers.get_mut());
        peers.into_values().for_each(|peer| self.end(peer));
        for queue in self.queues.drain(..) {
            drop(self.fabric.detach(queue));
        }
        self.fabric.remove_port(self.port);
    }
}
