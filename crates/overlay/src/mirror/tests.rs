mod addresses;

use super::*;

const VNI: u32 = 100;
const DEVICES: Devices = Devices { bridge: 10, vxlan: 11, here: 12 };
const FLOODS: Mac = Mac([0; 6]);

fn vni() -> Vni {
    Vni::new(VNI).unwrap()
}

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn vtep(last: u8) -> IpAddr {
    IpAddr::from([10, 9, 0, last])
}

fn tunnel(mac: Mac, host: u8) -> Row {
    Row::Tunnel { device: DEVICES.vxlan, mac, vtep: vtep(host) }
}

fn bridge(mac: Mac, port: u32) -> Row {
    Row::Bridge { bridge: DEVICES.bridge, port, mac, sticky: false }
}

fn mirror() -> Mirror {
    let mut mirror = Mirror::default();
    mirror.add(vni(), DEVICES);
    mirror
}

/// The rows of a station at another host, as FRR writes them.
fn station(mirror: &mut Mirror, now: u64, last: u8, host: u8, present: bool) {
    mirror.apply(now, tunnel(mac(last), host), present);
    mirror.apply(now, bridge(mac(last), DEVICES.vxlan), present);
}

fn announced(mac: Mac, presence: Presence) -> Announcement {
    Announcement { here: DEVICES.here, mac, presence }
}

/// A mirror of host 3 with stations 1 and 2.
fn settled() -> Mirror {
    let mut m = mirror();
    m.apply(0, tunnel(FLOODS, 3), true);
    station(&mut m, 0, 1, 3, true);
    station(&mut m, 0, 2, 3, true);
    m.reconcile(0);
    m
}

#[test]
fn rows_become_vteps_and_stations_however_often_they_come() {
    let mut m = mirror();
    m.apply(0, tunnel(FLOODS, 3), true);
    m.apply(0, bridge(mac(1), DEVICES.vxlan), true);
    assert_eq!(m.reconcile(0), [Change::Vtep(vni(), vtep(3), true)], "half a station is none");
    for _ in 0..3 {
        m.apply(0, tunnel(mac(1), 3), true);
    }
    assert_eq!(m.reconcile(0), [Change::Station(vni(), mac(1), vtep(3))]);
    station(&mut m, 0, 1, 3, true);
    assert_eq!((m.reconcile(0), m.deadline()), (vec![], None));
    // A VTEP without a row of its own gets no floods until there is one.
    station(&mut m, 0, 2, 4, true);
    let new = [Change::Vtep(vni(), vtep(4), false), Change::Station(vni(), mac(2), vtep(4))];
    assert_eq!(m.reconcile(0), new);
    m.apply(0, tunnel(FLOODS, 4), true);
    assert_eq!(m.reconcile(0), [Change::Vtep(vni(), vtep(4), true)]);
    // Rows of other devices are ignored.
    m.apply(0, Row::Tunnel { device: 99, mac: mac(9), vtep: vtep(9) }, true);
    assert_eq!(m.reconcile(0), []);
}

#[test]
fn a_station_moves_between_hosts() {
    let mut m = settled();
    station(&mut m, 10, 1, 4, true);
    // The old row may go later.
    m.apply(10, tunnel(mac(1), 3), false);
    let moved = [Change::Vtep(vni(), vtep(4), false), Change::Station(vni(), mac(1), vtep(4))];
    assert_eq!(m.reconcile(10), moved);
    // The VTEP goes when its last station has gone.
    station(&mut m, 20, 1, 3, true);
    let back = [Change::Station(vni(), mac(1), vtep(3)), Change::NoVtep(vni(), vtep(4))];
    assert_eq!(m.reconcile(20), back);
}

#[test]
fn a_station_that_is_withdrawn_alone_goes() {
    let mut m = settled();
    station(&mut m, 1000, 1, 3, false);
    assert_eq!(m.reconcile(1000), []);
    assert_eq!(m.deadline(), Some(1000 + QUIET_MS));
    assert_eq!(m.reconcile(1000 + QUIET_MS), [Change::NoStation(vni(), mac(1))]);
    assert_eq!(m.deadline(), None);
    // Continuing withdrawals of others do not delay it for ever.
    let mut m = settled();
    let mut gone = Vec::new();
    for step in 0..40 {
        let now = step * 100;
        station(&mut m, now, 1, 3, false);
        m.reconcile(now).into_iter().for_each(|change| gone.push((now, change)));
        station(&mut m, now, 100 + step as u8, 3, true);
        m.reconcile(now);
        station(&mut m, now, 100 + step as u8, 3, false);
    }
    let first = gone.iter().find(|(_, change)| *change == Change::NoStation(vni(), mac(1)));
    assert_eq!(first.unwrap().0, PATIENCE_MS);
}

