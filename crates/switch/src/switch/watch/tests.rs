use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use frame::{Headers, Mac};

use super::*;
use crate::mac::Limits;
use crate::port_id::PortId;
use crate::port_rule::PortRule;
use crate::sightings::MOST;
use crate::tunnel::{PinKind, Tunnel};
use crate::vlan::Network;

const GUEST: PortId = PortId(1);
const LOCKED: PortId = PortId(2);
const END: PortId = PortId(3);

fn station(last: u8) -> Station {
    Station { network: Network::UNTAGGED, mac: Mac([2, 0, 0, 0, 0, last]) }
}

fn switch() -> Switch {
    let mut switch = Switch::new(Limits::default());
    switch.add_port(GUEST, PortRule::default()).unwrap();
    let locked = PortRule { mac: Some(station(2).mac), ..PortRule::default() };
    switch.add_port(LOCKED, locked).unwrap();
    switch.add_port(END, PortRule::default()).unwrap();
    switch.set_tunnel(END, Tunnel { group: 0, learns: false, floods: true });
    switch
}

fn send(switch: &mut Switch, now: u32, port: PortId, last: u8) {
    let headers = Headers { dst: Mac::BROADCAST, src: station(last).mac, ..Headers::default() };
    switch.decide(now, port, &headers);
}

fn watched() -> (Switch, WatcherId, Arc<AtomicUsize>) {
    let mut switch = switch();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let id = switch.watch(Arc::new(move || _ = counter.fetch_add(1, Ordering::Relaxed)));
    (switch, id, calls)
}

fn some(mut stations: Vec<(Station, Presence)>) -> Sighted {
    stations.sort_unstable();
    Sighted::Some(stations)
}

fn sighted(switch: &mut Switch, id: WatcherId) -> Sighted {
    match switch.sighted(id) {
        Sighted::Some(stations) => some(stations),
        all @ Sighted::All(_) => all,
    }
}

#[test]
fn stations_of_guests_are_told_when_they_come_and_go() {
    let (mut s, id, calls) = watched();
    send(&mut s, 0, END, 9);
    assert_eq!(s.sighted(id), Sighted::All(vec![]));
    send(&mut s, 0, GUEST, 1);
    send(&mut s, 0, LOCKED, 2);
    send(&mut s, 0, END, 9);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "one call until it asks");
    assert_eq!(
        sighted(&mut s, id),
        some(vec![(station(1), Presence::Learned), (station(2), Presence::Locked)])
    );
    send(&mut s, 200, GUEST, 1);
    send(&mut s, 200, LOCKED, 2);
    assert_eq!(s.sighted(id), Sighted::Some(vec![]), "nothing is new");
    s.age(400);
    assert_eq!(s.sighted(id), Sighted::Some(vec![]));
    s.age(600);
    assert_eq!(
        sighted(&mut s, id),
        some(vec![(station(1), Presence::Away), (station(2), Presence::Away)])
    );
    send(&mut s, 600, LOCKED, 2);
    s.remove_port(LOCKED);
    assert_eq!(sighted(&mut s, id), some(vec![(station(2), Presence::Away)]));
}

#[test]
fn a_station_that_a_control_plane_places_elsewhere_comes_back_by_a_frame() {
    let (mut s, id, _) = watched();
    send(&mut s, 0, GUEST, 1);
    s.sighted(id);
    s.pin(station(1), END, PinKind::Learned).unwrap();
    assert_eq!(s.sighted(id), Sighted::Some(vec![(station(1), Presence::Away)]));
    // A frame from another host does not move a station that the control plane has pinned.
    send(&mut s, 0, END, 1);
    assert_eq!(s.tunnels.pinned(station(1)), Some(END));
    send(&mut s, 0, GUEST, 1);
    assert_eq!(s.sighted(id), Sighted::Some(vec![(station(1), Presence::Learned)]));
    assert_eq!(s.tunnels.pinned(station(1)), None);
    // The configuration overrides a frame.
    s.pin(station(1), END, PinKind::Sticky).unwrap();
    send(&mut s, 0, GUEST, 1);
    assert_eq!(s.tunnels.pinned(station(1)), Some(END));
}

#[test]
fn who_is_told_too_much_looks_at_all() {
    let (mut s, id, _) = watched();
    s.sighted(id);
    for n in 0..=MOST as u32 {
        let [a, b, c, d] = n.to_be_bytes();
        let station = Station { mac: Mac([2, 1, a, b, c, d]), ..station(0) };
        s.learn(0, station, GUEST);
        s.pin(station, END, PinKind::Learned).unwrap();
    }
    send(&mut s, 0, GUEST, 1);
    assert_eq!(s.sighted(id), Sighted::All(vec![(station(1), Presence::Learned)]));
    assert_eq!(s.sighted(id), Sighted::Some(vec![]));
    s.unwatch(id);
    send(&mut s, 0, LOCKED, 2);
    assert_eq!(s.table.sightings.heard().count(), 0, "nobody asks");
}
