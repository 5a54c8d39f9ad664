//! IP addresses that guests show in their own ARP messages, learned for whoever watches.

use std::net::IpAddr;
use std::sync::Arc;

use crate::peer::{Peer, port, udp, wait};
use frame::{Accepts, Mac};
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use network::restrictions::Restrictions;
use switch::{MAX_ADDRESSES, Network, PortId, PortRule, SourceGuard, Station, Tunnel};

/// Station 0 says that it has 10.0.`high`.`low`.
fn announcement(high: u8, low: u8) -> Vec<u8> {
    let own = [10, 0, high, low];
    let ethernet = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0], &[8, 6]].concat();
    let says = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[2, 0, 0, 0, 0, 0], &own].concat();
    [&ethernet[..], &says, &[0; 6], &own, &[0; 18]].concat()
}

/// A guest and the end of a tunnel; somebody watches.
struct Site {
    fabric: Fabric,
    port: PortId,
    others: PortId,
    guest: Peer,
    other: Peer,
}

impl Site {
    fn new() -> Site {
        let fabric = Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap();
        let ports = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
        let attach = |port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX);
        let (guest, other) = (attach(ports[0]), attach(ports[1]));
        fabric.set_tunnel(ports[1], Tunnel { group: 1, learns: false, floods: true });
        let watcher = fabric.watch(Arc::new(|| ()));
        fabric.learn_addresses(watcher, vec![Network::UNTAGGED]);
        Site { fabric, port: ports[0], others: ports[1], guest, other }
    }

    fn learned(&self) -> Vec<IpAddr> {
        let station = Station { network: Network::UNTAGGED, mac: Mac([2, 0, 0, 0, 0, 0]) };
        self.fabric.learned_addresses(station)
    }

    fn refused(&self) -> u64 {
        self.fabric.counters(self.port).iter().map(|queue| queue.refused_addresses.get()).sum()
    }

    /// Has the guest send frames, and waits until they are done.
    fn send(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let frames: Vec<_> = frames.into_iter().collect();
        let done = self.guest.completed() + frames.len();
        self.guest.send(frames);
        wait(|| self.guest.completed() == done);
    }
}

#[test]
fn an_address_is_learned_and_the_frame_goes_where_it_went() {
    let site = Site::new();
    site.send([udp(0xff, 0, 0, 0, 60), announcement(0, 1), udp(0xff, 0, 0, 1, 60)]);
    assert_eq!(site.learned(), [IpAddr::from([10, 0, 0, 1])]);
    let frames = [udp(0xff, 0, 0, 0, 60), announcement(0, 1), udp(0xff, 0, 0, 1, 60)];
    assert_eq!(site.other.expect(3), frames);
}

#[test]
fn a_guest_that_claims_thousands_gets_its_share_and_all_else_is_counted() {
    let site = Site::new();
    for high in 0..20 {
        site.send((1..=100).map(|low| announcement(high, low)));
    }
    assert_eq!(site.learned().len(), MAX_ADDRESSES);
    // A frame that waits is looked at again, and counted again.
    assert!(site.refused() >= 2000 - MAX_ADDRESSES as u64, "{}", site.refused());
}

#[test]
fn the_source_guard_comes_before_learning_and_its_change_forgets() {
    let site = Site::new();
    let guarded = |addresses: &str| {
        let guard = SourceGuard::new(vec![addresses.parse().unwrap()]);
        let restrictions = Restrictions { guard: Some(Arc::new(guard)), ..Restrictions::default() };
        site.fabric.set_restrictions(site.port, restrictions);
    };
    guarded("10.0.1.0/24");
    site.send([announcement(1, 1), announcement(2, 1)]);
    assert_eq!(site.learned(), [IpAddr::from([10, 0, 1, 1])]);
    let queues = site.fabric.counters(site.port);
    assert_eq!(queues[0].dropped(DropReason::ArpSpoofed), 1);
    guarded("10.0.1.0/24");
    assert_eq!(site.learned().len(), 1, "nothing has changed");
    guarded("10.0.2.0/24");
    assert!(site.learned().is_empty());
    site.send([announcement(1, 1), announcement(2, 1)]);
    assert_eq!(site.learned(), [IpAddr::from([10, 0, 2, 1])]);
    assert_eq!(site.refused(), 0);
}

#[test]
fn a_guest_alone_on_its_host_is_learned() {
    let site = Site::new();
    site.fabric.remove_port(site.others);
    site.send([announcement(0, 1)]);
    assert_eq!(site.learned(), [IpAddr::from([10, 0, 0, 1])]);
}
