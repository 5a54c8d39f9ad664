use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use proptest::prelude::*;

use super::*;
use crate::bytes::get_u16;
use crate::sample::{self, Ip, Recipe, TCP_V4, recipes};

/// `inner` is a slice of `outer`: where does it start?
fn offset_of(outer: &[u8], inner: &[u8]) -> usize {
    inner.as_ptr() as usize - outer.as_ptr() as usize
}

/// Both parsers have to agree; `etherparse` looks at the whole frame and has accepted it.
fn agree(frame: &[u8], oracle: &PacketHeaders) -> Result<(), TestCaseError> {
    let h = parse(frame).unwrap();
    let link = oracle.link.clone().unwrap().ethernet2().unwrap();
    prop_assert_eq!((h.dst.0, h.src.0), (link.destination, link.source));
    let vids: Vec<u16> = oracle.vlan_ids().iter().map(|id| id.value()).collect();
    prop_assert_eq!((h.vid(), usize::from(h.tags)), (vids.first().copied(), vids.len()));

    let l3 = match &oracle.net {
        Some(NetHeaders::Ipv4(..)) => L3::V4,
        Some(NetHeaders::Ipv6(..)) => L3::V6,
        _ => L3::None,
    };
    prop_assert_eq!(h.l3, l3);
    let end = offset_of(frame, oracle.payload.slice());
    if end <= HEAD_LEN {
        let (l4, ports) = match &oracle.transport {
            Some(TransportHeader::Tcp(tcp)) => {
                (L4::Tcp, Some((tcp.source_port, tcp.destination_port)))
            }
            Some(TransportHeader::Udp(udp)) => {
                (L4::Udp, Some((udp.source_port, udp.destination_port)))
            }
            _ => return Ok(()),
        };
        let at = usize::from(h.l4_at);
        prop_assert_eq!((h.l4, usize::from(h.end)), (l4, end));
        prop_assert_eq!(get_u16(frame, at).zip(get_u16(frame, at + 2)), ports);
    } else {
        prop_assert_eq!(h.has_ports(), false);
    }
    Ok(())
}

fn check_invariants(h: &Headers, head: &[u8]) {
    assert!(h.l3_at <= h.l4_at && h.l4_at <= h.end);
    assert!(usize::from(h.end) <= head.len().min(HEAD_LEN));
    assert!(!(h.fragment && h.has_ports()));
    assert!(h.l3 != L3::None || h.l4 == L4::None);
}

proptest! {
    #[test]
    fn agrees_with_etherparse(recipe in recipes(300)) {
        let frame = recipe.frame();
        let h = parse(&frame).unwrap();
        prop_assert_eq!(usize::from(h.l3_at), recipe.l3_at());
        prop_assert_eq!(usize::from(h.l4_at), recipe.l4_at());
        prop_assert_eq!(h.tag, recipe.tags.first().copied());
        prop_assert_eq!(h.proto, if recipe.tcp { 6 } else { 17 });
        prop_assert_eq!(h.has_ports(), recipe.end() <= HEAD_LEN);
        check_invariants(&h, &frame);
        agree(&frame, &PacketHeaders::from_ethernet_slice(&frame).unwrap())?;
    }

    #[test]
    fn agrees_where_etherparse_accepts_damage(
        recipe in recipes(64), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut frame = recipe.frame();
        let headers = recipe.l3_at()..recipe.end();
        for (index, byte) in damage {
            frame[headers.start + index.index(headers.len())] = byte;
        }
        let h = parse(&frame).unwrap();
        check_invariants(&h, &frame);
        if let Ok(oracle) = PacketHeaders::from_ethernet_slice(&frame) && !h.fragment {
            agree(&frame, &oracle)?;
        }
    }

    #[test]
    fn any_bytes_are_survived(frame in prop::collection::vec(any::<u8>(), 0..200)) {
        match parse(&frame) {
            Some(h) => check_invariants(&h, &frame),
            None => prop_assert!(frame.len() < 14),
        }
    }

    #[test]
    fn any_cut_is_survived(recipe in recipes(20), keep in 0..160usize) {
        let mut frame = recipe.frame();
        frame.truncate(keep);
        if let Some(h) = parse(&frame) {
            check_invariants(&h, &frame);
            prop_assert_eq!(h.has_ports(), frame.len().min(HEAD_LEN) >= recipe.end());
        }
    }

    #[test]
    fn random_ipv6_chains_are_survived(chain in prop::collection::vec(0..4u8, 0..90), first in 0..4usize) {
        let numbers = [proto::HOP_BY_HOP, proto::ROUTING, proto::DESTINATION, proto::AUTHENTICATION];
        let mut frame = TCP_V4.v6().frame();
        frame.truncate(54);
        frame[20] = numbers[first];
        frame.extend(chain.iter().map(|&n| numbers[usize::from(n)] & 0x3f));
        check_invariants(&parse(&frame).unwrap(), &frame);
    }
}

