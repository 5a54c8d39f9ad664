use proptest::prelude::*;

use super::*;
use crate::offload::PartialCsum;
use crate::sample::{DST, Recipe, SRC, TCP_V4, recipes};

/// Head, view and metadata of a frame with a partial checksum.
fn load(frame: &[u8], start: usize) -> (Head, Headers, Offload) {
    let csum = Some(PartialCsum { start: start as u16, offset: 16 });
    (Head::from_frame(frame), parse(frame).unwrap(), Offload { csum, ..Offload::default() })
}

proptest! {
    #[test]
    fn edits_make_the_frame_that_has_such_tags(mut recipe in recipes(60), tci: u16, which in 0..4usize) {
        // Both parsers' views end at 128 bytes, so longer headers would be known to one and not to
        // the other.
        prop_assume!(recipe.end() <= 124);
        let edit = [TagEdit::Keep, TagEdit::Pop, TagEdit::Push(tci), TagEdit::Replace(tci)][which];
        recipe.tags.truncate(1);
        let mut wanted = recipe.clone();
        match edit {
            TagEdit::Keep => {}
            TagEdit::Pop => wanted.tags.clear(),
            TagEdit::Push(tci) => wanted.tags.insert(0, tci),
            TagEdit::Replace(tci) => wanted.tags = vec![tci],
        }
        let (mut head, mut headers, mut offload) = load(&recipe.frame(), recipe.l4_at());
        prop_assert_eq!(edit.apply(&mut head, &mut headers, &mut offload), Ok(()));

        let frame = wanted.frame();
        let same = head.len().min(frame.len());
        prop_assert_eq!(&head.as_slice()[..same], &frame[..same]);
        prop_assert_eq!(headers, parse(&frame).unwrap());
        prop_assert_eq!(usize::from(offload.csum.unwrap().start), wanted.l4_at());
    }

    #[test]
    fn any_bytes_and_edits_are_survived(
        frame in prop::collection::vec(any::<u8>(), 14..150), tagged: bool,
        edits in prop::collection::vec((0..4usize, any::<u16>()), 0..12)
    ) {
        let mut frame = frame;
        if tagged {
            frame[12..14].copy_from_slice(&[0x81, 0x00]);
        }
        let (mut head, mut headers, mut offload) = load(&frame, 3);
        for (which, tci) in edits {
            let edit = [TagEdit::Keep, TagEdit::Pop, TagEdit::Push(tci), TagEdit::Replace(tci)][which];
            let before = (head.as_slice().to_vec(), headers, offload);
            if edit.apply(&mut head, &mut headers, &mut offload).is_err() {
                prop_assert_eq!((head.as_slice().to_vec(), headers, offload), before.clone());
            }
            prop_assert!(usize::from(headers.end) <= head.len());
            prop_assert_eq!((headers.dst, headers.src), (before.1.dst, before.1.src));
        }
    }
}

#[test]
fn push_and_pop_undo_each_other() {
    let recipe = Recipe { tags: vec![5, 6], ..TCP_V4 };
    let frame = recipe.frame();
    let (mut head, mut headers, mut offload) = load(&frame, recipe.l4_at());
    let before = headers;
    for tci in [1, 2, 3, 4] {
        assert_eq!(TagEdit::Push(tci).apply(&mut head, &mut headers, &mut offload), Ok(()));
        assert_eq!((headers.tag, headers.tags as u16), (Some(tci), 2 + tci));
    }
    assert_eq!(TagEdit::Push(5).apply(&mut head, &mut headers, &mut offload), Err(NoHeadroom));
    for _ in 0..4 {
        assert_eq!(TagEdit::Pop.apply(&mut head, &mut headers, &mut offload), Ok(()));
    }
    assert_eq!(head.as_slice(), &frame[..128]);
    assert_eq!(headers, before);
    assert_eq!(usize::from(offload.csum.unwrap().start), recipe.l4_at());
}

#[test]
fn popping_the_outer_tag_shows_the_inner_one() {
    let recipe = Recipe { tags: vec![0x6005, 6], ..TCP_V4 };
    let (mut head, mut headers, mut offload) = load(&recipe.frame(), recipe.l4_at());
    assert_eq!(TagEdit::Pop.apply(&mut head, &mut headers, &mut offload), Ok(()));
    assert_eq!((headers.tag, headers.tags), (Some(6), 1));
    assert_eq!(&head.as_slice()[..12], [DST, SRC].concat());
}

#[test]
fn replacing_leaves_the_inner_tag() {
    let recipe = Recipe { tags: vec![5, 6], ..TCP_V4 };
    let (mut head, mut headers, mut offload) = load(&recipe.frame(), recipe.l4_at());
    assert_eq!(TagEdit::Replace(0x2007).apply(&mut head, &mut headers, &mut offload), Ok(()));
    assert_eq!(&head.as_slice()[12..20], [0x81, 0x00, 0x20, 0x07, 0x81, 0x00, 0, 6]);
    assert_eq!(headers.tag, Some(0x2007));
}

#[test]
fn a_service_tag_is_payload() {
    let recipe = Recipe { tags: vec![5], ..TCP_V4 };
    let mut frame = recipe.frame();
    frame[12..14].copy_from_slice(&[0x88, 0xa8]);
    let (mut head, mut headers, mut offload) = load(&frame, recipe.l4_at());
    assert_eq!(TagEdit::Pop.apply(&mut head, &mut headers, &mut offload), Ok(()));
    assert_eq!(head.as_slice(), &frame[..128]);
    for edit in [TagEdit::Push(7), TagEdit::Replace(7)] {
        let (mut head, mut headers, mut offload) = load(&frame, recipe.l4_at());
        assert_eq!(edit.apply(&mut head, &mut headers, &mut offload), Ok(()));
        assert_eq!(&head.as_slice()[12..20], [0x81, 0x00, 0, 7, 0x88, 0xa8, 0, 5]);
        assert_eq!((headers.tag, usize::from(headers.l4_at)), (Some(7), recipe.l4_at() + 4));
    }
}
