use proptest::prelude::*;

use super::*;
use crate::checksum::{Sum, complete_csum};
use crate::offload::Accepts;
use crate::sample::{Ip, Recipe, TCP_V4, recipes};
use crate::segment::Segmenter;
use crate::view::parse;

fn kind_of(recipe: &Recipe) -> GsoKind {
    match (recipe.is_v4(), recipe.tcp) {
        (true, true) => GsoKind::TcpV4,
        (false, true) => GsoKind::TcpV6,
        (true, false) => GsoKind::UdpV4,
        (false, false) => GsoKind::UdpV6,
    }
}

fn partial(recipe: &Recipe) -> PartialCsum {
    PartialCsum { start: recipe.l4_at() as u16, offset: (recipe.csum_at() - recipe.l4_at()) as u16 }
}

/// Decodes `fields` in front of the recipe's frame.
fn decode_for(recipe: &Recipe, fields: [u8; 12]) -> Result<Offload, BadOffload> {
    let frame = recipe.partial_frame();
    decode(&fields, &parse(&frame).unwrap(), frame.len() as u32)
}

/// A header asking for a TCP checksum and segments of `size` bytes behind 34 bytes of Ethernet and
/// IPv4.
fn tcp4(flags: u8, gso_type: u8, size: u16) -> [u8; 12] {
    let [lo, hi] = size.to_le_bytes();
    [flags, gso_type, 0, 0, lo, hi, 34, 0, 16, 0, 0, 0]
}

