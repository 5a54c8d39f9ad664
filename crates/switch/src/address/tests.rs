use super::*;

const PORTS: [PortId; 3] = [PortId(1), PortId(2), PortId(3)];

fn station(last: u8) -> Station {
    Station { network: Network::UNTAGGED, mac: Mac([2, 0, 0, 0, 0, last]) }
}

fn address(n: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + n).to_be_bytes())
}

fn of(table: &Addresses, last: u8) -> Vec<IpAddr> {
    table.of(station(last)).collect()
}

#[test]
fn a_port_that_claims_thousands_gets_no_more_than_its_share() {
    let mut table = Addresses::default();
    let refused = (0..5000).filter(|n| {
        let station = station(*n as u8 % 4);
        table.hear(0, station, PORTS[0], address(*n)) == Heard::Refused
    });
    assert_eq!(refused.count(), 5000 - MAX_ADDRESSES);
    let known: usize = (0..4).map(|last| of(&table, last).len()).sum();
    assert_eq!((known, table.holders.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
    // Known addresses stay known, and other ports can still learn.
    assert_eq!(table.hear(1, station(0), PORTS[0], address(0)), Heard::Known);
    assert_eq!(table.hear(1, station(9), PORTS[1], address(0)), Heard::New);
}

#[test]
fn addresses_that_are_not_heard_any_more_age_out() {
    let mut table = Addresses::default();
    table.hear(10, station(1), PORTS[0], address(1));
    table.hear(10, station(1), PORTS[0], address(2));
    table.hear(500, station(1), PORTS[0], address(2));
    assert!(table.age(10 + ADDRESS_AGE).is_empty());
    assert_eq!(table.age(11 + ADDRESS_AGE), [station(1)].into());
    assert_eq!(of(&table, 1), [address(2)]);
    assert!(table.age(5).is_empty(), "time that runs backwards");
}

#[test]
fn an_address_that_another_host_claims_is_told_to_nobody_for_a_while() {
    let mut table = Addresses::default();
    table.hear(0, station(1), PORTS[0], address(1));
    table.hear(0, station(1), PORTS[0], address(2));
    assert!(table.dispute(0, station(1), address(1)).is_empty(), "the same station");
    assert!(table.dispute(0, station(7), address(3)).is_empty(), "nobody's");
    assert_eq!(table.dispute(5, station(7), address(1)), [station(1)]);
    assert!(table.dispute(50, station(7), address(1)).is_empty(), "nothing is new");
    // Hearing the address again does not end the dispute.
    assert_eq!(table.hear(60, station(1), PORTS[0], address(1)), Heard::Known);
    assert_eq!(of(&table, 1), [address(2)]);
    assert!(table.age(50 + DISPUTE - 1).is_empty());
    assert_eq!(table.age(50 + DISPUTE), [station(1)].into());
    assert_eq!((of(&table, 1), table.disputes.len()), (vec![address(1), address(2)], 0));
}

#[test]
fn an_address_that_fails_over_is_the_new_station_s_alone_after_a_while() {
    let mut table = Addresses::default();
    table.hear(0, station(1), PORTS[0], address(1));
    table.hear(0, station(1), PORTS[0], address(2));
    assert_eq!(table.hear(100, station(2), PORTS[1], address(1)), Heard::New);
    // Further claims of the new one do not give the old one more time.
    table.hear(130, station(2), PORTS[1], address(1));
    assert!(table.age(100 + DISPUTE - 1).is_empty());
    assert_eq!(table.age(100 + DISPUTE), [station(1)].into());
    assert_eq!((of(&table, 1), of(&table, 2)), (vec![address(2)], vec![address(1)]));
    assert!(table.age(100 + 2 * DISPUTE).is_empty());
}

#[test]
fn two_stations_that_both_claim_an_address_both_keep_it() {
    let mut table = Addresses::default();
    for now in (0..1000).step_by(DISPUTE as usize / 2) {
        table.hear(now, station(1), PORTS[0], address(1));
        table.hear(now + 1, station(2), PORTS[1], address(1));
        assert!(table.age(now + 2).is_empty());
    }
    assert_eq!((of(&table, 1), of(&table, 2)), (vec![address(1)], vec![address(1)]));
}

#[test]
fn an_address_in_another_network_is_contested_by_nobody() {
    let mut table = Addresses::default();
    let elsewhere = Station { network: Network::vlan(7).unwrap(), ..station(2) };
    table.hear(0, station(1), PORTS[0], address(1));
    table.hear(1, elsewhere, PORTS[1], address(1));
    assert!(table.age(1 + DISPUTE).is_empty());
}

#[test]
fn indices_follow_each_change() {
    let mut table = Addresses::default();
    let mut random = 1u32;
    for now in 0..60_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (last, port) = ((random >> 8 & 7) as u8, PORTS[(random >> 20) as usize % 3]);
        let address = address(random >> 12 & 255);
        match random >> 28 {
            0 => table.forget(station(last)),
            1 if now % 50 == 0 => _ = table.forget_port(port),
            2 => _ = table.forget_address(Network::UNTAGGED, address),
            3 => _ = table.age(now),
            4 | 5 => _ = table.dispute(now, station(last), address),
            _ => _ = table.hear(now, station(last), port, address),
        }
    }
    let entries = table.stations.iter().flat_map(|(station, entries)| {
        entries.iter().map(|(address, entry)| (*station, *address, *entry))
    });
    let entries: Vec<_> = entries.collect();
    assert!(!entries.is_empty() && table.stations.values().all(|entries| !entries.is_empty()));
    for (station, address, entry) in &entries {
        assert!(table.holders[&(station.network, *address)].contains(&station.mac));
        assert!(table.held[&entry.port].contains(&(entry.seen, *station, *address)));
        let dispute = entry.disputed.map(|until| (until, *station, *address));
        assert!(dispute.is_none_or(|it| table.disputes.contains(&it)));
        let contest = entry.contested.map(|until| (until, *station, *address));
        assert!(contest.is_none_or(|it| table.contests.contains(&it)));
    }
    assert!(table.held.values().all(|held| (1..=MAX_ADDRESSES).contains(&held.len())));
    let disputed = entries.iter().filter(|(.., entry)| entry.disputed.is_some()).count();
    let contested = entries.iter().filter(|(.., entry)| entry.contested.is_some()).count();
    assert_eq!(contested, table.contests.len());
    let held: usize = table.held.values().map(BTreeSet::len).sum();
    let holders: usize = table.holders.values().map(BTreeSet::len).sum();
    assert_eq!((disputed, held, holders), (table.disputes.len(), entries.len(), entries.len()));
}
