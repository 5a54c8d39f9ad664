use proptest::prelude::*;

use super::*;
use frame::parse;

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const OTHER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];
const GROUP: [u8; 6] = [0xff; 6];
const OWN: [u8; 4] = [10, 0, 0, 5];
const FOREIGN: [u8; 4] = [10, 0, 0, 6];
const NOBODY: [u8; 4] = [0; 4];

fn guard(list: &[&str]) -> SourceGuard {
    SourceGuard::new(list.iter().map(|prefix| prefix.parse().unwrap()).collect())
}

fn usual() -> SourceGuard {
    guard(&["10.0.0.5", "2001:db8::/64"])
}

fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&GROUP[..], &MAC, &ethertype.to_be_bytes(), payload].concat()
}

fn check(guard: &SourceGuard, frame: &[u8]) -> Result<(), DropReason> {
    guard.check(frame, &parse(frame).unwrap())
}

fn v4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0];
    ip[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    ip.extend_from_slice(&source);
    ip.extend_from_slice(&destination);
    ip.extend_from_slice(payload);
    ethernet(0x0800, &ip)
}

fn v6(source: &str, destination: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, next, 255];
    ip[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    ip.extend_from_slice(&address(source));
    ip.extend_from_slice(&address(destination));
    ip.extend_from_slice(payload);
    ethernet(0x86dd, &ip)
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    let mut bytes = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    bytes.extend_from_slice(&[0, 8, 0, 0]);
    bytes
}

fn arp(operation: u16, sender: [u8; 6], sender_ip: [u8; 4], target_ip: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4];
    bytes.extend_from_slice(&operation.to_be_bytes());
    bytes.extend_from_slice(&sender);
    bytes.extend_from_slice(&sender_ip);
    bytes.extend_from_slice(&[0; 6]);
    bytes.extend_from_slice(&target_ip);
    ethernet(0x0806, &bytes)
}

/// A message of neighbour discovery with a target, and options of (type, address).
fn neighbour(kind: u8, target: &str, options: &[(u8, [u8; 6])]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&target.parse::<Ipv6Addr>().unwrap().octets());
    for (option, address) in options {
        bytes.extend_from_slice(&[*option, 1]);
        bytes.extend_from_slice(address);
    }
    bytes
}

const ALL_NODES: &str = "ff02::1";
const LINK_LOCAL: &str = "fe80::5054:ff:fe00:1";

#[test]
fn only_listed_sources_are_let_through() {
    let guard = usual();
    assert_eq!(check(&guard, &v4(OWN, FOREIGN, 6, &[])), Ok(()));
    assert_eq!(check(&guard, &v4(FOREIGN, OWN, 6, &[])), Err(DropReason::IpSpoofed));
    assert_eq!(check(&guard, &v6("2001:db8::77", "::1", 6, &[])), Ok(()));
    assert_eq!(check(&guard, &v6("2001:db9::77", "::1", 6, &[])), Err(DropReason::IpSpoofed));
    assert_eq!(check(&guard, &v6(LINK_LOCAL, ALL_NODES, 6, &[])), Ok(()), "made of the address");
    let other = "fe80::5054:ff:fe00:2";
    assert_eq!(check(&guard, &v6(other, ALL_NODES, 6, &[])), Err(DropReason::IpSpoofed));
    assert_eq!(check(&guard, &ethernet(0x0800, &[])), Err(DropReason::Unverifiable));
    for other in [0x8035, 0x8847, 0x8864, 60, 0x888e] {
        assert_eq!(check(&guard, &ethernet(other, &[0; 46])), Err(DropReason::OtherProtocol));
    }
}

#[test]
fn later_fragments_are_judged_by_their_source() {
    let fragment = |source, offset: u16| {
        let mut frame = v4(source, FOREIGN, 17, &[0; 64]);
        frame[20..22].copy_from_slice(&offset.to_be_bytes());
        check(&usual(), &frame)
    };
    assert_eq!(fragment(OWN, 185), Ok(()));
    assert_eq!(fragment(FOREIGN, 185), Err(DropReason::IpSpoofed));
    assert_eq!(fragment(OWN, 1), Err(DropReason::Unverifiable));
}

#[test]
fn nobody_is_a_dhcp_server() {
    let guard = guard(&["0.0.0.0/0", "::/0"]);
    let refused = Err(DropReason::DhcpServer);
    for (source, destination) in [(67, 68), (67, 67), (67, 9), (9, 68)] {
        assert_eq!(check(&guard, &v4(OWN, FOREIGN, 17, &udp(source, destination))), refused);
    }
    for (source, destination) in [(547, 546), (547, 547), (547, 9), (9, 546)] {
        let frame = v6("2001:db8::1", "::1", 17, &udp(source, destination));
        assert_eq!(check(&guard, &frame), refused);
    }
    assert_eq!(check(&guard, &v4(OWN, FOREIGN, 17, &udp(68, 67))), Ok(()), "a client");
    assert_eq!(check(&guard, &v6(LINK_LOCAL, "ff02::1:2", 17, &udp(546, 547))), Ok(()));
    // In the first of several fragments.
    let mut frame = v4(OWN, FOREIGN, 17, &udp(67, 68));
    frame[20] = 0x20;
    assert_eq!(check(&guard, &frame), Err(DropReason::DhcpServer));
}

