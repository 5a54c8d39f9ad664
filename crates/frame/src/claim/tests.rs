use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::time::Duration;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr,
    NdiscNeighborFlags, NdiscRepr, NdiscRouterFlags, RawHardwareAddress,
};

use super::*;
use crate::parse;
use crate::sample::{DST, DST_V4, DST_V6, Ip, Recipe, SRC, SRC_V4, SRC_V6, recipes};

const OTHER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];

fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&DST[..], &SRC, &ethertype.to_be_bytes(), payload].concat()
}

fn found(frame: &[u8]) -> Result<Claim, Unverifiable> {
    claim(frame, &parse(frame).unwrap())
}

/// An IPv6 packet whose first header behind the fixed one is of type `next`.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, next, 255];
    ip[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    ip.extend_from_slice(&SRC_V6);
    ip.extend_from_slice(&DST_V6);
    ip.extend_from_slice(payload);
    ethernet(0x86dd, &ip)
}

fn v4(protocol: u8, flags_and_offset: u16, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0];
    ip[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    ip[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
    ip.extend_from_slice(&SRC_V4);
    ip.extend_from_slice(&DST_V4);
    ip.extend_from_slice(payload);
    ethernet(0x0800, &ip)
}

/// A fragment header: what follows, and offset (in bytes) and M flag in one.
fn fragment(next: u8, offset: u16) -> [u8; 8] {
    let [high, low] = offset.to_be_bytes();
    [next, 0, high, low, 1, 2, 3, 4]
}

fn message(claim: Result<Claim, Unverifiable>) -> Result<Message, Unverifiable> {
    match claim? {
        Claim::V4 { message, .. } | Claim::V6 { message, .. } => Ok(message),
        other => panic!("{other:?}"),
    }
}

/// An ICMPv6 message of neighbour discovery, as smoltcp writes it.
fn ndisc(repr: NdiscRepr<'_>) -> Vec<u8> {
    let repr = Icmpv6Repr::Ndisc(repr);
    let mut bytes = vec![0; repr.buffer_len()];
    let (from, to) = (SRC_V6.into(), DST_V6.into());
    let mut packet = Icmpv6Packet::new_unchecked(&mut bytes[..]);
    repr.emit(&from, &to, &mut packet, &ChecksumCapabilities::default());
    bytes
}

fn hardware(address: [u8; 6]) -> Option<RawHardwareAddress> {
    Some(EthernetAddress(address).into())
}

proptest! {
    #[test]
    fn agrees_with_etherparse(recipe in recipes(200)) {
        let frame = recipe.frame();
        let claimed = found(&frame);
        if recipe.end() > HEAD_LEN {
            // Addresses may be there, and ports are not.
            return Ok(());
        }
        let (source, destination) = recipe.ports;
        let expected = match recipe.tcp {
            true => Message::Other,
            false => Message::Udp { source, destination },
        };
        let expected = match recipe.ip {
            Ip::V4 { .. } => Claim::V4 {
                source: SRC_V4.into(), destination: DST_V4.into(), message: expected,
            },
            Ip::V6 { .. } => Claim::V6 {
                source: SRC_V6.into(), destination: DST_V6.into(), message: expected,
            },
        };
        prop_assert_eq!(claimed, Ok(expected));
    }

    #[test]
    fn a_frame_cut_short_claims_the_same_or_nothing(recipe in recipes(40), cut in 14..128usize) {
        let frame = recipe.frame();
        let cut = &frame[..cut.min(frame.len())];
        let (whole, short) = (found(&frame), found(cut));
        // Tags that do not end are of no protocol that is known.
        let nothing = matches!(short, Err(Unverifiable) | Ok(Claim::Other));
        prop_assert!(nothing || short == whole, "{:?} {:?}", whole, short);
    }

    #[test]
    fn any_bytes_can_be_looked_at(
        bytes in prop::collection::vec(any::<u8>(), 14..200),
        ethertype in prop::sample::select(vec![0x0800u16, 0x0806, 0x86dd, 0x8100, 0x88a8]),
        next in prop::sample::select(vec![0u8, 17, 43, 44, 51, 58, 60]),
    ) {
        let mut bytes = bytes;
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if let Some(version) = bytes.get_mut(14) {
            *version = if ethertype == 0x0800 { 0x45 } else { 0x60 };
        }
        if let Some(protocol) = bytes.get_mut(if ethertype == 0x0800 { 23 } else { 20 }) {
            *protocol = next;
        }
        let _ = found(&bytes);
    }

    #[test]
    fn agrees_with_smoltcp_about_arp(
        sender: [u8; 6], sender_ip: [u8; 4], target_ip: [u8; 4], reply: bool,
    ) {
        let repr = ArpRepr::EthernetIpv4 {
            operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
            source_hardware_addr: EthernetAddress(sender),
            source_protocol_addr: sender_ip.into(),
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target_ip.into(),
        };
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut ArpPacket::new_unchecked(&mut bytes[..]));
        let expected = Arp {
            operation: if reply { 2 } else { 1 },
            sender: Mac(sender),
            sender_ip: sender_ip.into(),
            target_ip: target_ip.into(),
        };
        let claim = found(&ethernet(0x0806, &bytes)).unwrap();
        prop_assert_eq!(claim, Claim::Arp(expected));
        let asks = !reply && sender_ip != target_ip;
        prop_assert_eq!(claim.requested(), asks.then(|| IpAddr::from(target_ip)));
    }

    #[test]
    fn agrees_with_smoltcp_about_neighbours(
        target: [u8; 16], advertises: bool, link in prop::option::of(any::<bool>()),
        tags in 0..=2usize,
    ) {
        let address = link.and_then(|own| hardware(if own { SRC } else { OTHER }));
        let target_addr = target.into();
        let bytes = ndisc(match advertises {
            true => NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::OVERRIDE, target_addr, lladdr: address,
            },
            false => NdiscRepr::NeighborSolicit { target_addr, lladdr: address },
        });
        let mut frame = v6(58, &bytes);
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0, 0, 0]);
        }
        let link = match link {
            None => LinkAddress::None,
            Some(true) => LinkAddress::Own,
            Some(false) => LinkAddress::Foreign,
        };
        let kind = match advertises {
            true => NeighbourKind::NeighbourAdvertisement,
            false => NeighbourKind::NeighbourSolicitation,
        };
        let expected = Neighbour { kind, target: Some(target.into()), link, fragment: false };
        prop_assert_eq!(message(found(&frame)), Ok(Message::Neighbour(expected)));
        let asked = (!advertises).then(|| IpAddr::from(target));
        prop_assert_eq!(found(&frame).unwrap().requested(), asked);
    }
}