#[test]
fn what_goes_with_its_vtep_stays_in_use_for_a_while() {
    let mut m = settled();
    station(&mut m, 1000, 1, 3, false);
    station(&mut m, 1100, 2, 3, false);
    m.apply(1200, tunnel(FLOODS, 3), false);
    assert_eq!(m.reconcile(1200), []);
    let decided = 1200 + QUIET_MS;
    assert_eq!(m.reconcile(decided), []);
    let stale = ((vni(), vtep(3)), Peer { floods: true, stale: true });
    assert_eq!(m.peers().collect::<Vec<_>>(), [stale]);
    assert_eq!(m.deadline(), Some(decided + STALE_MS));
    // The control plane is back, with one of them.
    m.apply(5000, tunnel(FLOODS, 3), true);
    station(&mut m, 5000, 1, 3, true);
    assert_eq!(m.reconcile(5000), []);
    assert_eq!(m.peers().next().unwrap().1, Peer { floods: true, stale: false });
    assert_eq!(m.reconcile(decided + STALE_MS), [Change::NoStation(vni(), mac(2))]);
    assert_eq!(m.deadline(), None);
}

#[test]
fn what_is_stale_is_replaced_at_once_and_forgotten_in_the_end() {
    let mut m = settled();
    for last in [1, 2] {
        station(&mut m, 0, last, 3, false);
    }
    m.apply(0, tunnel(FLOODS, 3), false);
    m.reconcile(0);
    m.reconcile(QUIET_MS);
    station(&mut m, 2000, 1, 4, true);
    m.apply(2000, tunnel(FLOODS, 4), true);
    let replaced = [Change::Vtep(vni(), vtep(4), true), Change::Station(vni(), mac(1), vtep(4))];
    assert_eq!(m.reconcile(2000), replaced);
    let end = [Change::NoStation(vni(), mac(2)), Change::NoVtep(vni(), vtep(3))];
    assert_eq!(m.reconcile(QUIET_MS + STALE_MS), end);
    assert_eq!(m.deadline(), None);
}

#[test]
fn guests_of_this_host_are_announced_and_withdrawn() {
    let mut m = mirror();
    m.begin_dump();
    m.end_dump(0);
    m.set_here(vni(), mac(5), Presence::Moves);
    assert_eq!(m.announcements(0), [announced(mac(5), Presence::Moves)]);
    m.apply(0, bridge(mac(5), DEVICES.here), true);
    assert_eq!(m.announcements(0), []);
    // Another program removes the row.
    m.apply(0, bridge(mac(5), DEVICES.here), false);
    assert_eq!(m.announcements(0), [announced(mac(5), Presence::Moves)]);
    m.apply(0, bridge(mac(5), DEVICES.here), true);
    m.set_here(vni(), mac(5), Presence::Away);
    assert_eq!(m.announcements(0), [announced(mac(5), Presence::Away)]);
}

#[test]
fn a_locked_address_is_sticky_and_what_an_earlier_process_said_is_put_right() {
    let row = |sticky| Row::Bridge { bridge: 10, port: DEVICES.here, mac: mac(5), sticky };
    let mut m = mirror();
    m.begin_dump();
    m.apply(0, row(false), true);
    m.end_dump(0);
    m.set_here(vni(), mac(5), Presence::Sticky);
    assert_eq!(m.announcements(0), [announced(mac(5), Presence::Sticky)]);
    m.apply(0, row(true), true);
    m.set_here(vni(), mac(5), Presence::Sticky);
    assert_eq!(m.announcements(0), []);
    m.set_here(vni(), mac(5), Presence::Moves);
    assert_eq!(m.announcements(0), [announced(mac(5), Presence::Moves)]);
}

#[test]
fn a_guest_that_moves_in_and_out_is_never_taken_from_another_host() {
    let mut m = settled();
    m.set_here(vni(), mac(1), Presence::Moves);
    assert_eq!(m.announcements(0), [announced(mac(1), Presence::Moves)]);
    // The row of the VXLAN device stays when the bridge's moves.
    m.apply(0, bridge(mac(1), DEVICES.here), true);
    assert_eq!(m.reconcile(0), [Change::NoStation(vni(), mac(1))]);
    // The station moves on, and the switch reports afterwards that it is no longer here.
    station(&mut m, 0, 1, 4, true);
    let moved = [Change::Vtep(vni(), vtep(4), false), Change::Station(vni(), mac(1), vtep(4))];
    assert_eq!(m.reconcile(0), moved);
    m.set_here(vni(), mac(1), Presence::Away);
    assert_eq!(m.announcements(0), []);
}