#[test]
fn layout_is_that_of_the_specification() {
    let csum = Some(PartialCsum { start: 0x0122, offset: 16 });
    let gso = Some(Gso { kind: GsoKind::TcpV6, size: 0x05a8, ecn: true });
    let bytes = encode(&Offload { csum, gso, valid: false }, 0x0142);
    assert_eq!(bytes, [1, 0x84, 0x42, 0x01, 0xa8, 0x05, 0x22, 0x01, 16, 0, 0, 0]);
    assert_eq!(
        encode(&Offload { valid: true, ..Offload::default() }, 66),
        [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(encode(&Offload::default(), 66), [0; 12]);
    let types =
        [(GsoKind::TcpV4, 1), (GsoKind::TcpV6, 4), (GsoKind::UdpV4, 5), (GsoKind::UdpV6, 5)];
    for (kind, number) in types {
        let gso = Some(Gso { kind, size: 1, ecn: false });
        assert_eq!(encode(&Offload { csum, gso, valid: false }, 54)[1], number);
    }
}

proptest! {
    #[test]
    fn round_trip(recipe in recipes(4000), size in 1..5000u16, cut: bool, ecn: bool) {
        prop_assume!(recipe.end() <= HEAD_LEN);
        let kind = kind_of(&recipe);
        let gso = cut.then_some(Gso { kind, size, ecn: ecn && recipe.tcp });
        let wanted = Offload { csum: Some(partial(&recipe)), gso, valid: false };
        let got = decode_for(&recipe, encode(&wanted, recipe.end() as u16));
        // One segment's worth is not cut.
        let gso = gso.filter(|gso| recipe.payload > usize::from(gso.size));
        prop_assert_eq!(got, Ok(Offload { gso, ..wanted }));
    }

    /// Metadata that passes can be handed over or done in software.
    #[test]
    fn what_passes_can_be_worked_off(
        recipe in recipes(3000), damage in prop::collection::vec((14..128usize, any::<u8>()), 0..3),
        flags: u8, gso_type in prop::sample::select(vec![0u8, 1, 3, 4, 5, 0x81, 0x84, 0x85, 77]),
        size: u16, start in prop_oneof![14..90u16, any::<u16>()], offset in prop_oneof![0..18u16, any::<u16>()], honest: bool,
    ) {
        let mut frame = recipe.partial_frame();
        for (at, byte) in damage {
            if let Some(there) = frame.get_mut(at) {
                *there = byte;
            }
        }
        let csum = if honest { partial(&recipe) } else { PartialCsum { start, offset } };
        let ([s0, s1], [c0, c1], [o0, o1]) = (size.to_le_bytes(), csum.start.to_le_bytes(), csum.offset.to_le_bytes());
        let bytes = [flags, gso_type, 9, 9, s0, s1, c0, c1, o0, o1, 9, 9];
        let h = parse(&frame).unwrap();
        let len = frame.len() as u32;
        let Ok(offload) = decode(&bytes, &h, len) else { return Ok(()) };
        prop_assert!(!offload.valid);
        prop_assert!(Accepts::ALL.takes(&offload));
        let head = &mut frame[..(len as usize).min(HEAD_LEN)];
        if let Some(gso) = offload.gso {
            prop_assert!(offload.csum.is_some());
            let cut = Segmenter::new(head, &h, gso, len);
            prop_assert!(matches!(cut, Ok(_) | Err(BadOffload::GsoCount)), "{:?}", cut);
        }
        if let Some(csum) = offload.csum {
            let before = head.to_vec();
            let done = complete_csum(head, &h, csum, Sum::new());
            prop_assert!(matches!(done, Ok(()) | Err(BadOffload::CsumKind)), "{:?}", done);
            prop_assert_eq!(&head[..usize::from(h.l4_at)], &before[..usize::from(h.l4_at)]);
        }
    }

    #[test]
    fn any_header_in_front_of_any_bytes_is_survived(bytes: [u8; 12], frame in prop::collection::vec(any::<u8>(), 14..150), len: u32) {
        let h = parse(&frame).unwrap();
        let _ = decode(&bytes, &h, frame.len() as u32);
        let _ = decode(&bytes, &h, len);
    }
}

#[test]
fn a_guest_cannot_vouch_for_its_checksums() {
    assert_eq!(decode_for(&TCP_V4, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Ok(Offload::default()));
}

#[test]
fn plain_frames_are_plain_whatever_the_other_fields_say() {
    assert_eq!(decode_for(&TCP_V4, [0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]), Ok(Offload::default()));
    assert_eq!(
        decode_for(&TCP_V4, [0, GSO_ECN, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        Ok(Offload::default())
    );
}

#[test]
fn checksums_are_where_the_protocol_keeps_them() {
    let csum = |start, offset| decode_for(&TCP_V4, [1, 0, 0, 0, 0, 0, start, 0, offset, 0, 0, 0]);
    assert_eq!(csum(34, 16).map(|o| o.csum), Ok(Some(PartialCsum { start: 34, offset: 16 })));
    assert_eq!(csum(34, 6), Err(BadOffload::CsumPlace));
    assert_eq!(csum(36, 14), Err(BadOffload::CsumPlace));
    assert_eq!(csum(0, 0), Err(BadOffload::CsumRange), "the destination address");
    assert_eq!(csum(14, 10), Err(BadOffload::CsumRange), "the IPv4 header");
    assert_eq!(csum(120, 7), Err(BadOffload::CsumRange), "outside of the head");
    assert_eq!(csum(255, 255), Err(BadOffload::CsumRange));
}

#[test]
fn checksums_lie_inside_of_short_frames() {
    let recipe = Recipe { payload: 0, ..TCP_V4.udp() };
    let frame = recipe.partial_frame();
    let h = parse(&frame).unwrap();
    let fields = [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0];
    assert!(decode(&fields, &h, 42).is_ok());
    assert_eq!(decode(&fields, &h, 41), Err(BadOffload::CsumRange));
}

#[test]
fn unknown_protocols_pass_inside_of_their_payload() {
    let mut frame = TCP_V4.frame();
    frame[23] = 132;
    let h = parse(&frame).unwrap();
    let sctp = [1, 0, 0, 0, 0, 0, 34, 0, 8, 0, 0, 0];
    let csum = Some(PartialCsum { start: 34, offset: 8 });
    assert_eq!(decode(&sctp, &h, frame.len() as u32), Ok(Offload { csum, ..Offload::default() }));
}

#[test]
fn fragments_have_nothing_to_offload() {
    let mut frame = TCP_V4.frame();
    frame[20] = 0x20;
    let h = parse(&frame).unwrap();
    assert_eq!(decode(&tcp4(1, 0, 0), &h, 166), Err(BadOffload::Fragment));
    assert_eq!(decode(&tcp4(0, 1, 10), &h, 166), Err(BadOffload::Fragment));
}

#[test]
fn segmentation_has_to_fit_the_frame() {
    assert!(matches!(decode_for(&TCP_V4, tcp4(1, 1, 99)), Ok(Offload { gso: Some(_), .. })));
    assert!(matches!(
        decode_for(&TCP_V4, tcp4(1, 1, 100)),
        Ok(Offload { csum: Some(_), gso: None, valid: false })
    ));
    assert_eq!(decode_for(&TCP_V4, tcp4(0, 1, 50)), Err(BadOffload::GsoWithoutCsum));
    assert_eq!(decode_for(&TCP_V4, tcp4(1, 1, 0)), Err(BadOffload::GsoSize));
    assert_eq!(decode_for(&TCP_V4, tcp4(1, 4, 50)), Err(BadOffload::GsoProtocol), "TCP over IPv6");
    assert_eq!(decode_for(&TCP_V4, tcp4(1, 5, 50)), Err(BadOffload::GsoProtocol), "UDP");
    assert_eq!(
        decode_for(&TCP_V4, tcp4(1, 3, 50)),
        Err(BadOffload::GsoType),
        "legacy UDP fragmentation"
    );
    assert_eq!(decode_for(&TCP_V4, tcp4(1, 2, 50)), Err(BadOffload::GsoType));
}

#[test]
fn ecn_is_for_tcp() {
    let udp = TCP_V4.udp();
    let fields = |gso_type| [1, gso_type, 0, 0, 50, 0, 34, 0, 6, 0, 0, 0];
    assert!(decode_for(&udp, fields(5)).is_ok());
    assert_eq!(decode_for(&udp, fields(0x85)), Err(BadOffload::GsoProtocol));
    assert!(matches!(
        decode_for(&TCP_V4, tcp4(1, 0x81, 50)),
        Ok(Offload { gso: Some(Gso { ecn: true, .. }), .. })
    ));
}

#[test]
fn headers_that_do_not_fit_are_not_cut() {
    let recipe =
        Recipe { ip: Ip::V4 { id: 0, options: 10 }, tcp_options: 10, payload: 3000, ..TCP_V4 };
    let fields = [1, 1, 0, 0, 0xff, 0, recipe.l4_at() as u8, 0, 16, 0, 0, 0];
    assert_eq!(decode_for(&recipe, fields), Err(BadOffload::GsoProtocol));
}

#[test]
fn legacy_headers_say_the_same() {
    let frame = TCP_V4.partial_frame();
    let h = parse(&frame).unwrap();
    let long = tcp4(1, 0x81, 50);
    let short: [u8; 10] = *long.first_chunk().unwrap();
    assert_eq!(decode_legacy(&short, &h, 166), decode(&long, &h, 166));
}