#[test]
fn packets_ask_for_nobody() {
    let packets = [v4(17, 0, &[0; 8]), v6(17, &[0; 8]), ethernet(0x1234, &[0; 40])];
    for packet in packets {
        assert_eq!(found(&packet).unwrap().requested(), None);
    }
}

#[test]
fn messages_of_routers_are_known_by_their_kind() {
    let advertisement = ndisc(NdiscRepr::RouterAdvert {
        hop_limit: 64,
        flags: NdiscRouterFlags::empty(),
        router_lifetime: Duration::from_secs(900),
        reachable_time: Duration::ZERO,
        retrans_time: Duration::ZERO,
        lladdr: hardware(SRC),
        mtu: Some(1500),
        prefix_info: None,
    });
    let solicitation = ndisc(NdiscRepr::RouterSolicit { lladdr: hardware(SRC) });
    let expect = |bytes: &[u8], kind, link| {
        let expected = Neighbour { kind, target: None, link, fragment: false };
        assert_eq!(message(found(&v6(58, bytes))), Ok(Message::Neighbour(expected)));
    };
    expect(&advertisement, NeighbourKind::RouterAdvertisement, LinkAddress::None);
    expect(&solicitation, NeighbourKind::RouterSolicitation, LinkAddress::Own);
    expect(&[137, 0, 0, 0], NeighbourKind::Redirect, LinkAddress::None);
    // Even cut short.
    expect(&[134], NeighbourKind::RouterAdvertisement, LinkAddress::None);
    assert_eq!(message(found(&v6(58, &[128, 0]))), Ok(Message::Icmpv6(128)));
    assert_eq!(message(found(&v6(58, &[]))), Err(Unverifiable));
}

