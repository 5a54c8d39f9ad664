use frame::Offload;
use hypervisor::DomId;
use proptest::prelude::*;

use super::*;

fn at(reference: u32, offset: u16) -> Granted {
    Granted { domain: DomId(7), reference: GrantRef(reference), offset }
}

/// A slot with data: its bytes, the bytes that are there, and the reference and offset to fetch the
/// others from.
type Data = (u16, u16, Option<(u32, u16)>);

/// The data that a receiver reads from a frame's slots.
fn read(slots: &Slots<'_>) -> Vec<Data> {
    let all: Vec<RxSlot> =
        (0..slots.count()).map(|n| slots.response(n, [n, 0], |from| from.reference)).collect();
    let mut fetched = Vec::new();
    let mut n = 1;
    let mut more = all[0][1] as u16 & flag::RX_EXTRA_INFO != 0;
    while more {
        let [kind, flags, low, high] = all[n][0].to_le_bytes();
        if kind == extra::FETCH {
            fetched.push((all[n][1], u16::from_le_bytes([low, high])));
        }
        more = flags & extra::MORE != 0;
        n += 1;
    }
    let data: Vec<RxSlot> = [&all[..1], &all[n..]].concat();
    let mut fetched = fetched.into_iter();
    let count = data.len();
    let slot = |(i, [place, outcome]): (usize, RxSlot)| {
        assert_eq!(outcome as u16 & flag::RX_MORE_DATA != 0, i + 1 < count);
        let (size, there) = ((outcome >> 16) as u16, (place >> 16) as u16);
        (size, there, if there < size { Some(fetched.next().unwrap()) } else { None })
    };
    let read = data.into_iter().enumerate().map(slot).collect();
    assert_eq!(fetched.next(), None);
    read
}

#[test]
fn a_frame_that_fits_a_page_is_in_one() {
    let plan = FetchPlan::of(128, [(at(9, 128), 1386)].into_iter()).unwrap();
    let layout = Layout::of(plan.sizes(), &Offload::default(), || None).unwrap();
    let slots = Slots::of(&plan, &layout);
    assert_eq!(slots.count(), 2);
    assert_eq!(read(&slots), [(1514, 128, Some((9, 128)))]);
}

#[test]
fn each_page_has_bytes_of_one_piece() {
    let pieces = [(at(1, 128), 3968), (at(2, 0), 4096), (at(3, 0), 100), (at(4, 50), 4000)];
    let plan = FetchPlan::of(128, pieces.into_iter()).unwrap();
    let gso = frame::Gso { kind: frame::GsoKind::TcpV4, size: 1448, ecn: false };
    let layout =
        Layout::of(plan.sizes(), &Offload { gso: Some(gso), ..Offload::default() }, || None)
            .unwrap();
    let slots = Slots::of(&plan, &layout);
    assert_eq!(slots.count(), 4 + 4 + 1);
    let expected = [
        (4096, 128, Some((1, 128))),
        (4096, 0, Some((2, 0))),
        (100, 0, Some((3, 0))),
        (4000, 0, Some((4, 50))),
    ];
    assert_eq!(read(&slots), expected);
    assert_eq!(
        slots.response(1, [1, 0], |from| from.reference)[0].to_le_bytes()[..2],
        [extra::GSO, extra::MORE]
    );
}

proptest! {
    #[test]
    fn every_byte_is_fetched_once(head in 0u32..256, pieces in proptest::collection::vec((0u16..4096, 1u16..4096), 1..14)) {
        let pieces: Vec<(Granted, u16)> = (1..).zip(pieces)
            .map(|(reference, (offset, len))| (at(reference, offset), len.min(4096 - offset)))
            .collect();
        let Some(plan) = FetchPlan::of(head, pieces.iter().copied()) else { return Ok(()) };
        let layout = Layout::of(plan.sizes(), &Offload::default(), || None).unwrap();
        let slots = Slots::of(&plan, &layout);
        prop_assert!(slots.count() <= 2 * PAGES as u32);
        let mut got = Vec::new();
        for (n, (size, there, from)) in read(&slots).into_iter().enumerate() {
            let copied = if n == 0 { head as u16 } else { 0 };
            prop_assert!(usize::from(size) <= PAGE && there == copied);
            if let Some((reference, offset)) = from {
                got.extend((offset..offset + (size - there)).map(|byte| (reference, byte)));
            }
        }
        let all = pieces.iter().flat_map(|(at, len)| (at.offset..at.offset + len).map(|byte| (at.reference.0, byte)));
        prop_assert_eq!(got, all.collect::<Vec<_>>());
    }
}
