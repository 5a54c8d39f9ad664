use proptest::prelude::*;

use super::*;
use crate::sample::{Ip, PLAIN_V6, Recipe, TCP_V4, recipes};
use crate::segment::Segmenter;
use crate::view::parse;

fn ack_only() -> Recipe {
    Recipe { flags: ACK, payload: 5000, ..TCP_V4 }
}

/// What software segmentation makes of a recipe's frame.
fn cut(recipe: &Recipe, size: u16) -> Vec<Vec<u8>> {
    let frame = recipe.partial_frame();
    let kind = if recipe.is_v4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let head = &frame[..frame.len().min(HEAD_LEN)];
    let gso = Gso { kind, size, ecn: false };
    let segmenter = Segmenter::new(head, &parse(head).unwrap(), gso, frame.len() as u32).unwrap();
    let whole = |mut segment: crate::Segment| {
        let payload = &frame[segment.from as usize..(segment.from + segment.len) as usize];
        segment.finish(Sum::of(payload));
        [segment.header_bytes(), payload].concat()
    };
    segmenter.map(whole).collect()
}

/// The frame that segments become, and its offload; all of them must be taken.
fn coalesced(segments: &[Vec<u8>]) -> Option<(Vec<u8>, Offload)> {
    let mut coalescer = Coalescer::begin(&segments[0]).unwrap();
    assert!(segments[1..].iter().all(|segment| coalescer.append(segment)));
    assert_eq!(usize::from(coalescer.segments()), segments.len());
    let headers_len = coalescer.headers_len();
    let (head, offload) = coalescer.finish()?;
    let payloads = segments.iter().flat_map(|segment| &segment[headers_len..]);
    Some((head.iter().chain(payloads).copied().collect(), offload))
}