#[test]
fn what_an_earlier_process_announced_stays_until_its_guest_would_be_forgotten() {
    let mut m = mirror();
    m.begin_dump();
    for last in [1, 2] {
        m.apply(0, bridge(mac(last), DEVICES.here), true);
    }
    m.end_dump(0);
    m.set_all_here(vni(), &HashMap::from([(mac(1), Presence::Moves)]));
    assert_eq!(m.announcements(0), []);
    assert_eq!(m.deadline(), Some(ADOPTED_MS));
    assert_eq!(m.announcements(ADOPTED_MS), [announced(mac(2), Presence::Away)]);
    assert_eq!(m.deadline(), None);
}

#[test]
fn a_dump_after_lost_changes_puts_all_right() {
    let mut m = settled();
    m.set_here(vni(), mac(5), Presence::Moves);
    m.announcements(0);
    // Lost: station 2 went, station 3 came, and the row for station 5 was refused.
    m.begin_dump();
    for _ in 0..2 {
        m.apply(0, tunnel(FLOODS, 3), true);
        station(&mut m, 0, 1, 3, true);
        station(&mut m, 0, 3, 3, true);
    }
    m.end_dump(0);
    assert_eq!(m.announcements(0), [announced(mac(5), Presence::Moves)]);
    assert_eq!(m.reconcile(0), [Change::Station(vni(), mac(3), vtep(3))]);
    assert_eq!(m.reconcile(QUIET_MS), [Change::NoStation(vni(), mac(2))]);
}

/// Any sequence of rows, repeated and in any order, gives a result that depends only on the last
/// report of each row.
#[test]
fn the_end_depends_on_the_last_word_on_each_row_only() {
    let mut random = numbers(7);
    for _ in 0..200 {
        let mut m = mirror();
        let mut last: BTreeMap<(u8, u8), bool> = BTreeMap::new();
        let mut now = 0;
        let mut overlay: BTreeMap<Mac, IpAddr> = BTreeMap::new();
        let mut peers = std::collections::BTreeSet::new();
        let mut follow = |changes: Vec<Change>| {
            for change in changes {
                match change {
                    Change::Vtep(_, vtep, _) => _ = peers.insert(vtep),
                    Change::NoVtep(_, vtep) => {
                        assert!(!overlay.values().any(|at| *at == vtep), "it has stations");
                        assert!(peers.remove(&vtep));
                    }
                    Change::Station(_, mac, vtep) => {
                        assert!(peers.contains(&vtep), "its VTEP comes first");
                        overlay.insert(mac, vtep);
                    }
                    Change::NoStation(_, mac) => assert!(overlay.remove(&mac).is_some()),
                    Change::Neighbour(..) => unreachable!("no such row came"),
                }
            }
        };
        for _ in 0..60 {
            now += u64::from(random() % 400);
            let (what, host, present) =
                (random() as u8 % 4, 3 + random() as u8 % 2, random().is_multiple_of(2));
            if what == 0 {
                m.apply(now, tunnel(FLOODS, host), present);
                last.insert((0, host), present);
            } else if present {
                station(&mut m, now, what, host, true);
                last.insert((what, 3), host == 3);
                last.insert((what, 4), host == 4);
            } else if last.get(&(what, host)) == Some(&true) {
                station(&mut m, now, what, host, false);
                last.insert((what, host), false);
            }
            follow(m.reconcile(now));
        }
        while let Some(deadline) = m.deadline() {
            assert!(deadline >= now, "time does not stand still");
            now = deadline;
            follow(m.reconcile(now));
        }
        let want = last.iter().filter(|((what, _), present)| **present && *what > 0);
        let want: BTreeMap<Mac, IpAddr> =
            want.map(|((what, host), _)| (mac(*what), vtep(*host))).collect();
        assert_eq!(overlay, want);
        let floods = last.iter().filter(|((what, _), present)| **present && *what == 0);
        let mut hosts: std::collections::BTreeSet<IpAddr> =
            floods.map(|((_, host), _)| vtep(*host)).collect();
        hosts.extend(want.values());
        assert_eq!(peers, hosts);
    }
}

fn numbers(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}