#[test]
fn a_client_without_an_address_may_only_ask_for_one() {
    let guard = usual();
    let broadcast = [255; 4];
    assert_eq!(check(&guard, &v4(NOBODY, broadcast, 17, &udp(68, 67))), Ok(()));
    let spoofed = Err(DropReason::IpSpoofed);
    assert_eq!(check(&guard, &v4(NOBODY, FOREIGN, 17, &udp(68, 67))), spoofed);
    assert_eq!(check(&guard, &v4(NOBODY, broadcast, 17, &udp(69, 67))), spoofed);
    assert_eq!(check(&guard, &v4(NOBODY, broadcast, 6, &udp(68, 67))), spoofed);
    assert_eq!(check(&guard, &v4(NOBODY, [224, 0, 0, 22], 2, &[0x22, 0])), spoofed, "IGMP");
}

#[test]
fn arp_claims_listed_addresses_and_the_senders_own() {
    let guard = usual();
    let spoofed = Err(DropReason::ArpSpoofed);
    for (operation, sender, sender_ip, target_ip, expected) in [
        (1, MAC, OWN, FOREIGN, Ok(())),
        (2, MAC, OWN, FOREIGN, Ok(())),
        (1, MAC, OWN, OWN, Ok(())),
        (1, MAC, NOBODY, OWN, Ok(())),
        (1, MAC, FOREIGN, OWN, spoofed),
        (2, MAC, FOREIGN, OWN, spoofed),
        (1, MAC, FOREIGN, FOREIGN, spoofed),
        (2, MAC, FOREIGN, FOREIGN, spoofed),
        (1, OTHER, OWN, FOREIGN, spoofed),
        (2, OTHER, OWN, FOREIGN, spoofed),
        // A probe for another's address keeps that station from taking it.
        (1, MAC, NOBODY, FOREIGN, spoofed),
        (2, MAC, NOBODY, OWN, spoofed),
        (3, MAC, OWN, FOREIGN, spoofed),
        (8, MAC, OWN, FOREIGN, spoofed),
    ] {
        let frame = arp(operation, sender, sender_ip, target_ip);
        assert_eq!(check(&guard, &frame), expected, "{operation} {sender_ip:?} {target_ip:?}");
    }
}

#[test]
fn neighbour_discovery_claims_listed_addresses_and_the_senders_own() {
    let guard = usual();
    let spoofed = Err(DropReason::NdSpoofed);
    let (own, foreign) = ("2001:db8::5", "2001:db9::5");
    for (source, kind, target, options, expected) in [
        // Solicitations of others' addresses.
        (own, 135, foreign, vec![(1, MAC)], Ok(())),
        (LINK_LOCAL, 135, foreign, vec![], Ok(())),
        (own, 135, foreign, vec![(1, OTHER)], spoofed),
        (foreign, 135, own, vec![(1, MAC)], Err(DropReason::IpSpoofed)),
        // Duplicate address detection.
        ("::", 135, own, vec![], Ok(())),
        ("::", 135, LINK_LOCAL, vec![], Ok(())),
        ("::", 135, foreign, vec![], spoofed),
        ("::", 135, own, vec![(1, MAC)], spoofed),
        // Advertisements.
        (own, 136, own, vec![(2, MAC)], Ok(())),
        (LINK_LOCAL, 136, LINK_LOCAL, vec![(2, MAC)], Ok(())),
        (own, 136, foreign, vec![(2, MAC)], spoofed),
        (own, 136, own, vec![(2, OTHER)], spoofed),
        (own, 136, own, vec![(2, MAC), (2, OTHER)], spoofed),
        ("::", 136, own, vec![(2, MAC)], Err(DropReason::IpSpoofed)),
    ] {
        let frame = v6(source, ALL_NODES, 58, &neighbour(kind, target, &options));
        assert_eq!(check(&guard, &frame), expected, "{source} {kind} {target} {options:?}");
    }
    // Detection is sent to a group.
    let detection = neighbour(135, own, &[]);
    assert_eq!(check(&guard, &v6("::", own, 58, &detection)), Err(DropReason::IpSpoofed));
    // Nothing in a fragment is trusted.
    let fragment = [&[58, 0, 0, 0, 0, 0, 0, 1][..], &neighbour(136, own, &[])].concat();
    assert_eq!(check(&guard, &v6(own, ALL_NODES, 44, &fragment)), spoofed);
}

