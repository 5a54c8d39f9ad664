//! Hosts in one process, connected by tunnels over the loopback interface.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use frame::{Accepts, Vni};
use hostlink::underlay::{PeerSpec, Transport, Underlay};
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use switch::{PortId, PortRule, Tunnel};

use crate::peer::{self, Peer, wait};

pub fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// A port that no other test has, below those that the kernel gives to sockets by itself.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    20_000 + (std::process::id() % 240) as u16 * 50 + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The address of a host.
pub fn address(host: u8, v6: bool) -> IpAddr {
    match v6 {
        // There is only one IPv6 address of the loopback interface.
        true => "::1".parse().unwrap(),
        false => [127, 0, 0, host].into(),
    }
}

/// A host with one guest.
pub struct Host {
    pub fabric: Arc<Fabric>,
    pub underlay: Underlay,
    pub guest: Peer,
    pub guest_port: PortId,
    pub number: u8,
}

impl Host {
    pub fn new(number: u8, port: u16, workers: usize, accepts: Accepts) -> Host {
        let fabric =
            Arc::new(Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap());
        let local = SocketAddr::new(address(number, false), port);
        let underlay =
            Underlay::start(Arc::clone(&fabric), "net", local, &Transport::Sockets).unwrap();
        underlay.add_network(vni(100));
        let guest_port = peer::port(&fabric, PortRule::default()).0;
        let guest = Peer::attach(&fabric, guest_port, 0, accepts, 1 << 16);
        Host { fabric, underlay, guest, guest_port, number }
    }

    pub fn join(&self, host: u8, tunnel: Tunnel) -> PortId {
        let (vni, vtep) = (vni(100), address(host, false));
        self.underlay.add_peer(&PeerSpec { vni, vtep, vlan: None, mtu: 1450, tunnel }).unwrap()
    }

    pub fn dropped(&self, port: PortId, reason: DropReason) -> u64 {
        self.fabric.counters(port).iter().map(|queue| queue.dropped(reason)).sum()
    }

    pub fn refused(&self, name: &str) -> u64 {
        let drops = self.underlay.counts().drops;
        drops.into_iter().find(|(own, _)| *own == name).unwrap().1
    }

    /// Once all is at rest, every frame is accounted for.
    pub fn check(&self) {
        // What was delivered last is counted as sent a moment later.
        wait(|| self.unaccounted() == 0);
    }

    /// Frames that were sent and are neither received nor dropped, or the other way round.
    fn unaccounted(&self) -> u64 {
        let peers = self.underlay.peers().into_iter().map(|(.., port)| port);
        let ports = peers.chain([self.guest_port, self.underlay.port()]);
        let mut sum = [0u64; 2];
        for queue in ports.flat_map(|port| self.fabric.counters(port)) {
            sum[0] += queue.tx.frames.get() + queue.copies.get();
            sum[1] += queue.rx.frames.get() + queue.dropped_total();
        }
        sum[0].abs_diff(sum[1])
    }
}

/// Hosts with one guest each, every one of them a peer of all others.
pub fn mesh(count: u8, workers: usize, tunnel: Tunnel) -> Vec<Host> {
    mesh_of(count, workers, tunnel, Accepts::default())
}

/// The same, whose guests take these offloads.
pub fn mesh_of(count: u8, workers: usize, tunnel: Tunnel, accepts: Accepts) -> Vec<Host> {
    let port = free_port();
    let hosts: Vec<_> =
        (1..=count).map(|number| Host::new(number, port, workers, accepts)).collect();
    for host in &hosts {
        let others = (1..=count).filter(|other| *other != host.number);
        others.for_each(|other| _ = host.join(other, tunnel));
    }
    hosts
}
