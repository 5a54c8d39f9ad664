//! The layout of frames in the slots of a receiver.

use super::*;

#[test]
fn a_frame_takes_a_slot_for_each_page() {
    let request = [0xffff_0000 | 77, 123];
    for (len, pages) in [(60, 1), (4096, 1), (4097, 2), (65_557, 17)] {
        let layout = layout(len, Offload::default());
        assert_eq!((layout.pages(), layout.slots()), (pages, pages));
        let mut total = 0;
        for n in 0..pages {
            let [head, tail] = layout.response(n, request);
            assert_eq!(
                (head, layout.size(n)),
                (77, Some((tail >> 16) as u16)),
                "the id, at offset zero"
            );
            assert_eq!(tail as u16, if n + 1 < pages { 4 } else { 0 });
            total += tail >> 16;
        }
        assert_eq!(total, len);
    }
}

fn sizes(head: u32, pieces: &[u32]) -> Option<Vec<u16>> {
    let sizes = Sizes::of(head, head + pieces.iter().sum::<u32>(), || pieces.iter().copied())?;
    Some(sizes.bytes[..sizes.count.into()].to_vec())
}

#[test]
fn pieces_stay_whole_as_far_as_there_are_slots() {
    assert_eq!(sizes(66, &[4000]), Some(vec![4066]), "it fits one page");
    assert_eq!(sizes(66, &[4031]), Some(vec![66, 4031]));
    assert_eq!(sizes(66, &[100, 4096, 2000, 2096, 1]), Some(vec![166, 4096, 4096, 1]));
    assert_eq!(sizes(60, &[5000]), Some(vec![4096, 964]), "a piece that no page holds");
}

#[test]
fn a_frame_of_too_many_pieces_fills_its_pages() {
    let frame = |first: u32, last: u32| {
        sizes(66, &[vec![first], vec![4000; 15], vec![last]].concat()).unwrap()
    };
    assert_eq!(frame(4096, 4000).len(), 18, "the first is pulled out");
    assert_eq!(frame(300, 4000).len(), 17);
    let full = sizes(66, &[vec![191], vec![4000; 16], vec![97]].concat()).unwrap();
    assert_eq!(
        (full[0], full[1], full.len()),
        (4096, 4096, 16),
        "too many that are not pulled out"
    );
    let many = sizes(66, &[2100; 30]).unwrap();
    assert_eq!((many[0], many.len()), (4096, 16));
    assert_eq!(sizes(66, &[4096; 18]), None, "longer than any frame");
}

proptest! {
    #[test]
    fn all_bytes_have_a_place(head in 1u32..128, pieces in prop::collection::vec(1u32..4097, 0..24)) {
        let len = head + pieces.iter().sum::<u32>();
        match sizes(head, &pieces) {
            None => prop_assert!(len > 18 * 4096),
            Some(sizes) => {
                prop_assert!(sizes.iter().all(|size| (1..=4096).contains(size)));
                prop_assert!(sizes.len() <= 17 || sizes.len() == 18 && sizes[0] <= PULLED || len > 17 * 4096);
                prop_assert_eq!(sizes.iter().map(|size| u32::from(*size)).sum::<u32>(), len);
                prop_assert!(u32::from(sizes[0]) >= head.min(len));
            }
        }
    }
}

#[test]
fn the_first_slot_has_the_offload() {
    let csum = Some(PartialCsum { start: 34, offset: 16 });
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448, ecn: true });
    let partial = layout(5000, Offload { csum, gso, valid: false });
    assert_eq!((partial.pages(), partial.slots()), (2, 3));
    assert_eq!([0, 1, 2].map(|n| partial.size(n)), [Some(4096), None, Some(904)]);
    assert_eq!(partial.response(0, [1, 0]), [1, 4096 << 16 | 0b1111]);
    assert_eq!(partial.response(1, [2, 0]), [1 | 1448 << 16, 1]);
    assert_eq!(partial.response(2, [3, 0]), [3, 904 << 16]);
    let valid = layout(60, Offload { valid: true, ..Offload::default() });
    assert_eq!(valid.response(0, [1, 0]), [1, 60 << 16 | 1]);
}

#[test]
fn what_slots_cannot_say_is_refused() {
    let at =
        |start, offset| Offload { csum: Some(PartialCsum { start, offset }), ..Offload::default() };
    let tcp = || frame::parse(&frame(false, 6, 0));
    assert!(Layout::of(Sizes::of(60, 60, std::iter::empty), &at(34, 16), tcp).is_some());
    assert!(Layout::of(Sizes::of(60, 60, std::iter::empty), &at(34, 6), tcp).is_none());
    assert!(
        Layout::of(Sizes::of(60, 60, std::iter::empty), &at(54, 16), tcp).is_none(),
        "in a tunnel"
    );
    let gso = Some(Gso { kind: GsoKind::UdpV4, size: 1, ecn: false });
    assert!(
        Layout::of(
            Sizes::of(60, 60, std::iter::empty),
            &Offload { gso, ..Offload::default() },
            tcp
        )
        .is_none()
    );
}

#[test]
fn a_spoiled_frame_is_an_error_of_the_same_shape() {
    let mut response = [5, 4096 << 16 | 0b1111];
    spoil(&mut response);
    assert_eq!(response, [5, 0xffff << 16 | 0b1111]);
}