/// Recipes of frames that can be coalesced.
fn plain() -> impl Strategy<Value = Recipe> {
    recipes(20_000).prop_map(|recipe| Recipe {
        ip: match recipe.ip {
            Ip::V4 { id, .. } => Ip::V4 { id, options: 0 },
            Ip::V6 { .. } => PLAIN_V6,
        },
        tcp: true,
        flags: ACK | recipe.flags & PSH,
        payload: recipe.payload.max(1),
        ..recipe
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn segments_become_the_frame_that_they_were_cut_from(recipe in plain(), size in 500..3000u16) {
        prop_assume!(recipe.end() <= HEAD_LEN);
        let segments = cut(&recipe, size);
        let Some((frame, offload)) = coalesced(&segments) else {
            prop_assert_eq!(segments.len(), 1);
            return Ok(());
        };
        prop_assert_eq!(frame, recipe.partial_frame());
        let gso = offload.gso.unwrap();
        prop_assert_eq!((gso.size, gso.ecn), (size, false));
        let csum = offload.csum.unwrap();
        prop_assert_eq!(usize::from(csum.start + csum.offset), recipe.csum_at());
    }

    #[test]
    fn a_segment_with_any_bit_changed_is_not_taken(
        recipe in plain(), at in any::<prop::sample::Index>(), bit in 0..8u8
    ) {
        prop_assume!(recipe.end() <= HEAD_LEN && recipe.payload > 1000);
        let mut segments = cut(&recipe, 1000);
        let mut coalescer = Coalescer::begin(&segments[0]).unwrap();
        let at = at.index(segments[1].len());
        segments[1][at] ^= 1 << bit;
        prop_assert!(!coalescer.append(&segments[1]));
        segments[1][at] ^= 1 << bit;
        prop_assert!(coalescer.append(&segments[1]));
    }

    #[test]
    fn no_bytes_make_it_panic(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 2)) {
        if let Some(mut coalescer) = Coalescer::begin(&frames[0]) {
            coalescer.append(&frames[1]);
            coalescer.finish();
        }
    }
}

#[test]
fn frames_that_are_no_segments_stay_alone() {
    let begins = |recipe: Recipe| Coalescer::begin(&recipe.frame()).is_some();
    assert!(begins(ack_only()) && begins(ack_only().v6()));
    assert!(!begins(ack_only().udp()));
    assert!(!begins(Recipe { payload: 0, ..ack_only() }));
    // FIN, ECE and CWR.
    for flag in [0x01, 0x40, 0x80] {
        assert!(!begins(Recipe { flags: ACK | flag, ..ack_only() }), "{flag:#x}");
    }
    assert!(!begins(Recipe { ip: Ip::V4 { id: 1, options: 1 }, ..ack_only() }));
    let hop_by_hop = Ip::V6 { hop_by_hop: true, destination: false, routing: false };
    assert!(!begins(Recipe { ip: hop_by_hop, ..ack_only() }));
    // Padding behind the packet.
    let mut padded = ack_only().frame();
    padded.push(0);
    assert!(Coalescer::begin(&padded).is_none());
}

#[test]
fn order_gaps_and_ends_are_kept() {
    let segments = cut(&ack_only(), 1000);
    let begin = |at: usize| Coalescer::begin(&segments[at]).unwrap();
    assert!(!begin(0).append(&segments[0]));
    assert!(!begin(0).append(&segments[2]));
    assert!(!begin(1).append(&segments[0]));
    assert!(begin(1).append(&segments[2]));

    // Nothing follows a segment that is shorter, or that has PSH.
    let mut short = begin(3);
    assert!(short.append(&cut(&Recipe { payload: 4500, ..ack_only() }, 1000)[4]));
    assert!(!short.append(&segments[4]));
    let pushed = cut(&Recipe { flags: ACK | PSH, payload: 2000, ..ack_only() }, 1000);
    let mut coalescer = begin(0);
    assert!(coalescer.append(&pushed[1]) && !coalescer.append(&segments[2]));
    let (head, _) = coalescer.finish().unwrap();
    assert_eq!(head[ack_only().l4_at() + FLAGS], ACK | PSH);
}

#[test]
fn the_whole_is_no_longer_than_a_packet() {
    let longest = Recipe { payload: 65_000, tcp_options: 0, ..ack_only() };
    let segments = cut(&longest, 1000);
    let mut coalescer = Coalescer::begin(&segments[0]).unwrap();
    assert!(segments[1..].iter().all(|segment| coalescer.append(segment)));
    // 65 000 bytes, 40 of headers, and 495 more.
    let next = |payload: usize| {
        let seq = longest.seq.wrapping_add(65_000);
        Recipe { payload, seq, ip: Ip::V4 { id: 7 + 65, options: 0 }, ..longest.clone() }.frame()
    };
    assert!(!coalescer.append(&next(496)));
    assert!(coalescer.append(&next(495)));
}

/// Sets identification, flags and offset of an IPv4 packet.
fn identified(mut frame: Vec<u8>, id: u16, flags: u16) -> Vec<u8> {
    let (at, end) = (ack_only().l3_at(), ack_only().l4_at());
    put(&mut frame, at + 4, id.to_be_bytes()).unwrap();
    put(&mut frame, at + 6, flags.to_be_bytes()).unwrap();
    put(&mut frame, at + 10, [0, 0]).unwrap();
    let sum = Sum::of(&frame[at..end]).checksum();
    put(&mut frame, at + 10, sum.to_be_bytes()).unwrap();
    frame
}

#[test]
fn identifications_follow_each_other_where_they_mean_something() {
    let segments = cut(&ack_only(), 1000);
    let follows = |second: u16, flags: u16| {
        let [a, b] = [(0, 65_535), (1, second)]
            .map(|(at, id): (usize, u16)| identified(segments[at].clone(), id, flags));
        Coalescer::begin(&a).unwrap().append(&b)
    };
    assert!(follows(0, 0) && !follows(1, 0) && !follows(65_535, 0));
    assert!([0, 1, 65_535].iter().all(|id| follows(*id, DONT_FRAGMENT)));
    // A fragment.
    assert!(Coalescer::begin(&identified(segments[0].clone(), 1, 0x2000)).is_none());
}