#[test]
fn options_that_could_hide_an_address_are_not_believed() {
    let solicitation =
        ndisc(NdiscRepr::NeighborSolicit { target_addr: SRC_V6.into(), lladdr: None });
    let own = [&[1, 1][..], &SRC].concat();
    let foreign = [&[2, 1][..], &OTHER].concat();
    let with =
        |options: &[u8]| match message(found(&v6(58, &[&solicitation[..], options].concat()))) {
            Ok(Message::Neighbour(neighbour)) => Ok(neighbour.link),
            Ok(other) => panic!("{other:?}"),
            Err(unverifiable) => Err(unverifiable),
        };
    assert_eq!(with(&own), Ok(LinkAddress::Own));
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    assert_eq!(with(&[&nonce[..], &own].concat()), Ok(LinkAddress::Own));
    assert_eq!(with(&[&own[..], &foreign].concat()), Ok(LinkAddress::Foreign));
    assert_eq!(with(&[&foreign[..], &own].concat()), Ok(LinkAddress::Foreign));
    let long = [&[1, 2][..], &SRC, &[0; 8]].concat();
    assert_eq!(with(&long), Ok(LinkAddress::Foreign), "not as long as an Ethernet address");
    assert_eq!(with(&[&[14, 0][..], &foreign].concat()), Err(Unverifiable), "of length zero");
    assert_eq!(with(&[1, 1, 0]), Err(Unverifiable), "beyond the packet");
    let beyond_the_head = [&nonce.repeat(8)[..], &foreign].concat();
    assert_eq!(with(&beyond_the_head), Err(Unverifiable));
}

#[test]
fn a_payload_length_that_lies_hides_nothing() {
    let solicitation =
        ndisc(NdiscRepr::NeighborSolicit { target_addr: SRC_V6.into(), lladdr: hardware(OTHER) });
    for (len, expected) in [
        (0u16, Err(Unverifiable)),
        (23, Err(Unverifiable)),
        (24, Ok(LinkAddress::None)),
        (32, Ok(LinkAddress::Foreign)),
        (33, Err(Unverifiable)),
    ] {
        let mut frame = v6(58, &solicitation);
        frame[18..20].copy_from_slice(&len.to_be_bytes());
        let link = message(found(&frame)).map(|message| match message {
            Message::Neighbour(neighbour) => neighbour.link,
            other => panic!("{other:?}"),
        });
        assert_eq!(link, expected, "{len}");
    }
}

#[test]
fn ports_of_a_first_fragment_are_found_and_no_other_can_overwrite_them() {
    let udp = [0, 67, 0, 68, 0, 8, 0, 0];
    let ports = Ok(Message::Udp { source: 67, destination: 68 });
    let more = 0x2000;
    assert_eq!(message(found(&v4(17, more, &udp))), ports);
    assert_eq!(message(found(&v4(17, more, &udp[..3]))), Err(Unverifiable));
    assert_eq!(message(found(&v4(17, more | 1, &udp))), Err(Unverifiable));
    assert_eq!(message(found(&v4(17, 15, &udp))), Err(Unverifiable));
    assert_eq!(message(found(&v4(17, 16, &udp))), Ok(Message::Other));
    assert_eq!(message(found(&v4(17, more | 185, &udp))), Ok(Message::Other));

    let fragmented = |next, offset, payload: &[u8]| {
        message(found(&v6(44, &[&fragment(next, offset)[..], payload].concat())))
    };
    assert_eq!(fragmented(17, 1, &udp), ports);
    assert_eq!(fragmented(17, 0, &udp), ports, "an atomic fragment");
    assert_eq!(fragmented(17, 8, &udp), Err(Unverifiable));
    assert_eq!(fragmented(17, 120, &udp), Err(Unverifiable));
    assert_eq!(fragmented(17, 128, &udp), Ok(Message::Other));
    assert_eq!(fragmented(17, 1, &udp[..3]), Err(Unverifiable));
}

