use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::PacketHeaders;
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, Ipv4Packet, TcpPacket, UdpPacket};

use super::*;
use crate::checksum::complete_csum;
use crate::sample::{DST_V4, DST_V6, Ip, Recipe, SRC_V4, SRC_V6, TCP_V4, recipes};
use crate::view::parse;

fn kind_of(recipe: &Recipe) -> GsoKind {
    match (recipe.is_v4(), recipe.tcp) {
        (true, true) => GsoKind::TcpV4,
        (false, true) => GsoKind::TcpV6,
        (true, false) => GsoKind::UdpV4,
        (false, false) => GsoKind::UdpV6,
    }
}

fn gso(recipe: &Recipe, size: u16) -> Gso {
    Gso { kind: kind_of(recipe), size, ecn: false }
}

fn segmenter(frame: &[u8], gso: Gso) -> Result<Segmenter, BadOffload> {
    let head = &frame[..frame.len().min(HEAD_LEN)];
    Segmenter::new(head, &parse(head).unwrap(), gso, frame.len() as u32)
}

/// The payload's sum as a data path takes it: what lies in the private head first, then the rest.
fn payload_sum(frame: &[u8], segment: &Segment) -> Sum {
    let (from, to) = (segment.from as usize, (segment.from + segment.len) as usize);
    let split = HEAD_LEN.clamp(from, to);
    let mut sum = Sum::of(&frame[from..split]);
    sum.add(&frame[split..to]);
    sum
}

fn assemble(frame: &[u8], segment: &Segment) -> Vec<u8> {
    let payload = &frame[segment.from as usize..(segment.from + segment.len) as usize];
    [segment.header_bytes(), payload].concat()
}

/// All segments of a recipe's frame as they would go out.
fn cut(recipe: &Recipe, size: u16) -> Vec<Vec<u8>> {
    let frame = recipe.partial_frame();
    let finish = |mut segment: Segment| {
        segment.finish(payload_sum(&frame, &segment));
        assemble(&frame, &segment)
    };
    segmenter(&frame, gso(recipe, size)).unwrap().map(finish).collect()
}

/// `smoltcp` finds all checksums right.
fn assert_checksums(recipe: &Recipe, frame: &[u8]) {
    let (src, dst) = if recipe.is_v4() {
        assert!(Ipv4Packet::new_checked(&frame[recipe.l3_at()..]).unwrap().verify_checksum());
        (IpAddress::from(Ipv4Addr::from(SRC_V4)), IpAddress::from(Ipv4Addr::from(DST_V4)))
    } else {
        (IpAddress::from(Ipv6Addr::from(SRC_V6)), IpAddress::from(Ipv6Addr::from(DST_V6)))
    };
    let transport = &frame[recipe.l4_at()..];
    if recipe.tcp {
        assert!(TcpPacket::new_checked(transport).unwrap().verify_checksum(&src, &dst));
    } else {
        let udp = UdpPacket::new_checked(transport).unwrap();
        // A zero checksum would verify, as "none".
        assert!(udp.checksum() != 0 && udp.verify_checksum(&src, &dst));
    }
}

/// Segment `i` is byte by byte what `etherparse` builds for that piece of the payload.
fn assert_is_piece(recipe: &Recipe, frame: &[u8], i: usize, size: usize, count: usize) {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = recipe.payload();
    let piece = payload.chunks(size).nth(i).unwrap();
    assert_eq!(headers.payload.slice(), piece);
    assert_eq!(frame.len(), recipe.end() + piece.len());
    let mut flags = recipe.flags & 0xd9;
    if i > 0 {
        flags &= !0x80;
    }
    if i + 1 < count {
        flags &= !0x09;
    }
    let mut same = recipe.clone();
    same.seq = recipe.seq.wrapping_add((i * size) as u32);
    same.flags = flags;
    same.payload = piece.len();
    if let Ip::V4 { id, .. } = &mut same.ip {
        *id = id.wrapping_add(i as u16);
    }
    let mut expected = same.frame();
    // The recipe makes its own payload; ours and the checksum that covers it are checked elsewhere.
    expected[recipe.end()..].copy_from_slice(piece);
    let csum_at = recipe.csum_at();
    expected[csum_at..csum_at + 2].copy_from_slice(&frame[csum_at..csum_at + 2]);
    assert_eq!(frame, expected);
}

