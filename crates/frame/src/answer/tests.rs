use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
    RawHardwareAddress,
};

use super::*;
use crate::parse;
use crate::sample::{DST_V4, DST_V6, SRC, SRC_V4, SRC_V6};

const OWNER: Owner = Owner::host(Mac([2, 0, 0, 0, 0, 7]));
const BROADCAST: [u8; 6] = [0xff; 6];
const TAG: [u8; 4] = [0x81, 0, 0x60, 5];

/// What the request asks for is the sample's destination.
fn arp(tag: &[u8], sender_ip: [u8; 4]) -> Vec<u8> {
    let request = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(SRC),
        source_protocol_addr: sender_ip.into(),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: DST_V4.into(),
    };
    let mut message = vec![0; request.buffer_len()];
    request.emit(&mut ArpPacket::new_unchecked(&mut message[..]));
    // Padding, which an answer does not need.
    [&BROADCAST[..], &SRC, tag, &[8, 6], &message, &[0xaa; 18]].concat()
}

fn solicitation(source: [u8; 16]) -> Vec<u8> {
    let repr = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
        target_addr: DST_V6.into(),
        lladdr: Some(EthernetAddress(SRC).into()),
    });
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, DST_V6[13], DST_V6[14], DST_V6[15]];
    let mut message = vec![0; repr.buffer_len()];
    let mut packet = Icmpv6Packet::new_unchecked(&mut message[..]);
    repr.emit(&source.into(), &group.into(), &mut packet, &ChecksumCapabilities::default());
    let ip = [0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    let to = [0x33, 0x33, 0xff, DST_V6[13], DST_V6[14], DST_V6[15]];
    [&to[..], &SRC, &[0x86, 0xdd], &ip, &source, &group, &message].concat()
}

fn answered(frame: &[u8], owner: Owner) -> Option<Vec<u8>> {
    let (mut head, headers) = (Head::from_frame(frame), parse(frame).unwrap());
    let before = head.as_slice().to_vec();
    assert_eq!(may_answer(&before, &headers), answer(&mut head, &headers, owner));
    match head.as_slice() {
        same if same == before => None,
        other => Some(other.to_vec()),
    }
}

#[test]
fn arp_is_answered_as_the_owner_would() {
    for tag in [&[][..], &TAG] {
        let bytes = answered(&arp(tag, SRC_V4), OWNER).unwrap();
        assert_eq!(bytes[..12], [SRC, OWNER.mac.0].concat());
        assert_eq!(bytes[12..12 + tag.len()], *tag);
        let message = ArpPacket::new_checked(&bytes[14 + tag.len()..]).unwrap();
        assert_eq!(bytes.len(), 42 + tag.len());
        let expected = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(OWNER.mac.0),
            source_protocol_addr: DST_V4.into(),
            target_hardware_addr: EthernetAddress(SRC),
            target_protocol_addr: SRC_V4.into(),
        };
        assert_eq!(ArpRepr::parse(&message).unwrap(), expected);
    }
}

#[test]
fn solicitations_are_answered_as_the_owner_would() {
    for is_router in [false, true] {
        let bytes = answered(&solicitation(SRC_V6), Owner { is_router, ..OWNER }).unwrap();
        let ethernet = EthernetFrame::new_checked(&bytes[..]).unwrap();
        assert_eq!(ethernet.ethertype(), EthernetProtocol::Ipv6);
        assert_eq!((ethernet.dst_addr().0, ethernet.src_addr().0), (SRC, OWNER.mac.0));
        let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
        assert_eq!((ip.hop_limit(), ip.next_header()), (255, IpProtocol::Icmpv6));
        assert_eq!((ip.src_addr(), ip.dst_addr()), (DST_V6.into(), SRC_V6.into()));
        let message = Icmpv6Packet::new_checked(ip.payload()).unwrap();
        // The checksum is verified.
        let caps = ChecksumCapabilities::default();
        let repr = Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &message, &caps).unwrap();
        let mut flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
        flags.set(NdiscNeighborFlags::ROUTER, is_router);
        let lladdr = Some(RawHardwareAddress::from(EthernetAddress(OWNER.mac.0)));
        let expected = NdiscRepr::NeighborAdvert { flags, target_addr: DST_V6.into(), lladdr };
        assert_eq!(repr, Icmpv6Repr::Ndisc(expected));
    }
}

#[test]
fn probes_and_announcements_are_for_the_owner() {
    assert_eq!(answered(&arp(&[], [0; 4]), OWNER), None);
    assert_eq!(answered(&arp(&[], DST_V4), OWNER), None);
    assert_eq!(answered(&solicitation([0; 16]), OWNER), None);
    let mut reply = arp(&[], SRC_V4);
    reply[21] = 2;
    assert_eq!(answered(&reply, OWNER), None);
}

proptest! {
    /// The answer is in the owner's name and for the sender, whatever the sender writes.
    #[test]
    fn answers_are_in_the_name_of_the_owner(
        kind in 0..3usize,
        changes in prop::collection::vec((0..90usize, any::<u8>()), 0..6),
        len in 14..100usize,
    ) {
        let mut frame = match kind {
            0 => arp(&[], SRC_V4),
            1 => arp(&TAG, SRC_V4),
            _ => solicitation(SRC_V6),
        };
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(len);
        let asked = crate::requested(&frame, &parse(&frame).unwrap());
        let Some(bytes) = answered(&frame, OWNER) else { return Ok(()) };
        let headers = parse(&bytes).unwrap();
        prop_assert_eq!((headers.src, headers.dst.0.as_slice()), (OWNER.mac, &frame[6..12]));
        match (claim(&bytes, &headers).unwrap(), asked.unwrap()) {
            (Claim::Arp(arp), std::net::IpAddr::V4(address)) => {
                prop_assert_eq!((arp.sender, arp.sender_ip), (OWNER.mac, address));
            }
            (Claim::V6 { source, .. }, std::net::IpAddr::V6(address)) => {
                prop_assert_eq!(source, address);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
