use proptest::prelude::*;

use super::*;
use crate::HEAD_LEN;
use crate::sample::{Ip, Recipe, TCP_V4, recipes, simple_sum};
use crate::view::parse;

/// 0 and 0xffff are the same number in one's complement.
fn canonical(sum: u16) -> u16 {
    if sum == 0xffff { 0 } else { sum }
}

proptest! {
    #[test]
    fn pieces_sum_like_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(0..400usize, 0..6)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        let mut sum = Sum::new();
        let mut from = 0;
        for to in cuts.into_iter().chain([bytes.len()]) {
            sum.add(&bytes[from..to]);
            from = to;
        }
        prop_assert_eq!(canonical(sum.fold()), canonical(simple_sum(&bytes)));
        prop_assert_eq!(sum.fold(), !sum.checksum());
    }

    #[test]
    fn pseudo_headers_sum_like_their_bytes(v4: [[u8; 4]; 2], v6: [[u8; 16]; 2], proto: u8, len: u32) {
        let tail = [&len.to_be_bytes()[..], &[0, 0, 0, proto]].concat();
        let mut sum = Sum::new();
        sum.add_pseudo_v4(v4[0], v4[1], proto, len);
        prop_assert_eq!(canonical(sum.fold()), canonical(simple_sum(&[&v4.concat()[..], &tail].concat())));
        let mut sum = Sum::new();
        sum.add_pseudo_v6(v6[0], v6[1], proto, len);
        prop_assert_eq!(canonical(sum.fold()), canonical(simple_sum(&[&v6.concat()[..], &tail].concat())));
    }

    #[test]
    fn completing_makes_what_etherparse_makes(recipe in recipes(700)) {
        let csum_at = recipe.csum_at();
        let (mut frame, finished) = (recipe.partial_frame(), recipe.frame());
        prop_assume!(csum_at + 2 <= frame.len().min(HEAD_LEN));
        let h = parse(&frame).unwrap();
        let csum = PartialCsum { start: recipe.l4_at() as u16, offset: (csum_at - recipe.l4_at()) as u16 };
        let split = frame.len().min(HEAD_LEN);
        let (head, body) = frame.split_at_mut(split);
        prop_assert_eq!(complete_csum(head, &h, csum, Sum::of(body)), Ok(()));
        let written = get_u16(&frame, csum_at).unwrap();
        prop_assert_eq!(written, get_u16(&finished, csum_at).unwrap());
    }

    #[test]
    fn any_place_is_survived(mut head in prop::collection::vec(any::<u8>(), 14..=128), start: u16, offset: u16, near: bool) {
        let (start, offset) = if near { (start % 140, offset % 20) } else { (start, offset) };
        let before = head.clone();
        let h = parse(&head).unwrap();
        if complete_csum(&mut head, &h, PartialCsum { start, offset }, Sum::new()).is_err() {
            prop_assert_eq!(head, before);
        }
    }
}

#[test]
fn long_runs_of_ones_carry() {
    for len in [0, 1, 31, 32, 33, 65_535, 300_001] {
        let bytes = vec![0xff; len];
        assert_eq!(canonical(Sum::of(&bytes).fold()), canonical(simple_sum(&bytes)), "{len} bytes");
    }
}

#[test]
fn zero_is_never_sent() {
    // Bytes that sum to 0xffff have the checksum zero.
    let sum = Sum::of(&[0xff, 0xff]);
    assert_eq!((sum.checksum(), sum.checksum_nonzero()), (0, 0xffff));
    assert_eq!(Sum::new().checksum_nonzero(), 0xffff);
}

/// What [`complete_csum`] writes where the checksum is zero.
fn written_for_zero(recipe: Recipe) -> u16 {
    let recipe = Recipe { payload: 2, ..recipe };
    let mut frame = recipe.partial_frame();
    let h = parse(&frame).unwrap();
    let at = recipe.csum_at();
    let csum = PartialCsum { start: 34, offset: (at - recipe.l4_at()) as u16 };
    let pseudo = get_u16(&frame, at).unwrap();
    let mut complete = |payload: [u8; 2]| {
        put(&mut frame, at, pseudo.to_be_bytes()).unwrap();
        put(&mut frame, recipe.end(), payload).unwrap();
        complete_csum(&mut frame, &h, csum, Sum::new()).unwrap();
        get_u16(&frame, at).unwrap()
    };
    // A payload that completes the sum to all ones makes the checksum zero.
    let missing = complete([0, 0]);
    complete(missing.to_be_bytes())
}

#[test]
fn a_completed_checksum_of_udp_is_never_zero() {
    assert_eq!(written_for_zero(TCP_V4.udp()), 0xffff);
}

#[test]
fn a_completed_checksum_of_tcp_may_be_zero() {
    assert_eq!(written_for_zero(TCP_V4), 0);
}

#[test]
fn sctp_is_refused() {
    let mut frame = TCP_V4.frame();
    frame[23] = proto::SCTP;
    let h = parse(&frame).unwrap();
    let before = frame.clone();
    let csum = PartialCsum { start: 34, offset: 8 };
    assert_eq!(complete_csum(&mut frame, &h, csum, Sum::new()), Err(BadOffload::CsumKind));
    assert_eq!(frame, before);
}

#[test]
fn fields_outside_of_the_head_are_refused() {
    let mut frame = Recipe { ip: Ip::V4 { id: 0, options: 0 }, ..TCP_V4 }.frame();
    let h = parse(&frame).unwrap();
    let head = &mut frame[..60];
    for (start, offset) in [(34, 25), (59, 0), (60, 0), (u16::MAX, u16::MAX), (0, u16::MAX)] {
        let csum = PartialCsum { start, offset };
        assert_eq!(
            complete_csum(head, &h, csum, Sum::new()),
            Err(BadOffload::CsumRange),
            "{csum:?}"
        );
    }
}