#[test]
fn headers_behind_a_fragment_header_are_followed() {
    let udp = [0, 67, 0, 68, 0, 8, 0, 0];
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let ports = Ok(Message::Udp { source: 67, destination: 68 });
    let behind = |payload: &[u8]| message(found(&v6(44, payload)));
    assert_eq!(behind(&[&fragment(60, 1)[..], &options, &udp].concat()), ports);
    assert_eq!(behind(&[&fragment(60, 1)[..], &options].concat()), Err(Unverifiable));
    assert_eq!(behind(&[&fragment(60, 1)[..], &[17, 9]].concat()), Err(Unverifiable));
    assert_eq!(behind(&[&fragment(44, 1)[..], &fragment(17, 1), &udp].concat()), Err(Unverifiable));
    let advertisement = [&fragment(60, 0)[..], &[58, 0, 1, 4, 0, 0, 0, 0], &[136, 0]].concat();
    let Ok(Message::Neighbour(neighbour)) = behind(&advertisement) else { panic!("not found") };
    assert!(neighbour.fragment && neighbour.target.is_none());
}

#[test]
fn a_chain_of_headers_that_leaves_the_head_is_not_believed() {
    let filler = [60, 0, 1, 4, 0, 0, 0, 0].repeat(8);
    let udp = [0, 67, 0, 68, 0, 8, 0, 0];
    let chain = [&filler[..], &[17, 0, 1, 4, 0, 0, 0, 0], &udp].concat();
    assert_eq!(message(found(&v6(60, &chain))), Err(Unverifiable));
}

#[test]
fn what_is_hidden_by_tags_and_llc_is_another_protocol() {
    let packet = v4(17, 0, &[0, 67, 0, 68, 0, 8, 0, 0]);
    let mut three_tags = packet.clone();
    for _ in 0..3 {
        three_tags.splice(12..12, [0x81, 0, 0, 0]);
    }
    assert_eq!(found(&three_tags), Ok(Claim::Other));
    // A length, and a SNAP header.
    let mut snap = packet.clone();
    snap.splice(12..12, [0, 60, 0xaa, 0xaa, 3, 0, 0, 0]);
    assert_eq!(found(&snap), Ok(Claim::Other));
    for tags in 0..=2 {
        let mut tagged = packet.clone();
        (0..tags).for_each(|_| drop(tagged.splice(12..12, [0x88, 0xa8, 0, 0])));
        assert_eq!(
            message(found(&tagged)),
            Ok(Message::Udp { source: 67, destination: 68 }),
            "{tags} tags"
        );
    }
}

#[test]
fn malformed_packets_are_not_believed() {
    assert_eq!(found(&ethernet(0x0800, &[0x55; 40])), Err(Unverifiable), "another version");
    assert_eq!(found(&ethernet(0x0800, &[0x41; 40])), Err(Unverifiable), "a header too short");
    assert_eq!(found(&ethernet(0x86dd, &[0x60; 39])), Err(Unverifiable));
    assert_eq!(found(&ethernet(0x0806, &[0; 27])), Err(Unverifiable));
    assert_eq!(found(&ethernet(0x0806, &[0; 28])), Err(Unverifiable), "not of Ethernet");
    assert_eq!(found(&ethernet(0x8035, &[0; 28])), Ok(Claim::Other));
}

#[test]
fn all_of_a_head_is_wanted_where_claims_follow_the_headers() {
    let follow = |frame: &[u8]| parse(frame).unwrap().claims_follow();
    assert!(follow(&ethernet(0x0806, &[])));
    assert!(follow(&v6(58, &[135])) && follow(&v6(44, &fragment(17, 1))));
    assert!(follow(&v4(17, 0x2000, &[])));
    let plain = Recipe { ip: Ip::V4 { id: 1, options: 0 }, ..crate::sample::TCP_V4 };
    assert!(!follow(&plain.frame()));
}
