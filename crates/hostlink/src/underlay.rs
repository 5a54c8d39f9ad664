//! An IP underlay: VXLAN tunnels to other hosts as ports.
//!
//! The underlay is one port of the fabric, from which the frames of all other hosts are fetched.
//! The port has a queue pair and a receiving socket for each worker. Each VTEP in each network is
//! another port, to which frames for the VTEP are sent. So a frame's decision names its VTEP, and
//! flow caches, learning, floods and counters work as for all ports.
//!
//! Sent frames are not copied here: the kernel copies them out of the sender's memory, many
//! datagrams by one system call. The flow's hash selects one of [`LANES`] source ports, which
//! spreads flows over paths of the underlay and queues of the receiver.
//!
//! Sockets need no privilege. A [TAP device](Transport::Tap) takes frames to be segmented whole.

mod counters;
mod egress;
mod ingress;
mod receiver;
mod socket;
mod tap;

pub use counters::{SEND_DROPS, UnderlayCounters, UnderlayCounts};
pub use socket::path_mtu;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use frame::Vni;
use network::fabric::{Fabric, FabricError, NewPort};
use network::port::QueueError;
use network::restrictions::Restrictions;
use network::topology::QueueId;
use overlay::{VtepError, VtepTable};
use ring::datagrams::{LANES, Peer};
use ring::region::MapError;
use switch::{PortId, PortRule, Tunnel, Vlan};
use thiserror::Error;

use egress::EgressPair;
use ingress::IngressPair;
use receiver::Receiver;
use tap::receiver::TapReceiver;
use tap::sender::TapSender;

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
    /// The TAP device cannot be used.
    #[error("can't {what} {device:?}: {error}")]
    Tap {
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

/// What carries datagrams between this host's VTEP and the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// UDP sockets. The VTEP has an address of this host.
    Sockets,
    /// A TAP device with this name, to which the host routes the VTEP's address. No interface of
    /// the host has this address, and the host forwards packets. Frames that need no segmentation
    /// are sent by sockets, too.
    Tap(String),
}

impl Transport {
    /// The name in configurations and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Sockets => "udp",
            Transport::Tap(_) => "tap",
        }
    }

    /// The name of the TAP device.
    pub fn device(&self) -> Option<&str> {
        match self {
            Transport::Sockets => None,
            Transport::Tap(device) => Some(device),
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
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&table), self.version())
    }

    fn change<T>(&self, change: impl FnOnce(&mut VtepTable) -> T) -> T {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let done = change(Arc::make_mut(&mut table));
        self.version.fetch_add(1, Ordering::Release);
        done
    }
}

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
}

/// An underlay in service. Dropping it takes its ports out of the fabric.
pub struct Underlay {
    fabric: Arc<Fabric>,
    name: Arc<str>,
    local: SocketAddr,
    port: PortId,
    queues: Vec<QueueId>,
    shared: Arc<Shared>,
    sockets: Vec<Arc<[OwnedFd; LANES]>>,
    /// The queues of the TAP device, one of each worker.
    taps: Vec<Arc<OwnedFd>>,
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
        let workers = fabric.worker_count();
        let failed = |error| UnderlayError::Socket { address: local, error };
        let shared = Arc::new(Shared {
            table: Mutex::new(Arc::new(VtepTable::new(local.ip()))),
            version: AtomicU64::new(0),
            counters: Arc::default(),
        });
        let taps = match transport {
            Transport::Sockets => Vec::new(),
            Transport::Tap(device) => tap::open(device, local, workers)?,
        };
        let (mut pairs, mut sockets) = (Vec::new(), Vec::new());
        for worker in 0..workers {
            let receiver = match taps.get(worker) {
                None => Receiver::of_socket(socket::receiving(local).map_err(failed)?)?,
                Some(queue) => Receiver::Tap(TapReceiver::new(Arc::clone(queue), local)?),
            };
            pairs.push(IngressPair::new(receiver, Arc::clone(&shared)));
            sockets.push(Arc::new(socket::sending(local.ip(), transport).map_err(failed)?));
        }
        let stopped: Arc<Mutex<Option<QueueError>>> = Arc::default();
        // The port belongs to no network: frames come in on the ports of their VTEPs.
        let rule = PortRule { vlan: Vlan::Trunk(Vec::new()), mac: None };
        let port = fabric.add_port(spec(name.into(), rule, None, &stopped))?;
        let attach = |(index, pair)| fabric.attach(port, index, Box::new(pair), false);
        let queues = (0..).zip(pairs).filter_map(attach).collect();
        let (name, peers) = (name.into(), Mutex::default());
        Ok(Underlay { fabric, name, local, port, queues, shared, sockets, taps, peers, stopped })
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
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.table().0.check(peer.vni, peer.vtep)?;
        let vlan = peer.vlan.map_or(Vlan::None, Vlan::Access);
        let name = peer_name(&self.name, peer.vni, peer.vtep).into();
        let rule = PortRule { vlan, mac: None };
        let spec = spec(name, rule, Some(peer.mtu), &self.stopped);
        let port = self.fabric.add_port(NewPort { coalescing: egress::coalescing(), ..spec })?;
        self.fabric.set_tunnel(port, peer.tunnel);
        let address = Peer::new(SocketAddr::new(peer.vtep, self.local.port()));
        let attach = |(index, sockets): (u16, &Arc<_>)| {
            let counters = Arc::clone(&self.shared.counters);
            let tap = self.taps.get(usize::from(index)).and_then(|queue| {
                TapSender::new(Arc::clone(queue), self.local, peer.vtep, peer.vni)
            });
            let pair = EgressPair::new(peer.vni, address, Arc::clone(sockets), tap, counters);
            self.fabric.attach(port, index, Box::new(pair), true)
        };
        let queues = (0..).zip(&self.sockets).filter_map(attach).collect();
        peers.insert((peer.vni, peer.vtep), PeerPort { port, queues });
        // Frames may come in on the port only after it exists.
        self.shared.change(|table| table.add(peer.vni, peer.vtep, port))?;
        Ok(port)
    }

    /// Takes a peer out of service. Returns whether it was there.
    pub fn remove_peer(&self, vni: Vni, vtep: IpAddr) -> bool {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(peer) = peers.remove(&(vni, vtep)) else { return false };
        self.shared.change(|table| table.remove(vni, vtep));
        self.end(peer);
        true
    }

    /// All peers, and the ports that stand for them.
    pub fn peers(&self) -> Vec<(Vni, IpAddr, PortId)> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
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
    let on_error = Arc::new(move |_, error| {
        *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(error)
    });
    let restrictions = Restrictions::default();
    NewPort { name, rule, mtu, on_error, coalescing: None, policy: None, restrictions }
}

impl Drop for Underlay {
    fn drop(&mut self) {
        let peers = std::mem::take(self.peers.get_mut().unwrap_or_else(PoisonError::into_inner));
        peers.into_values().for_each(|peer| self.end(peer));
        for queue in self.queues.drain(..) {
            drop(self.fabric.detach(queue));
        }
        self.fabric.remove_port(self.port);
    }
}
