//! IP addresses of stations.

use super::*;

fn learned(address: IpAddr, mac: Mac) -> Row {
    Row::Neighbour { device: DEVICES.bridge, address, owner: Owner::host(mac), learned: true }
}

fn own(address: IpAddr, mac: Mac) -> Row {
    Row::Neighbour { device: DEVICES.bridge, address, owner: Owner::host(mac), learned: false }
}

fn addressed(address: IpAddr, mac: Option<Mac>) -> AddressAnnouncement {
    AddressAnnouncement { bridge: DEVICES.bridge, address, mac }
}

#[test]
fn addresses_follow_the_last_row_and_go_with_it() {
    let row = |last| learned(vtep(99), mac(last));
    let owner = |last: Option<u8>| {
        Change::Neighbour(vni(), vtep(99), last.map(|last| Owner::host(mac(last))))
    };
    let mut m = settled();
    m.apply(0, row(1), true);
    m.apply(0, row(1), true);
    assert_eq!((m.reconcile(0), m.neighbours()), (vec![owner(Some(1))], 1));
    m.apply(0, row(1), true);
    assert_eq!(m.reconcile(0), []);
    m.apply(0, row(2), true);
    assert_eq!(m.reconcile(0), [owner(Some(2))]);
    // The row of an address that goes may have lost its station.
    m.apply(0, learned(vtep(99), FLOODS), false);
    assert_eq!((m.reconcile(0), m.neighbours()), (vec![owner(None)], 0));
    // A dump without the row is the same; rows of other devices are nobody's.
    m.apply(0, row(1), true);
    m.reconcile(0);
    m.begin_dump();
    m.apply(0, tunnel(FLOODS, 3), true);
    station(&mut m, 0, 1, 3, true);
    station(&mut m, 0, 2, 3, true);
    let owner_1 = Owner::host(mac(1));
    let other = Row::Neighbour { device: 99, address: vtep(98), owner: owner_1, learned: true };
    m.apply(0, other, true);
    m.end_dump(0);
    assert_eq!((m.reconcile(0), m.neighbours()), (vec![owner(None)], 0));
}

#[test]
fn addresses_of_guests_are_announced_and_go_with_them() {
    let [first, second] = [vtep(101), vtep(102)];
    let mut m = mirror();
    m.set_here(vni(), mac(5), Presence::Sticky);
    m.set_addresses(vni(), mac(5), &[first, second]);
    let both = [first, second].map(|address| addressed(address, Some(mac(5))));
    assert_eq!(m.address_announcements(), both);
    [first, second].into_iter().for_each(|address| m.apply(0, own(address, mac(5)), true));
    assert_eq!(m.address_announcements(), []);
    // Somebody takes a row away.
    m.apply(0, own(first, mac(5)), false);
    assert_eq!(m.address_announcements(), [addressed(first, Some(mac(5)))]);
    m.apply(0, own(first, mac(5)), true);
    m.set_addresses(vni(), mac(5), &[second]);
    assert_eq!(m.address_announcements(), [addressed(first, None)]);
    m.apply(0, own(first, mac(5)), false);
    m.set_here(vni(), mac(5), Presence::Away);
    assert_eq!(m.address_announcements(), [addressed(second, None)]);
    m.apply(0, own(second, FLOODS), false);
    assert_eq!((m.address_announcements(), m.reconcile(0)), (vec![], vec![]));
}

#[test]
fn an_address_of_another_station_is_left_alone_and_one_that_moves_is_taken() {
    let address = vtep(101);
    let mut m = settled();
    m.apply(0, learned(address, mac(1)), true);
    m.reconcile(0);
    m.set_here(vni(), mac(5), Presence::Sticky);
    m.set_addresses(vni(), mac(5), &[address]);
    assert_eq!(m.address_announcements(), []);
    m.apply(0, learned(address, FLOODS), false);
    assert_eq!(m.address_announcements(), [addressed(address, Some(mac(5)))]);
    // The same station, from another host.
    m.apply(0, learned(address, mac(5)), true);
    assert_eq!(m.address_announcements(), [addressed(address, Some(mac(5)))]);
    m.apply(0, own(address, mac(5)), true);
    assert_eq!((m.address_announcements(), m.neighbours()), (vec![], 0));
}

#[test]
fn an_address_that_two_guests_may_have_is_announced_once_one_is_left() {
    let address = vtep(101);
    let mut m = mirror();
    for guest in [5, 6] {
        m.set_here(vni(), mac(guest), Presence::Sticky);
    }
    m.set_addresses(vni(), mac(5), &[address]);
    assert_eq!(m.address_announcements(), [addressed(address, Some(mac(5)))]);
    m.apply(0, own(address, mac(5)), true);
    m.set_addresses(vni(), mac(6), &[address]);
    assert_eq!(m.address_announcements(), [addressed(address, None)]);
    m.apply(0, own(address, FLOODS), false);
    assert_eq!(m.address_announcements(), []);
    m.set_here(vni(), mac(6), Presence::Away);
    assert_eq!(m.address_announcements(), [addressed(address, Some(mac(5)))]);
}