#[test]
fn nobody_is_a_router() {
    let guard = guard(&["::/0"]);
    for kind in [134, 137] {
        for frame in [
            v6("fe80::1", ALL_NODES, 58, &[kind, 0, 0, 0]),
            v6("fe80::1", ALL_NODES, 44, &[58, 0, 0, 1, 0, 0, 0, 1, kind, 0]),
            v6("fe80::1", ALL_NODES, 60, &[58, 0, 1, 4, 0, 0, 0, 0, kind, 0]),
        ] {
            assert_eq!(check(&guard, &frame), Err(DropReason::RouterAdvertisement));
        }
    }
    let solicitation = [133, 0, 0, 0, 0, 0, 0, 0];
    let usual = usual();
    assert_eq!(check(&usual, &v6("::", "ff02::2", 58, &solicitation)), Ok(()));
    assert_eq!(check(&usual, &v6(LINK_LOCAL, "ff02::2", 58, &solicitation)), Ok(()));
    let with_address = [&solicitation[..], &[1, 1], &MAC].concat();
    assert_eq!(check(&usual, &v6(LINK_LOCAL, "ff02::2", 58, &with_address)), Ok(()));
    assert_eq!(check(&usual, &v6("::", "ff02::2", 58, &with_address)), Err(DropReason::NdSpoofed));
}

#[test]
fn without_an_address_groups_can_be_joined_and_nothing_else_be_said() {
    let guard = usual();
    for kind in [131, 132, 143] {
        assert_eq!(check(&guard, &v6("::", "ff02::16", 58, &[kind, 0, 0, 0])), Ok(()));
    }
    let joined = [58, 0, 5, 2, 0, 0, 1, 0, 143, 0];
    assert_eq!(check(&guard, &v6("::", "ff02::16", 0, &joined)), Ok(()), "behind router alert");
    for kind in [1, 128, 130] {
        let frame = v6("::", "ff02::16", 58, &[kind, 0, 0, 0]);
        assert_eq!(check(&guard, &frame), Err(DropReason::IpSpoofed));
    }
    assert_eq!(check(&guard, &v6("::", ALL_NODES, 17, &udp(546, 547))), Err(DropReason::IpSpoofed));
}

fn prefixes() -> impl Strategy<Value = Vec<Prefix>> {
    let v4 = (any::<[u8; 4]>(), 0..=32u8).prop_map(|(bytes, len)| (IpAddr::from(bytes), len));
    let v6 = (any::<[u8; 16]>(), 0..=128u8).prop_map(|(bytes, len)| (IpAddr::from(bytes), len));
    let prefix =
        prop_oneof![v4, v6].prop_filter_map("a group", |(address, len)| {
            match Prefix::new(address, len) {
                Err(frame::BadPrefix::Ambiguous(_, prefix)) => Some(prefix),
                other => other.ok(),
            }
        });
    prop::collection::vec(prefix, 0..6)
}

/// Compares bit by bit.
fn is_in(prefix: &Prefix, address: &[u8]) -> bool {
    let bytes = match prefix.address() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let bit = |bytes: &[u8], n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
    bytes.len() == address.len()
        && (0..usize::from(prefix.len())).all(|n| bit(&bytes, n) == bit(address, n))
}

proptest! {
    #[test]
    fn lists_are_compared_bit_by_bit(
        list in prefixes(),
        pick: prop::sample::Index,
        flip in 0..256usize,
        any_v4: [u8; 4],
        any_v6: [u8; 16],
    ) {
        let guard = SourceGuard::new(list.clone());
        // Addresses near a prefix, and any others.
        let (mut near_v4, mut near_v6) = (any_v4, any_v6);
        if !list.is_empty() {
            match pick.get(&list).address() {
                IpAddr::V4(address) => near_v4 = address.octets(),
                IpAddr::V6(address) => near_v6 = address.octets(),
            }
        }
        near_v4[flip % 32 / 8] ^= 1 << (flip % 8);
        near_v6[flip % 128 / 8] ^= 1 << (flip % 8);
        for source in [any_v4, near_v4] {
            let expected = list.iter().any(|prefix| is_in(prefix, &source));
            prop_assert_eq!(check(&guard, &v4(source, FOREIGN, 6, &[])).is_ok(), expected);
        }
        for source in [any_v6, near_v6] {
            let expected = list.iter().any(|prefix| is_in(prefix, &source));
            let source = Ipv6Addr::from(source).to_string();
            prop_assert_eq!(check(&guard, &v6(&source, "::1", 6, &[])).is_ok(), expected);
        }
    }
}

#[test]
fn a_list_has_an_end() {
    let prefix: Prefix = "10.0.0.1".parse().unwrap();
    assert_eq!(SourceGuard::new(vec![prefix; 100]).prefixes().len(), MAX_PREFIXES);
}
