use proptest::prelude::*;

use super::*;
use crate::blkif::layout::{LEN_32, LEN_64};

const LAYOUTS: [(Layout, usize); 2] = [(Layout::Bits64, LEN_64), (Layout::Bits32, LEN_32)];

/// A slot out of fields at byte offsets.
fn slot(fields: &[(usize, &[u8])]) -> Vec<u32> {
    let mut bytes = [0; LEN_64];
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The offsets are those of Linux's `struct blkif_x86_64_request` and `blkif_x86_32_request`.
#[test]
fn fields_are_where_frontends_put_them() {
    for (layout, id, sector, body, grefs) in
        [(Layout::Bits64, 8, 16, 24, 28), (Layout::Bits32, 4, 12, 20, 24)]
    {
        let [number, at] = [0x1122_3344_5566_7788u64, 0x99aa].map(u64::to_le_bytes);
        let head: [(usize, &[u8]); 2] = [(id, &number), (sector, &at)];
        let with = |more: &[(usize, &[u8])]| parse(layout, &slot(&[&head, more].concat()));
        let request = with(&[(0, &[1, 11])]);
        let what = What::Data { write: true, segments: 11, list: None };
        let want = BlkRequest { id: 0x1122_3344_5566_7788, operation: 1, sector: 0x99aa, what };
        assert_eq!(request, want);
        let request = with(&[(0, &[6, 0, 0, 1]), (grefs, &7u32.to_le_bytes())]);
        let what = What::Data { write: false, segments: 256, list: Some(GrantRef(7)) };
        assert_eq!((request.what, request.operation), (what, op::READ));
        assert_eq!(with(&[(0, &[5, 0]), (body, &[9])]).what, What::Discard(9));
        assert_eq!(with(&[(0, &[3, 0])]).what, What::Flush);
    }
}

#[test]
fn what_is_not_offered_is_refused() {
    let refused = |head: &[u8]| match parse(Layout::Bits64, &slot(&[(0, head)])).what {
        What::Refused(refusal) => refusal,
        what => panic!("{head:?} is {what:?}"),
    };
    // A barrier, a packet, a discard that erases, no operation at all; the same, indirect.
    for head in [&[2, 1][..], &[4, 0], &[5, 1], &[7, 1], &[255, 255], &[6, 5, 1], &[6, 6, 1]] {
        assert_eq!(refused(head), Refusal::Unsupported, "{head:?}");
    }
    // No segment, too many, 255; the same, indirect; a flush with data.
    for head in [&[0, 0][..], &[1, 12], &[0, 255], &[6, 0, 0], &[6, 1, 1, 1], &[3, 1]] {
        assert_eq!(refused(head), Refusal::BadLength, "{head:?}");
    }
}

#[test]
fn segments_lie_within_their_page() {
    let read = |bytes: [u8; 8]| {
        let mut list = Vec::new();
        read_segments(&bytes, &mut list).map(|sum| (sum, list[0].offset, list[0].len))
    };
    assert_eq!(read([1, 0, 0, 0, 0, 7, 9, 9]), Ok((4096, 0, 4096)));
    assert_eq!(read([1, 0, 0, 0, 7, 7, 0, 0]), Ok((512, 3584, 512)));
    for [first, last] in [[1, 0], [0, 8], [0, 255], [255, 255], [8, 8]] {
        assert_eq!(read([1, 0, 0, 0, first, last, 0, 0]), Err(Refusal::BadLength));
    }
}

proptest! {
    #[test]
    fn any_slot_is_a_request_or_refused(words in prop::collection::vec(any::<u32>(), LEN_64 / 4)) {
        for (layout, len) in LAYOUTS {
            let request = parse(layout, &words[..len / 4]);
            prop_assert!(request.what.pages() <= u32::from(MAX_INDIRECT_SEGMENTS));
            let bytes = slot_segments(layout, &words[..len / 4]);
            let mut list = Vec::new();
            if let Ok(sum) = read_segments(&bytes, &mut list) {
                let sums: u32 = list.iter().map(|segment| u32::from(segment.len)).sum();
                prop_assert_eq!(sum, sums);
            }
            for segment in &list {
                prop_assert!(usize::from(segment.offset) + usize::from(segment.len) <= PAGE);
            }
        }
    }

    #[test]
    fn a_response_is_known_again_and_zero_behind(id: u64, operation: u8, status: i16) {
        for (layout, len) in LAYOUTS {
            let response: [u32; LEN_64 / 4] = response(layout, id, operation, status);
            prop_assert!(is_response(layout, &response));
            let bytes: Vec<u8> = response.iter().flat_map(|word| word.to_le_bytes()).collect();
            prop_assert_eq!(&bytes[..8], &id.to_le_bytes());
            prop_assert_eq!((bytes[8], bytes[9]), (operation, 0));
            prop_assert_eq!(&bytes[10..12], &status.to_le_bytes());
            let mark = layout.sector()..layout.sector() + 8;
            prop_assert!((12..len).all(|at| mark.contains(&at) || bytes[at] == 0));
        }
    }
}