fn fits(recipe: &Recipe) -> bool {
    recipe.end() <= HEAD_LEN
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn segments_are_right_and_make_up_the_whole(
        recipe in recipes(20_000).prop_filter("headers fit", fits), size in 500..3000u16
    ) {
        prop_assume!(recipe.payload > 0);
        let segments = cut(&recipe, size);
        prop_assert_eq!(segments.len(), recipe.payload.div_ceil(usize::from(size)));
        for (i, frame) in segments.iter().enumerate() {
            assert_checksums(&recipe, frame);
            assert_is_piece(&recipe, frame, i, usize::from(size), segments.len());
        }
        let whole: Vec<u8> = segments.iter().flat_map(|frame| frame[recipe.end()..].to_vec()).collect();
        prop_assert_eq!(whole, recipe.payload());
    }

    #[test]
    fn small_segments_too(recipe in recipes(200).prop_filter("headers fit", fits), size in 1..80u16) {
        prop_assume!(recipe.payload > 0);
        let segments = cut(&recipe, size);
        for (i, frame) in segments.iter().enumerate() {
            assert_checksums(&recipe, frame);
            assert_is_piece(&recipe, frame, i, usize::from(size), segments.len());
        }
    }

    #[test]
    fn left_partial_and_finished_later_is_the_same(
        recipe in recipes(3000).prop_filter("headers fit", fits), size in 100..1500u16
    ) {
        prop_assume!(recipe.payload > 0);
        let frame = recipe.partial_frame();
        let finished = cut(&recipe, size);
        for (mut segment, finished) in segmenter(&frame, gso(&recipe, size)).unwrap().zip(finished) {
            let csum = segment.leave_partial();
            let mut late = assemble(&frame, &segment);
            let headers = parse(&late).unwrap();
            complete_csum(&mut late, &headers, csum, Sum::new()).unwrap();
            assert_checksums(&recipe, &late);
            prop_assert_eq!(late.len(), finished.len());
        }
    }

    #[test]
    fn any_bytes_are_survived(
        recipe in recipes(300), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        size: u16, frame_len in prop_oneof![0..400u32, any::<u32>()],
        kind in prop::sample::select(vec![GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::UdpV4, GsoKind::UdpV6]),
    ) {
        let mut frame = recipe.partial_frame();
        frame.truncate(HEAD_LEN);
        for (index, byte) in damage {
            let at = index.index(frame.len());
            frame[at] = byte;
        }
        let h = parse(&frame).unwrap();
        let Ok(segmenter) = Segmenter::new(&frame, &h, Gso { kind, size, ecn: true }, frame_len) else { return Ok(()) };
        let mut next = u32::from(h.end);
        let mut count = 0;
        for mut segment in segmenter {
            segment.finish(Sum::new());
            segment.leave_partial();
            prop_assert_eq!(segment.from, next);
            prop_assert!(segment.len > 0 && segment.len <= u32::from(size));
            next += segment.len;
            count += 1;
        }
        prop_assert_eq!(next, frame_len);
        prop_assert!(count <= MAX_SEGMENTS);
    }
}

/// Frames of more than 64 KiB (Linux calls them big TCP) have a length in their pseudo header that
/// needs 32 bits.
#[test]
fn lengths_beyond_16_bits_are_taken_out_again() {
    let recipe = Recipe { payload: 150_000, ..TCP_V4.v6() };
    let small = Recipe { payload: 0, ..recipe.clone() };
    let frame = [small.partial_frame(), recipe.payload()].concat();
    let mut sum = Sum::new();
    sum.add_pseudo_v6(SRC_V6, DST_V6, 6, (frame.len() - recipe.l4_at()) as u32);
    let mut frame = frame;
    put(&mut frame, recipe.csum_at(), sum.fold().to_be_bytes()).unwrap();
    for mut segment in segmenter(&frame, gso(&recipe, 30_000)).unwrap() {
        segment.finish(payload_sum(&frame, &segment));
        assert_checksums(&recipe, &assemble(&frame, &segment));
    }
}

