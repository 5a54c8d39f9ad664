//! Reports to a sender whose packets are longer than a link takes: "fragmentation needed" of ICMP
//! (RFC 1191), "packet too big" of ICMPv6 (RFC 4443, 3.2).
//!
//! A router sends such a report in its own name. A switch has no address, so the report has that of
//! the packet's destination. Only the packet's own sender may get the report.

use crate::bytes::{chunk, get_u16, put};
use crate::checksum::Sum;
use crate::head::{HEAD_LEN, Head};
use crate::view::{Headers, L3, proto};

/// Bytes of headers in a report, IP and ICMP, without the part of the packet.
const V4: usize = 20 + 8;
const V6: usize = 40 + 8;
/// Bytes behind a packet's IP header that show its connection.
const CONNECTION: usize = 8;
/// The hop limit of reports.
const HOPS: u8 = 64;
/// Precedence of routers' messages (RFC 1812, 4.3.2.5).
const INTERNET_CONTROL: u8 = 0xc0;

/// Turns the head of a packet into the report that the packet is longer than `mtu` bytes. False:
/// nobody may be told (RFC 1122, 3.2.2), and the head is unchanged. `headers` are those of the
/// packet.
pub fn report_too_big(head: &mut Head, headers: &Headers, mtu: u16) -> bool {
    let mut bytes = [0; HEAD_LEN];
    let written = match headers.l3 {
        L3::V4 => write_v4(&mut bytes, head.as_slice(), headers, mtu),
        L3::V6 => write_v6(&mut bytes, head.as_slice(), headers, mtu),
        L3::None => None,
    };
    let Some(report) = written.and_then(|len| bytes.get(..len)) else { return false };
    head.fill(|room| {
        if let Some(room) = room.get_mut(..report.len()) {
            room.copy_from_slice(report);
        }
        report.len()
    });
    true
}

/// Swaps the addresses. Tags and protocol stay.
fn write_ethernet(bytes: &mut [u8; HEAD_LEN], head: &[u8], headers: &Headers) -> Option<()> {
    let at = usize::from(headers.l3_at);
    bytes.get_mut(..at)?.copy_from_slice(head.get(..at)?);
    put(bytes, 0, headers.src.0)?;
    put(bytes, 6, headers.dst.0)
}

fn write_v4(bytes: &mut [u8; HEAD_LEN], head: &[u8], headers: &Headers, mtu: u16) -> Option<usize> {
    let (at, behind) = (usize::from(headers.l3_at), usize::from(headers.l4_at));
    let [source, destination] = [at + 12, at + 16].map(|at| chunk::<4>(head, at).copied());
    let (source, destination) = (source?, destination?);
    let is_host = |[first, ..]: [u8; 4]| (1..224).contains(&first) && first != 127;
    // An echo, or its answer: other messages of ICMP may be errors.
    let may_be_error = headers.proto == proto::ICMP && !matches!(head.get(behind)?, 0 | 8);
    let is_later_fragment = get_u16(head, at + 6)? & 0x1fff != 0;
    if !is_host(source) || !is_host(destination) || may_be_error || is_later_fragment {
        return None;
    }
    let packet = head.get(at..behind + CONNECTION)?;
    let len = V4 + packet.len();
    write_ethernet(bytes, head, headers)?;
    put(bytes, at, [0x45, INTERNET_CONTROL])?;
    put(bytes, at + 2, (len as u16).to_be_bytes())?;
    put(bytes, at + 8, [HOPS, proto::ICMP])?;
    put(bytes, at + 12, destination)?;
    put(bytes, at + 16, source)?;
    let sum = Sum::of(bytes.get(at..at + 20)?);
    put(bytes, at + 10, sum.checksum().to_be_bytes())?;
    let message = bytes.get_mut(at + 20..at + len)?;
    let (fields, part) = message.split_at_mut_checked(8)?;
    part.copy_from_slice(packet);
    let [hi, lo] = mtu.to_be_bytes();
    fields.copy_from_slice(&[3, 4, 0, 0, 0, 0, hi, lo]);
    let sum = Sum::of(message).checksum();
    put(message, 2, sum.to_be_bytes())?;
    Some(at + len)
}

