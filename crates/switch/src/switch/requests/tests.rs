use std::net::IpAddr;
use std::sync::atomic::Ordering;

use frame::Mac;

use super::*;
use crate::mac::Limits;
use crate::port_rule::PortRule;
use crate::tunnel::{PinKind, Tunnel};
use crate::verdict::Target;
use crate::vlan::Vlan;

const GUEST: PortId = PortId(1);
const OTHER: PortId = PortId(2);
const ENDS: [PortId; 2] = [PortId(10), PortId(11)];
const OWNER: Mac = Mac([2, 0, 0, 0, 0, 7]);

fn address() -> IpAddr {
    IpAddr::from([10, 0, 0, 7])
}

fn request() -> Headers {
    Headers { dst: Mac::BROADCAST, src: Mac([2, 0, 0, 0, 0, 1]), ..Headers::default() }
}

fn station() -> Station {
    Station { network: Network::UNTAGGED, mac: OWNER }
}

/// Two guests and two hosts, of which the second has the owner of the address.
fn switch() -> Switch {
    let mut switch = Switch::new(Limits::default());
    for port in [GUEST, OTHER].into_iter().chain(ENDS) {
        switch.add_port(port, PortRule::default()).unwrap();
    }
    let tunnel = Tunnel { group: 1, learns: false, floods: true };
    ENDS.into_iter().for_each(|port| switch.set_tunnel(port, tunnel));
    switch.pin(station(), ENDS[1], PinKind::Learned).unwrap();
    switch.set_neighbour(Network::UNTAGGED, address(), Some(Owner::host(OWNER)));
    switch
}

fn directed(switch: &mut Switch, ingress: PortId) -> Option<PortId> {
    switch.direct(ingress, &request(), address()).map(|(owner, verdict)| match verdict.decision {
        Decision::To(Target { port, .. }) if owner == Owner::host(OWNER) => port,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_request_goes_to_the_host_of_the_owner_alone() {
    let mut s = switch();
    assert_eq!(directed(&mut s, GUEST), Some(ENDS[1]));
    s.pin(station(), ENDS[0], PinKind::Learned).unwrap();
    assert_eq!(directed(&mut s, GUEST), Some(ENDS[0]), "the owner has moved");
}

#[test]
fn what_is_not_known_goes_to_all() {
    let mut s = switch();
    let exist = s.has_neighbours();
    assert!(exist.load(Ordering::Relaxed));
    assert!(s.direct(GUEST, &request(), IpAddr::from([10, 0, 0, 8])).is_none());
    // The same address in another network is another one.
    let rule = PortRule { vlan: Vlan::Access(5), mac: None };
    s.add_port(PortId(3), rule).unwrap();
    assert_eq!(directed(&mut s, PortId(3)), None);
    s.set_neighbour(Network::UNTAGGED, address(), None);
    assert_eq!(directed(&mut s, GUEST), None);
    assert!(!exist.load(Ordering::Relaxed));
    s.set_neighbour(Network::UNTAGGED, address(), Some(Owner::host(OWNER)));
    s.forget_neighbours(Network::vlan(5).unwrap());
    assert_eq!(directed(&mut s, GUEST), Some(ENDS[1]));
    s.forget_neighbours(Network::UNTAGGED);
    assert!(directed(&mut s, GUEST).is_none() && !exist.load(Ordering::Relaxed));
}

#[test]
fn a_request_behind_a_tag_that_is_payload_is_another_networks() {
    let mut s = switch();
    for tag in [None, Some(5)] {
        let request = Headers { tags: 1, tag, ..request() };
        assert!(s.direct(GUEST, &request, address()).is_none(), "{tag:?}");
    }
}

#[test]
fn an_owner_that_has_come_here_is_asked_as_any_guest_is() {
    let mut s = switch();
    let speaks = Headers { dst: Mac::BROADCAST, src: OWNER, ..Headers::default() };
    s.decide(0, OTHER, &speaks);
    assert_eq!(directed(&mut s, GUEST), None);
}

#[test]
fn requests_of_other_hosts_and_frames_that_may_not_enter_are_not_directed() {
    let mut s = switch();
    assert_eq!(directed(&mut s, ENDS[0]), None);
    s.set_rule(GUEST, PortRule { mac: Some(Mac([2, 0, 0, 0, 0, 9])), ..PortRule::default() })
        .unwrap();
    assert_eq!(directed(&mut s, GUEST), None, "its source is not the port's");
}