#[test]
fn flags_go_where_they_belong() {
    let recipe = Recipe { flags: 0x80 | 0x40 | 0x10 | 0x08 | 0x01, payload: 3000, ..TCP_V4 };
    let flags: Vec<u8> =
        cut(&recipe, 1000).iter().map(|frame| frame[recipe.l4_at() + 13]).collect();
    assert_eq!(flags, [0x80 | 0x40 | 0x10, 0x40 | 0x10, 0x40 | 0x10 | 0x08 | 0x01]);
}

#[test]
fn sequence_and_identification_wrap() {
    let recipe = Recipe {
        seq: u32::MAX - 10,
        ip: Ip::V4 { id: u16::MAX, options: 0 },
        payload: 300,
        ..TCP_V4
    };
    let segments = cut(&recipe, 100);
    let ids: Vec<_> =
        segments.iter().map(|frame| get_u16(frame, recipe.l3_at() + 4).unwrap()).collect();
    let seqs: Vec<_> =
        segments.iter().map(|frame| get_u32(frame, recipe.l4_at() + 4).unwrap()).collect();
    assert_eq!(ids, [0xffff, 0, 1]);
    assert_eq!(seqs, [u32::MAX - 10, 89, 189]);
}

#[test]
fn a_udp_checksum_of_zero_becomes_all_ones() {
    // Two payload bytes that bring the sum to 0xffff: what an arbitrary pair has left over.
    let mut recipe = TCP_V4.udp();
    recipe.payload = 4;
    let mut frame = recipe.partial_frame();
    let end = recipe.end();
    frame[end..end + 2].fill(0);
    let sum_of_first = |frame: &[u8]| {
        let mut first = segmenter(frame, gso(&recipe, 2)).unwrap().next().unwrap();
        first.finish(Sum::of(&frame[end..end + 2]));
        get_u16(&first.headers, recipe.csum_at()).unwrap()
    };
    let missing = sum_of_first(&frame);
    frame[end..end + 2].copy_from_slice(&missing.to_be_bytes());
    assert_eq!(sum_of_first(&frame), 0xffff);
}

#[test]
fn what_cannot_be_cut_is_refused_by_name() {
    let recipe = Recipe { payload: 4000, ..TCP_V4 };
    let frame = recipe.partial_frame();
    let tcp4 = gso(&recipe, 1000);
    let h = parse(&frame).unwrap();
    let head = &frame[..HEAD_LEN];
    let new = |h: &Headers, gso, len| Segmenter::new(head, h, gso, len).map(|_| ()).unwrap_err();

    let fragment = Headers { fragment: true, ..h };
    assert_eq!(new(&fragment, tcp4, 4066), BadOffload::Fragment);
    assert_eq!(new(&h, Gso { kind: GsoKind::TcpV6, ..tcp4 }, 4066), BadOffload::GsoProtocol);
    assert_eq!(new(&h, Gso { kind: GsoKind::UdpV4, ..tcp4 }, 4066), BadOffload::GsoProtocol);
    assert_eq!(new(&h, Gso { size: 0, ..tcp4 }, 4066), BadOffload::GsoSize);
    assert_eq!(new(&h, Gso { size: u16::MAX, ..tcp4 }, 1_000_000), BadOffload::GsoSize);
    assert_eq!(new(&h, Gso { size: 1, ..tcp4 }, 4066), BadOffload::GsoCount);
    assert_eq!(new(&h, tcp4, u32::from(h.end)), BadOffload::Truncated);
    assert_eq!(new(&h, tcp4, 10), BadOffload::Truncated);
    let upside_down = Headers { l4_at: h.end + 1, ..h };
    assert_eq!(new(&upside_down, tcp4, 4066), BadOffload::Truncated);
    let beyond = Headers { end: 200, ..h };
    assert_eq!(new(&beyond, tcp4, 4066), BadOffload::Truncated);
}

#[test]
fn remaining_counts_down() {
    let recipe = Recipe { payload: 2500, ..TCP_V4 };
    let mut segmenter = segmenter(&recipe.partial_frame(), gso(&recipe, 1000)).unwrap();
    for left in [3, 2, 1] {
        assert_eq!(
            (segmenter.remaining(), segmenter.size_hint()),
            (left, (left as usize, Some(left as usize)))
        );
        assert!(segmenter.next().is_some());
    }
    assert_eq!(segmenter.remaining(), 0);
    assert!(segmenter.next().is_none());
}
