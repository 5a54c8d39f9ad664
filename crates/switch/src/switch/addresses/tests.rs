use std::collections::BTreeSet;

use frame::Mac;

use super::*;
use crate::address::{ADDRESS_AGE, MAX_ADDRESSES};
use crate::mac::Limits;
use crate::port_rule::PortRule;
use crate::sightings::Sighted;
use crate::tunnel::{PinKind, Tunnel};
use crate::vlan::Vlan;

const GUEST: PortId = PortId(1);
const LOCKED: PortId = PortId(2);
const OTHER: PortId = PortId(3);
const END: PortId = PortId(4);

fn station(last: u8) -> Station {
    Station { network: Network::UNTAGGED, mac: Mac([2, 0, 0, 0, 0, last]) }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn headers(last: u8) -> Headers {
    Headers { dst: Mac::BROADCAST, src: station(last).mac, ..Headers::default() }
}

/// A frame of a station claims an address.
fn says(s: &mut Switch, now: u32, port: PortId, last: u8, address: IpAddr) -> bool {
    s.decide(now, port, &headers(last));
    s.hear_address(now, port, &headers(last), address)
}

fn of(s: &Switch, last: u8) -> Vec<IpAddr> {
    s.addresses_of(station(last))
}

/// The stations that have changed.
fn told(s: &mut Switch, id: WatcherId) -> BTreeSet<Station> {
    let (Sighted::Some(stations) | Sighted::All(stations)) = s.sighted(id);
    stations.into_iter().map(|(station, _)| station).collect()
}

/// Two ports of guests, one that is locked to station 2, and the end of a tunnel.
fn watched() -> (Switch, WatcherId) {
    let mut switch = Switch::new(Limits::default());
    for port in [GUEST, OTHER, END] {
        switch.add_port(port, PortRule::default()).unwrap();
    }
    let locked = PortRule { mac: Some(station(2).mac), ..PortRule::default() };
    switch.add_port(LOCKED, locked).unwrap();
    switch.set_tunnel(END, Tunnel { group: 0, learns: false, floods: true });
    let id = switch.watch(Arc::new(|| ()));
    switch.learn_addresses(id, vec![Network::UNTAGGED]);
    switch.sighted(id);
    (switch, id)
}

#[test]
fn watchers_are_told_of_addresses_once() {
    let (mut s, id) = watched();
    assert!(says(&mut s, 0, GUEST, 1, address(1)) && says(&mut s, 0, LOCKED, 2, address(2)));
    assert_eq!(told(&mut s, id), [station(1), station(2)].into());
    assert_eq!((of(&s, 1), of(&s, 2)), (vec![address(1)], vec![address(2)]));
    says(&mut s, 5, GUEST, 1, address(1));
    assert!(told(&mut s, id).is_empty(), "nothing is new");
    says(&mut s, 5, GUEST, 1, address(11));
    assert_eq!(told(&mut s, id), [station(1)].into());
}

#[test]
fn addresses_go_with_their_station_and_when_they_are_not_heard_any_more() {
    let (mut s, id) = watched();
    let hear = |s: &mut Switch, now| {
        for (port, last) in [(GUEST, 1), (LOCKED, 2)] {
            assert!(says(s, now, port, last, address(last)));
        }
        told(s, id);
    };
    hear(&mut s, 0);
    s.pin(station(1), END, PinKind::Learned).unwrap();
    assert_eq!((told(&mut s, id), of(&s, 1)), ([station(1)].into(), vec![]), "it moves away");
    hear(&mut s, 0);
    says(&mut s, 0, OTHER, 1, address(9));
    assert_eq!(of(&s, 1), [address(9)], "to another port of this host");
    hear(&mut s, 0);
    s.remove_port(GUEST);
    s.remove_port(LOCKED);
    assert_eq!(told(&mut s, id), [station(1), station(2)].into());
    assert_eq!((of(&s, 1), of(&s, 2)), (vec![], vec![]), "its port goes");
    let (mut s, id) = watched();
    hear(&mut s, 0);
    // Its frames go on; it says nothing of the address.
    for now in (0..=ADDRESS_AGE + 100).step_by(100) {
        s.decide(now, GUEST, &headers(1));
        s.age(now);
    }
    assert_eq!((told(&mut s, id).contains(&station(1)), of(&s, 1)), (true, vec![]));
}

#[test]
fn a_guest_that_claims_thousands_is_refused_and_its_neighbours_are_not() {
    let (mut s, _) = watched();
    let claims = (0..5000u32).filter(|n| {
        let [.., c, d] = n.to_be_bytes();
        says(&mut s, 0, GUEST, d % 2, IpAddr::from([10, 1, c, d]))
    });
    assert_eq!(claims.count(), MAX_ADDRESSES);
    assert!(says(&mut s, 0, OTHER, 9, address(9)) && says(&mut s, 0, LOCKED, 2, address(2)));
}

#[test]
fn an_address_that_another_port_is_given_is_not_learned() {
    let (mut s, id) = watched();
    assert!(says(&mut s, 0, GUEST, 1, address(2)) && says(&mut s, 0, GUEST, 1, address(1)));
    told(&mut s, id);
    s.give_addresses(LOCKED, vec![address(2)]);
    assert_eq!(of(&s, 1), [address(1)], "whoever was earlier has lost it");
    assert_eq!(told(&mut s, id), [station(1), station(2)].into());
    assert!(!says(&mut s, 0, GUEST, 1, address(2)));
    assert!(says(&mut s, 0, LOCKED, 2, address(2)));
    // Another port that is also given the address may claim it.
    s.give_addresses(GUEST, vec![address(2)]);
    assert!(says(&mut s, 0, GUEST, 1, address(2)));
    s.give_addresses(GUEST, vec![]);
    assert!(of(&s, 1).is_empty(), "what it may claim has changed");
    s.remove_port(LOCKED);
    assert!(says(&mut s, 0, GUEST, 1, address(2)));
}

#[test]
fn an_address_that_is_given_in_another_network_is_free_here() {
    let (mut s, _) = watched();
    let vlan = PortRule { vlan: Vlan::Access(7), ..PortRule::default() };
    s.add_port(PortId(9), vlan).unwrap();
    s.give_addresses(PortId(9), vec![address(1)]);
    assert!(says(&mut s, 0, GUEST, 1, address(1)));
    assert_eq!(of(&s, 1), [address(1)]);
    // No watcher wants the addresses of that network.
    assert!(says(&mut s, 0, PortId(9), 5, address(5)));
    let there = Station { network: Network::vlan(7).unwrap(), ..station(5) };
    assert!(s.addresses_of(there).is_empty());
}

#[test]
fn what_comes_from_another_host_teaches_nothing_and_raises_doubts() {
    let (mut s, id) = watched();
    says(&mut s, 0, GUEST, 1, address(1));
    told(&mut s, id);
    assert!(says(&mut s, 0, END, 7, address(7)));
    assert!(of(&s, 7).is_empty() && told(&mut s, id).is_empty());
    assert!(says(&mut s, 0, END, 7, address(1)));
    assert_eq!((told(&mut s, id), of(&s, 1)), ([station(1)].into(), vec![]));
    s.age(100);
    assert_eq!((told(&mut s, id), of(&s, 1)), ([station(1)].into(), vec![address(1)]));
}

#[test]
fn frames_that_may_not_enter_and_those_behind_a_tag_teach_nothing() {
    let (mut s, id) = watched();
    assert!(says(&mut s, 0, GUEST, 2, address(2)) && says(&mut s, 0, LOCKED, 3, address(3)));
    let tagged = Headers { tag: Some(5), tags: 1, ..headers(1) };
    s.decide(0, GUEST, &tagged);
    assert!(s.hear_address(0, GUEST, &tagged, address(1)));
    // No address is learned for a station that was not heard yet.
    assert!(s.hear_address(0, OTHER, &headers(6), address(6)));
    assert!([1, 2, 3, 6].iter().all(|last| of(&s, *last).is_empty()));
    // Without a watcher that asks, nobody learns.
    assert!(s.learns_addresses().load(std::sync::atomic::Ordering::Relaxed));
    says(&mut s, 0, GUEST, 1, address(1));
    s.unwatch(id);
    assert!(!s.learns_addresses().load(std::sync::atomic::Ordering::Relaxed));
    assert!(of(&s, 1).is_empty());
}

#[test]
fn another_switch_goes_on_with_the_addresses() {
    let (mut old, _) = watched();
    for (port, last) in [(GUEST, 1), (LOCKED, 2), (OTHER, 3)] {
        assert!(says(&mut old, 0, port, last, address(last)));
    }
    let (mut new, _) = watched();
    new.give_addresses(OTHER, vec![address(1)]);
    for (port, last) in [(GUEST, 1), (OTHER, 3)] {
        new.learn(0, station(last), port);
    }
    for (station, port, address) in old.heard_addresses() {
        new.learn_address(0, station, port, address);
    }
    assert!(of(&new, 1).is_empty(), "the configuration gives it to another port now");
    assert_eq!((of(&new, 2), of(&new, 3)), (vec![address(2)], vec![address(3)]));
    // The first frame of a station changes nothing.
    new.decide(1, LOCKED, &headers(2));
    new.decide(1, OTHER, &headers(3));
    assert_eq!((of(&new, 2), of(&new, 3)), (vec![address(2)], vec![address(3)]));
    // A station that is at another port now has no address there.
    new.learn_address(1, station(1), OTHER, address(5));
    assert!(of(&new, 1).is_empty());
}