fn write_v6(bytes: &mut [u8; HEAD_LEN], head: &[u8], headers: &Headers, mtu: u16) -> Option<usize> {
    let at = usize::from(headers.l3_at);
    let [source, destination] = [at + 8, at + 24].map(|at| chunk::<16>(head, at).copied());
    let (source, destination) = (source?, destination?);
    let is_host = |address: [u8; 16]| address[0] != 0xff && address != [0; 16];
    let may_be_error = headers.proto == proto::ICMPV6
        && head.get(usize::from(headers.l4_at)).is_none_or(|kind| *kind < 128);
    if !is_host(source) || !is_host(destination) || may_be_error || headers.fragment {
        return None;
    }
    let packet = head.get(at..at + 40 + CONNECTION)?;
    let message_len = 8 + packet.len();
    write_ethernet(bytes, head, headers)?;
    put(bytes, at, [0x60, 0, 0, 0, 0, message_len as u8, proto::ICMPV6, HOPS])?;
    put(bytes, at + 8, destination)?;
    put(bytes, at + 24, source)?;
    let message = bytes.get_mut(at + 40..at + V6 + packet.len())?;
    let (fields, part) = message.split_at_mut_checked(8)?;
    part.copy_from_slice(packet);
    let [hi, lo] = mtu.to_be_bytes();
    fields.copy_from_slice(&[2, 0, 0, 0, 0, 0, hi, lo]);
    let mut sum = Sum::of(message);
    sum.add_pseudo_v6(destination, source, proto::ICMPV6, message_len as u32);
    put(message, 2, sum.checksum().to_be_bytes())?;
    Some(at + V6 + packet.len())
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice, icmpv4};
    use proptest::prelude::*;

    use super::*;
    use crate::parse;
    use crate::sample::{
        DST, DST_V4, DST_V6, PLAIN_V6, Recipe, SRC, SRC_V4, SRC_V6, TCP_V4, recipes,
    };

    fn reported(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
        let (mut head, headers) = (Head::from_frame(frame), parse(frame).unwrap());
        let before = head.as_slice().to_vec();
        let is_written = report_too_big(&mut head, &headers, mtu);
        assert_eq!(is_written, head.as_slice() != before);
        is_written.then(|| head.as_slice().to_vec())
    }

    proptest! {
        /// The oracle is etherparse: addresses, the MTU, both checksums, and the part of the packet
        /// by which the sender finds the connection.
        #[test]
        fn a_sender_is_told_what_its_packet_was(recipe in recipes(300), mtu in 68..=u16::MAX) {
            let frame = recipe.frame();
            let Some(report) = reported(&frame, mtu) else {
                // The part would not fit. Other packets of recipes are those of hosts.
                let behind = parse(&frame).unwrap().l4_at as usize + CONNECTION;
                prop_assert!(behind > HEAD_LEN - V4 || frame.len() < behind);
                return Ok(());
            };
            prop_assert_eq!(&report[..12], [SRC, DST].concat());
            let packet = SlicedPacket::from_ethernet(&report).unwrap();
            let l3_at = usize::from(parse(&frame).unwrap().l3_at);
            match (packet.net.unwrap(), packet.transport.unwrap()) {
                (NetSlice::Ipv4(ip), TransportSlice::Icmpv4(icmp)) => {
                    let header = ip.header().to_header();
                    prop_assert_eq!(header.header_checksum, header.calc_header_checksum());
                    prop_assert_eq!((header.source, header.destination), (DST_V4, SRC_V4));
                    let kind = icmpv4::DestUnreachableHeader::FragmentationNeeded {
                        next_hop_mtu: mtu,
                    };
                    prop_assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(kind));
                    prop_assert!(icmp.header().icmp_type.calc_checksum(icmp.payload())
                        == icmp.checksum());
                    prop_assert!(frame[l3_at..].starts_with(icmp.payload()));
                }
                (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
                    let header = ip.header().to_header();
                    prop_assert_eq!((header.source, header.destination), (DST_V6, SRC_V6));
                    let kind = Icmpv6Type::PacketTooBig { mtu: mtu.into() };
                    prop_assert_eq!(icmp.icmp_type(), kind);
                    prop_assert!(icmp.is_checksum_valid(DST_V6, SRC_V6));
                    prop_assert!(frame[l3_at..].starts_with(icmp.payload()));
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }

    /// A packet of IPv4 from and to these addresses, of a protocol, with this first byte behind its
    /// header.
    fn packet(source: [u8; 4], destination: [u8; 4], protocol: u8, first: u8) -> Vec<u8> {
        let mut frame = TCP_V4.frame();
        frame[23] = protocol;
        frame[26..30].copy_from_slice(&source);
        frame[30..34].copy_from_slice(&destination);
        frame[34] = first;
        frame
    }

    #[test]
    fn nobody_is_told_about_errors_groups_and_later_fragments() {
        let tells = |frame: &[u8]| reported(frame, 1450).is_some();
        let (a, b) = (SRC_V4, DST_V4);
        assert!(tells(&packet(a, b, 6, 0)) && tells(&packet(a, b, 1, 8)));
        assert!(!tells(&packet(a, b, 1, 3)) && !tells(&packet(a, b, 1, 11)));
        for odd in [[0; 4], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
            assert!(!tells(&packet(odd, b, 6, 0)) && !tells(&packet(a, odd, 6, 0)), "{odd:?}");
        }
        let mut fragment = packet(a, b, 6, 0);
        fragment[21] = 1;
        assert!(!tells(&fragment));
        let mut group = Recipe { ip: PLAIN_V6, ..TCP_V4 }.frame();
        assert!(tells(&group));
        group[38] = 0xff;
        assert!(!tells(&group));
        // ARP, and a frame that ends in its headers.
        assert!(!tells(&[&DST[..], &SRC, &[8, 6], &[0; 46]].concat()));
        assert!(!tells(&packet(a, b, 6, 0)[..40]));
    }

    #[test]
    fn an_icmpv6_error_is_not_reported() {
        let mut frame = Recipe { ip: PLAIN_V6, ..TCP_V4 }.frame();
        frame[20] = proto::ICMPV6;
        for (kind, is_told) in [(128, true), (1, false), (2, false)] {
            frame[54] = kind;
            assert_eq!(reported(&frame, 1450).is_some(), is_told, "{kind}");
        }
    }
}
