mod layout;
mod offloads;

use proptest::prelude::*;

use frame::{BadOffload, Gso, GsoKind, Head, Mac, Offload, PartialCsum, Sum};
use ring::grant::PAGE;

use super::offload::pseudo_sum;
use super::sizes::PULLED;
use super::tx::{EXTRAS, response, response_status};
use super::*;
use crate::netif::fault::Fault;

const MORE: u16 = flag::TX_MORE_DATA;
const EXTRA: u16 = flag::TX_EXTRA_INFO;

fn data(reference: u32, offset: u16, size: u16, id: u16, flags: u16) -> TxSlot {
    [reference, u32::from(offset) | u32::from(flags) << 16, u32::from(id) | u32::from(size) << 16]
}

fn info(kind: u8, more: bool, bytes: [u8; 6]) -> TxSlot {
    let [a, b, c, d, e, f] = bytes;
    [u32::from_le_bytes([kind, u8::from(more), a, b]), u32::from_le_bytes([c, d, e, f]), 0]
}

fn gso(kind: u8, size: u16, more: bool) -> TxSlot {
    let [low, high] = size.to_le_bytes();
    info(extra::GSO, more, [low, high, kind, 0, 0, 0])
}

#[derive(Debug, PartialEq, Eq)]
struct Read {
    packet: Packet,
    pieces: Vec<Piece>,
    /// Number and outcome of each response.
    responses: Vec<(u16, i16)>,
}

fn read(slots: &[TxSlot]) -> Result<Read, Fault> {
    let (mut pieces, mut responses) = (Vec::new(), Vec::new());
    // Each is copied once, so that it can't change between two looks.
    let looks = std::cell::Cell::new(0);
    let once = |n: u32| {
        assert_eq!(looks.replace(n + 1), n);
        slots[n as usize]
    };
    let packet = next_packet(slots.len() as u32, once, &mut pieces, &mut responses)?;
    assert_eq!(responses.len(), packet.slots as usize);
    // The number is meaningful only in slots of data.
    let of = |slot: &TxSlot| {
        (
            if response_status(*slot) == rsp::NULL { 0 } else { slot[0] as u16 },
            response_status(*slot),
        )
    };
    let responses = responses.iter().map(of).collect();
    Ok(Read { packet, pieces, responses })
}

fn piece(reference: u32, offset: u16, len: u16) -> Piece {
    Piece { reference, offset, len }
}