#[test]
fn only_the_first_bytes_count() {
    let recipe = Recipe { ip: Ip::V4 { id: 1, options: 10 }, tcp_options: 10, ..TCP_V4 };
    assert_eq!(recipe.end(), 134);
    let h = parse(&recipe.frame()).unwrap();
    assert_eq!((h.l3, h.l4, h.l4_at, h.end), (L3::V4, L4::Other, 74, 74));
}

#[test]
fn fragments_have_no_ports() {
    for field in [0x2000u16, 0x0001, 0x3fff] {
        let mut frame = TCP_V4.udp().frame();
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        let h = parse(&frame).unwrap();
        assert_eq!((h.fragment, h.l4, h.end), (true, L4::Other, 34));
    }
    let mut frame = TCP_V4.udp().frame();
    frame[20..22].copy_from_slice(&0x4000u16.to_be_bytes());
    assert_eq!(parse(&frame).unwrap().l4, L4::Udp);
}

/// A datagram cut in two by hand: an 8-byte fragment header behind the fixed header.
fn fragment_v6(offset_and_more: u16) -> Vec<u8> {
    let mut frame = TCP_V4.udp().v6().frame();
    let proto = std::mem::replace(&mut frame[20], proto::FRAGMENT);
    let [hi, lo] = offset_and_more.to_be_bytes();
    frame.splice(54..54, [proto, 0, hi, lo, 1, 2, 3, 4]);
    frame
}

#[test]
fn ipv6_fragments_have_no_ports() {
    for field in [1, 8, 9] {
        let h = parse(&fragment_v6(field)).unwrap();
        assert_eq!((h.fragment, h.l4, h.proto, h.l4_at), (true, L4::Other, proto::UDP, 62));
    }
}

#[test]
fn malformed_headers_end_the_parse() {
    let mut frame = TCP_V4.frame();
    frame[14] = 0x44;
    assert_eq!(parse(&frame).unwrap().l3, L3::None, "IPv4 header of 16 bytes");
    frame[14] = 0x65;
    assert_eq!(parse(&frame).unwrap().l3, L3::None, "version 6 under IPv4's EtherType");
    let mut frame = TCP_V4.frame();
    frame[46] = 0x40;
    let h = parse(&frame).unwrap();
    assert_eq!((h.l3, h.l4, h.end), (L3::V4, L4::Other, 34), "TCP header of 16 bytes");
}

#[test]
fn a_third_tag_is_payload() {
    let recipe = Recipe { tags: vec![100, 200, 300], ..TCP_V4 };
    let h = parse(&recipe.frame()).unwrap();
    assert_eq!((h.tag, h.tags, h.ethertype, h.l3), (Some(100), 2, 0x8100, L3::None));
}

#[test]
fn priority_tags_have_vid_zero() {
    let h = parse(&Recipe { tags: vec![0xe000], ..TCP_V4 }.frame()).unwrap();
    assert_eq!((h.tag, h.vid()), (Some(0xe000), Some(0)));
    assert_eq!(h.src.0, sample::SRC);
    assert_eq!(h.dst.0, sample::DST);
}

#[test]
fn authentication_headers_count_in_words_of_four() {
    let mut frame = TCP_V4.v6().frame();
    let proto = std::mem::replace(&mut frame[20], proto::AUTHENTICATION);
    // 24 bytes: (4 + 2) words.
    let mut ah = [0; 24];
    (ah[0], ah[1]) = (proto, 4);
    frame.splice(54..54, ah);
    let h = parse(&frame).unwrap();
    assert_eq!((h.l4, h.l4_at, h.proto), (L4::Tcp, 78, proto::TCP));
}

#[test]
fn a_service_tag_is_stepped_over_but_not_shown() {
    for tags in [vec![5], vec![5, 6]] {
        let recipe = Recipe { tags, ..TCP_V4 };
        let mut frame = recipe.frame();
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
        let h = parse(&frame).unwrap();
        assert_eq!((h.tag, usize::from(h.tags), h.l4), (None, recipe.tags.len(), L4::Tcp));
        assert_eq!(usize::from(h.l4_at), recipe.l4_at());
    }
}