#[test]
fn addresses_that_guests_say_they_have_are_announced_and_go_with_them() {
    let [first, second] = [vtep(101), vtep(102)];
    let mut m = mirror();
    m.set_here(vni(), mac(5), Presence::Moves);
    m.set_heard(vni(), mac(5), &[first, second]);
    let both = [first, second].map(|address| addressed(address, Some(mac(5))));
    assert_eq!((m.address_announcements(), m.heard(), m.announced()), (both.to_vec(), 2, 0));
    [first, second].into_iter().for_each(|address| m.apply(0, own(address, mac(5)), true));
    m.set_heard(vni(), mac(5), &[second]);
    assert_eq!(m.address_announcements(), [addressed(first, None)]);
    m.apply(0, own(first, mac(5)), false);
    assert_eq!((m.heard(), m.announced()), (1, 1));
    m.set_here(vni(), mac(5), Presence::Away);
    assert_eq!((m.address_announcements(), m.heard()), (vec![addressed(second, None)], 0));
}

#[test]
fn an_address_that_two_guests_say_they_have_is_nobodys() {
    let address = vtep(101);
    let mut m = mirror();
    for guest in [5, 6] {
        m.set_here(vni(), mac(guest), Presence::Moves);
        m.set_heard(vni(), mac(guest), &[address]);
    }
    assert_eq!((m.address_announcements(), m.heard()), (vec![], 1));
    m.set_heard(vni(), mac(5), &[]);
    assert_eq!(m.address_announcements(), [addressed(address, Some(mac(6)))]);
}

#[test]
fn an_address_that_a_guest_is_given_is_never_taken_over_by_one_that_claims_it() {
    let address = vtep(101);
    let mut m = mirror();
    m.set_here(vni(), mac(5), Presence::Sticky);
    m.set_addresses(vni(), mac(5), &[address]);
    m.address_announcements();
    m.apply(0, own(address, mac(5)), true);
    m.set_here(vni(), mac(6), Presence::Moves);
    m.set_heard(vni(), mac(6), &[address]);
    m.set_heard(vni(), mac(5), &[address]);
    assert_eq!(m.address_announcements(), []);
    // Nor is it by somebody who is announced on another host.
    m.set_addresses(vni(), mac(5), &[]);
    m.set_heard(vni(), mac(5), &[]);
    assert_eq!(m.address_announcements(), [addressed(address, Some(mac(6)))]);
    m.apply(0, learned(address, mac(1)), true);
    m.set_heard(vni(), mac(6), &[address]);
    assert_eq!(m.address_announcements(), []);
}

#[test]
fn addresses_of_an_earlier_process_stay_as_long_as_their_guests() {
    let address = vtep(101);
    let mut m = mirror();
    m.begin_dump();
    m.apply(0, bridge(mac(5), DEVICES.here), true);
    m.apply(0, own(address, mac(5)), true);
    m.end_dump(0);
    assert_eq!((m.announcements(0), m.address_announcements()), (vec![], vec![]));
    // The guest speaks, and has the address no more.
    m.set_here(vni(), mac(5), Presence::Sticky);
    m.set_addresses(vni(), mac(5), &[]);
    assert_eq!(m.address_announcements(), [addressed(address, None)]);

    // The guest speaks, and leaves.
    let mut m = mirror();
    m.begin_dump();
    m.apply(0, bridge(mac(5), DEVICES.here), true);
    m.apply(0, own(address, mac(5)), true);
    m.end_dump(0);
    m.set_here(vni(), mac(5), Presence::Moves);
    m.set_heard(vni(), mac(5), &[address]);
    assert_eq!(m.address_announcements(), []);
    m.set_here(vni(), mac(5), Presence::Away);
    assert_eq!(m.address_announcements(), [addressed(address, None)]);

    let mut m = mirror();
    m.begin_dump();
    m.apply(0, bridge(mac(5), DEVICES.here), true);
    m.apply(0, own(address, mac(5)), true);
    m.end_dump(0);
    m.announcements(ADOPTED_MS);
    assert_eq!(m.address_announcements(), [addressed(address, None)], "it is silent");
}

#[test]
fn addresses_are_bounded() {
    let mut m = mirror();
    let row = |n: u32| learned(IpAddr::from(n.to_be_bytes()), mac(1));
    (0..MAX_STATIONS as u32 + 3).for_each(|n| m.apply(0, row(n), true));
    assert_eq!((m.neighbours(), m.refused()), (MAX_STATIONS, 3));
    // One that is known may still change.
    m.apply(0, row(0), true);
    assert_eq!(m.refused(), 3);
}