/// An Ethernet, IP and TCP (or UDP) header with `payload` zero bytes behind it.
fn frame(v6: bool, proto: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 12];
    let l4 = if proto == 6 { 20 } else { 8 };
    let len = (l4 + payload) as u16;
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, (len >> 8) as u8, len as u8, proto, 64]);
        frame.extend([0xfd; 16]);
        frame.extend([0xfe; 16]);
    } else {
        let total = len + 20;
        frame.extend([8, 0, 0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0, 0, 64, proto, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let at = frame.len();
    frame.resize(at + l4 + payload, 0);
    if proto == 6 {
        frame[at + 12] = 0x50;
    } else {
        frame[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
    }
    frame
}

fn layout(len: u32, offload: Offload) -> Layout {
    let sizes = Sizes::of(128, len, std::iter::empty);
    Layout::of(sizes, &offload, || frame::parse(&frame(false, 6, 0))).unwrap()
}

#[test]
fn one_slot_is_a_frame() {
    let got = read(&[data(9, 100, 60, 5, flag::TX_CSUM_BLANK), data(1, 0, 60, 6, 0)]).unwrap();
    assert_eq!(
        got.packet,
        Packet { slots: 1, what: What::Frame(Meta { csum_blank: true, gso: None }) }
    );
    assert_eq!((got.pieces, got.responses), (vec![piece(9, 100, 60)], vec![(5, 0)]));
}

#[test]
fn the_first_slot_has_the_length_of_the_whole() {
    let slots = [data(1, 4000, 5000, 1, MORE), data(2, 0, 4096, 2, MORE), data(3, 96, 808, 3, 0)];
    let got = read(&slots).unwrap();
    assert_eq!(got.packet.slots, 3);
    assert_eq!(got.pieces, [piece(1, 4000, 96), piece(2, 0, 4096), piece(3, 96, 808)]);
}

#[test]
fn extras_follow_the_first_slot_and_are_answered_as_such() {
    let slots = [
        data(1, 0, 4000, 1, EXTRA | MORE | flag::TX_CSUM_BLANK),
        info(extra::HASH, true, [0; 6]),
        gso(2, 1440, false),
        data(2, 0, 3000, 2, 0),
    ];
    let got = read(&slots).unwrap();
    let meta = Meta { csum_blank: true, gso: Some((2, 1440)) };
    assert_eq!(got.packet, Packet { slots: 4, what: What::Frame(meta) });
    assert_eq!(got.pieces, [piece(1, 0, 1000), piece(2, 0, 3000)]);
    assert_eq!(got.responses, [(1, 0), (0, 1), (0, 1), (2, 0)]);
}

#[test]
fn groups_are_joined_and_left_without_a_frame() {
    for (kind, join) in [(extra::MCAST_ADD, true), (extra::MCAST_DEL, false)] {
        let got =
            read(&[data(0, 0, 0, 8, EXTRA), info(kind, false, [1, 0, 0x5e, 1, 2, 3])]).unwrap();
        let group = Mac([1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(got.packet, Packet { slots: 2, what: What::Group { join, group } });
        assert!(got.pieces.is_empty());
        assert_eq!(got.responses, [(8, 0), (0, 1)]);
    }
}

#[test]
fn nineteen_slots_are_a_frame_twenty_one_a_drop_and_more_a_fault() {
    let frame = |n: u16| -> Vec<TxSlot> {
        (0..n)
            .map(|i| {
                data(
                    i.into(),
                    0,
                    if i == 0 { n * 100 } else { 100 },
                    i,
                    if i + 1 < n { MORE } else { 0 },
                )
            })
            .collect()
    };
    for n in [18, 19] {
        assert_eq!(read(&frame(n)).unwrap().pieces.len(), usize::from(n));
    }
    for n in [20, 21] {
        let got = read(&frame(n)).unwrap();
        assert_eq!(got.packet, Packet { slots: n.into(), what: What::TooLong });
        assert!(got.pieces.is_empty());
        assert!(got.responses.iter().all(|(_, status)| *status == -1));
    }
    assert_eq!(read(&frame(22)), Err(Fault::TooManySlots));
}

#[test]
fn parts_larger_than_the_whole_are_a_drop() {
    let got = read(&[data(1, 0, 100, 1, MORE), data(2, 0, 101, 2, 0)]).unwrap();
    assert_eq!(got.packet, Packet { slots: 2, what: What::Overflown });
}

#[test]
fn each_fault_has_its_name() {
    assert_eq!(read(&[data(1, 4000, 97, 1, 0)]), Err(Fault::CrossesPage));
    assert_eq!(read(&[data(1, 0, 5000, 1, 0)]), Err(Fault::CrossesPage));
    assert_eq!(read(&[data(1, u16::MAX, u16::MAX, 1, 0)]), Err(Fault::CrossesPage));
    assert_eq!(read(&[data(1, 0, 5000, 1, MORE), data(2, 4095, 2, 2, 0)]), Err(Fault::CrossesPage));
    assert_eq!(read(&[data(1, 0, 5000, 1, MORE), data(2, 0, 10, 2, MORE)]), Err(Fault::Torn));
    assert_eq!(read(&[data(1, 0, 60, 1, EXTRA)]), Err(Fault::Torn));
    assert_eq!(read(&[]), Err(Fault::Torn));
    let extras = |kind| [data(1, 0, 60, 1, EXTRA), info(kind, false, [0; 6])];
    for kind in [0, 5, 255] {
        assert_eq!(read(&extras(kind)), Err(Fault::ExtraType));
    }
    let mut endless = vec![info(extra::HASH, true, [0; 6]); 255];
    endless.insert(0, data(1, 0, 60, 1, EXTRA));
    assert_eq!(read(&endless), Err(Fault::EndlessExtras));
    for bad in [gso(0, 1440, false), gso(3, 1440, false), gso(1, 0, false)] {
        assert_eq!(read(&[data(1, 0, 60, 1, EXTRA), bad]), Err(Fault::BadGso));
    }
}

/// A backend that stopped before it published responses leaves requests that name no valid grant,
/// and are otherwise unchanged.
#[test]
fn responses_that_were_not_published_read_as_the_same_packet() {
    let slots = [
        data(1000, 0, 4000, 1, EXTRA | MORE | flag::TX_CSUM_BLANK),
        info(extra::HASH, true, [7; 6]),
        gso(2, 1440, false),
        data(2000, 0, 3000, 2, 0),
    ];
    let (mut pieces, mut responses) = (Vec::new(), Vec::new());
    let first = next_packet(4, |n| slots[n as usize], &mut pieces, &mut responses).unwrap();
    assert!(!is_answered(slots[0]));
    for written in 1..=4 {
        let mut left = slots;
        left[..written].copy_from_slice(&responses[..written]);
        let again = read(&left).unwrap();
        assert_eq!(again.packet.slots, first.slots);
        assert_eq!(again.responses, [(1, 0), (0, 1), (0, 1), (2, 0)]);
        assert!(is_answered(left[0]));
    }
}

proptest! {
    #[test]
    fn nonsense_ends_in_a_packet_or_a_fault(slots in prop::collection::vec(any::<[u32; 3]>(), 0..40)) {
        if let Ok(got) = read(&slots) {
            prop_assert!((1..=slots.len() as u32).contains(&got.packet.slots));
            prop_assert!(got.pieces.iter().all(|piece| usize::from(piece.offset) + usize::from(piece.len) <= PAGE));
        }
    }

    /// Plausible slots in any order.
    #[test]
    fn plausible_slots_are_bounded(
        slots in prop::collection::vec(
            prop_oneof![
                (0u32..5, 0u16..4096, 0u16..5000, any::<u16>(), 0u16..16).prop_map(|(r, o, s, i, f)| data(r, o, s, i, f)),
                (0u8..6, any::<bool>(), any::<[u8; 6]>()).prop_map(|(kind, more, bytes)| info(kind, more, bytes)),
            ],
            1..40,
        )
    ) {
        if let Ok(got) = read(&slots) {
            prop_assert!(got.packet.slots <= FATAL_SLOTS + EXTRAS);
            let frame = matches!(got.packet.what, What::Frame(_));
            prop_assert_eq!(frame, !got.pieces.is_empty());
            if frame {
                let sum: u32 = got.pieces.iter().map(|piece| u32::from(piece.len)).sum();
                prop_assert_eq!(sum, slots[0][2] >> 16);
            }
        }
    }
}

/// The layouts of xen/include/public/io/netif.h, as bytes that a C compiler gives its structures
/// (x86, little endian): each field has a value of its own, so that a field in the wrong place
/// shows.
mod layouts {
    use super::*;

    fn words<const N: usize>(bytes: [u8; 12]) -> [u32; N] {
        std::array::from_fn(|n| u32::from_le_bytes(bytes[4 * n..4 * n + 4].try_into().unwrap()))
    }

    /// `netif_tx_request { gref = 0x04030201, offset = 0x0605, flags = NETTXF_csum_blank, id =
    /// 0x0a09, size = 0x010b }`
    #[test]
    fn tx_request_and_response() {
        let request = words([1, 2, 3, 4, 5, 6, 1, 0, 9, 10, 11, 1]);
        let got = read(&[request]).unwrap();
        assert_eq!(got.pieces, [piece(0x0403_0201, 0x0605, 0x010b)]);
        assert_eq!(got.packet.what, What::Frame(Meta { csum_blank: true, gso: None }));
        // `netif_tx_response { id = 0x0a09, status = NETIF_RSP_ERROR }`
        assert_eq!(response(request, rsp::ERROR)[0].to_le_bytes(), [9, 10, 0xff, 0xff]);
        assert_eq!([rsp::OKAY, rsp::ERROR, rsp::NULL], [0, -1, 1]);
    }

    /// `netif_extra_info { type = GSO, flags = 0, u.gso = { size = 0x0403, type = TCPV6, pad = 0,
    /// features = 0 } }`, and `{ type = MCAST_ADD, u.mcast.addr = 01:00:5e:04:05:06 }`
    #[test]
    fn extra_info() {
        let first = data(1, 0, 2000, 1, EXTRA);
        let gso = read(&[first, words([1, 0, 3, 4, 2, 0, 0, 0, 9, 9, 9, 9])]).unwrap();
        assert_eq!(
            gso.packet.what,
            What::Frame(Meta { csum_blank: false, gso: Some((2, 0x0403)) })
        );
        let join = read(&[first, words([2, 0, 1, 0, 0x5e, 4, 5, 6, 9, 9, 9, 9])]).unwrap();
        assert_eq!(join.packet.what, What::Group { join: true, group: Mac([1, 0, 0x5e, 4, 5, 6]) });
        let types = [extra::GSO, extra::MCAST_ADD, extra::MCAST_DEL, extra::HASH];
        assert_eq!((types, extra::MORE), ([1, 2, 3, 4], 1));
    }

    /// `netif_rx_request { id = 0x0201, pad, gref = 0x08070605 }`, then `netif_rx_response { id =
    /// 0x0201, offset = 0, flags = NETRXF_*, status = 0x1000 }`
    #[test]
    fn rx_request_and_response() {
        let request: RxSlot = words([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
        assert_eq!(rx_reference(request), 0x0807_0605);
        let csum = Some(PartialCsum { start: 34, offset: 16 });
        let blank = layout(4097, Offload { csum, ..Offload::default() }).response(0, request);
        // NETRXF_data_validated, NETRXF_csum_blank, NETRXF_more_data: bits 0, 1 and 2.
        assert_eq!(blank.map(u32::to_le_bytes).concat(), [1, 2, 0, 0, 7, 0, 0, 16]);
        let gso = Some(Gso { kind: GsoKind::TcpV4, size: 0x0403, ecn: false });
        let cut = layout(4097, Offload { csum, gso, valid: false });
        // NETRXF_extra_info: bit 3; then the extra info, in the place of a response.
        assert_eq!(cut.response(0, request)[1].to_le_bytes(), [15, 0, 0, 16]);
        assert_eq!(
            cut.response(1, request).map(u32::to_le_bytes).concat(),
            [1, 0, 3, 4, 1, 0, 0, 0]
        );
    }

    /// `NETTXF_` and `NETRXF_`, as they are defined there.
    #[test]
    fn flags() {
        assert_eq!(
            [flag::TX_CSUM_BLANK, flag::TX_MORE_DATA, flag::TX_EXTRA_INFO],
            [1 << 0, 1 << 2, 1 << 3]
        );
        let rx =
            [flag::RX_DATA_VALIDATED, flag::RX_CSUM_BLANK, flag::RX_MORE_DATA, flag::RX_EXTRA_INFO];
        assert_eq!(rx, [1 << 0, 1 << 1, 1 << 2, 1 << 3]);
    }
}
