use std::net::Ipv4Addr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::outer::{Covered, Ends, OUTER_V4, OUTER_V6, Template};
use super::*;
use crate::sample::{TCP_V4, recipes};
use crate::{HEAD_LEN, Mac, PartialCsum, Sum, complete_csum};

fn template(v4: bool, vni: u32) -> Template {
    let ends = match v4 {
        true => Ends::V4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7)),
        false => Ends::V6("2001:db8::1".parse().unwrap(), "2001:db8:ff::9".parse().unwrap()),
    };
    let link = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    Template { link, ends, port: PORT, ttl: 64, vni: Vni::new(vni).unwrap() }
}

/// A whole outer frame.
fn whole(template: &Template, inner: &[u8], covered: Covered<'_>) -> Vec<u8> {
    let outer = template.prefix().headers(50000, inner.len(), covered).unwrap();
    [outer.as_slice(), inner].concat()
}

/// The VXLAN header and the inner frame as etherparse finds them, if all lengths and checksums are
/// right.
fn oracle(frame: &[u8]) -> Vec<u8> {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
    assert_eq!((udp.source_port(), udp.destination_port()), (50000, PORT));
    let header = udp.to_header();
    let sum = match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert!(ip.dont_fragment);
            header.calc_checksum_ipv4(&ip, udp.payload())
        }
        NetSlice::Ipv6(ip) => header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload()),
        other => panic!("{other:?}"),
    };
    assert_eq!(sum.unwrap(), header.checksum);
    udp.payload().to_vec()
}

proptest! {
    #[test]
    fn outer_headers_are_right_without_a_look_at_the_payload(
        recipe in recipes(700), v4: bool, vni in 0..=Vni::MAX
    ) {
        let csum_at = recipe.csum_at();
        let mut inner = recipe.partial_frame();
        prop_assume!(csum_at + 2 <= inner.len().min(HEAD_LEN));
        let start = recipe.l4_at() as u16;
        let csum = PartialCsum { start, offset: csum_at as u16 - start };
        let template = template(v4, vni);
        let split = inner.len().min(HEAD_LEN);
        let outer = template.prefix().headers(50000, inner.len(), Covered::Partial(&inner[..split], csum));
        let headers = parse(&inner).unwrap();
        let (head, body) = inner.split_at_mut(split);
        complete_csum(head, &headers, csum, Sum::of(body)).unwrap();
        let frame = [outer.unwrap().as_slice(), &inner].concat();
        let payload = oracle(&frame);
        prop_assert_eq!(&payload[..VXLAN_LEN], &template.vni.header());
        prop_assert_eq!(&payload[VXLAN_LEN..], &inner[..]);
    }

    #[test]
    fn what_is_encapsulated_comes_out_again(
        inner in prop::collection::vec(any::<u8>(), 14..300), v4: bool, vni in 0..=Vni::MAX, pad in 0..20usize
    ) {
        let template = template(v4, vni);
        let mut frame = whole(&template, &inner, Covered::Whole(Sum::of(&inner)));
        prop_assert_eq!(&oracle(&frame)[VXLAN_LEN..], &inner[..]);
        let inner_at = if v4 { OUTER_V4 } else { OUTER_V6 };
        let (source, destination) = match template.ends {
            Ends::V4(source, destination) => (source.into(), destination.into()),
            Ends::V6(source, destination) => (source.into(), destination.into()),
        };
        let (vni, inner_len) = (template.vni, inner.len());
        let found = Encapsulated { source, destination, source_port: 50000, vni, inner_at, inner_len };
        frame.resize(frame.len() + pad, 0);
        prop_assert_eq!(decapsulate(&frame, frame.len(), PORT), Ok(found));
        prop_assert_eq!(decapsulate(&frame, frame.len() - pad - 1, PORT), Err(BadVxlan::Length));
        prop_assert_eq!(decapsulate(&frame, frame.len(), 4790), Err(BadVxlan::Outer));
    }

    #[test]
    fn a_changed_outer_header_never_leads_out_of_the_frame(
        v4: bool, at in 12..OUTER_V6, value: u8, inner in 0..60usize, cut in 0..120usize
    ) {
        let inner = vec![0; 14 + inner];
        let mut frame = whole(&template(v4, 7), &inner, Covered::Whole(Sum::of(&inner)));
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        let len = frame.len();
        let head = &frame[..cut.min(len)];
        if let Ok(found) = decapsulate(head, len, PORT) {
            prop_assert!(found.inner_len >= ETHERNET && found.inner_at + found.inner_len <= len);
        }
    }
}

#[test]
fn each_refusal_has_a_name() {
    let inner = TCP_V4.frame();
    let covered = || Covered::Whole(Sum::of(&inner));
    let refused = |v4: bool, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = whole(&template(v4, 7), &inner, covered());
        change(&mut frame);
        decapsulate(&frame, frame.len(), PORT).unwrap_err()
    };
    assert_eq!(refused(true, &|frame| frame[OUTER_V4 - 8] = 0x04), BadVxlan::NoVni);
    assert_eq!(refused(true, &|frame| frame[24] ^= 1), BadVxlan::Checksum);
    assert_eq!(refused(false, &|frame| frame[60..62].fill(0)), BadVxlan::Checksum);
    assert_eq!(refused(true, &|frame| frame.truncate(13)), BadVxlan::Short);
    assert_eq!(refused(true, &|frame| frame[23] = 6), BadVxlan::Outer);
    assert_eq!(refused(false, &|frame| frame[58] ^= 1), BadVxlan::Length);
    let vni = Vni::new(5).unwrap();
    assert_eq!(read_header(&vni.header(), VXLAN_LEN + ETHERNET), Ok(vni));
    assert_eq!(read_header(&vni.header(), VXLAN_LEN + ETHERNET - 1), Err(BadVxlan::Short));
    assert_eq!(read_header(&vni.header()[..7], 100), Err(BadVxlan::Short));
    assert_eq!(Vni::new(1 << 24), None);
}

#[test]
fn a_fragment_is_no_datagram() {
    let inner = TCP_V4.frame();
    let mut frame = whole(&template(true, 7), &inner, Covered::Whole(Sum::of(&inner)));
    frame[20] = 0x20;
    let sum = Sum::of(&[&frame[14..24], &frame[26..34]].concat()).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(decapsulate(&frame, frame.len(), PORT), Err(BadVxlan::Outer));
}

#[test]
fn reserved_bits_are_ignored() {
    let mut header = Vni::new(9).unwrap().header();
    (header[0], header[1], header[7]) = (0xff, 0xff, 0xff);
    assert_eq!(read_header(&header, 100), Ok(Vni::new(9).unwrap()));
}

#[test]
fn source_ports_are_in_the_range_that_is_for_them() {
    assert_eq!((source_port(0), source_port(u32::MAX)), (0xc000, 0xffff));
    assert_ne!(source_port(1 << 31), source_port(1 << 30));
}

#[test]
fn what_no_datagram_holds_is_refused() {
    for (v4, most) in [(true, 65535 - 20 - 16), (false, 65535 - 20 - 16)] {
        let template = template(v4, 7);
        let covered = || Covered::Whole(Sum::new());
        assert!(template.prefix().headers(50000, most, covered()).is_ok());
        assert!(template.prefix().headers(50000, most + 1, covered()).is_err());
        assert!(template.prefix().headers(50000, usize::MAX / 2, covered()).is_err());
    }
    let outside = PartialCsum { start: 30, offset: 6 };
    assert!(
        template(true, 7).prefix().headers(1, 60, Covered::Partial(&[0; 37], outside)).is_err()
    );
}
