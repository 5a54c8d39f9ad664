//! Slots of a Tx ring that say anything, and what frames make of an Rx ring.

use frame::Head;
use ring::grant::PAGE;
use xen::netif::slots::{self, FATAL_SLOTS, Layout, Sizes, TxSlot, What};

use crate::input::Input;

/// Reads `data` as a ring full of requests, and as a frame that the first of them describes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let ready = input.below(300);
    let words: Vec<TxSlot> = (0..ready.min(40)).map(|_| slot(&mut input)).collect();
    let at = |n: u32| words.get(n as usize).copied().unwrap_or_default();
    let (mut pieces, mut answers) = (Vec::new(), Vec::new());
    let Ok(packet) = slots::next_packet(ready, at, &mut pieces, &mut answers) else { return };
    assert!((1..=ready).contains(&packet.slots) && packet.slots <= FATAL_SLOTS + 4);
    assert_eq!(answers.len(), packet.slots as usize);
    assert!(pieces.iter().all(|piece| usize::from(piece.offset) + usize::from(piece.len) <= PAGE));
    // Responses that were never published read as the same packet.
    let again = |n: u32| answers.get(n as usize).copied().unwrap_or_else(|| at(n));
    let (mut more, mut same) = (Vec::new(), Vec::new());
    if let Ok(second) = slots::next_packet(ready, again, &mut more, &mut same) {
        assert_eq!(second.slots, packet.slots);
    }
    assert!(slots::is_answered(again(0)));
    let What::Frame(meta) = packet.what else { return };
    let len: u32 = pieces.iter().map(|piece| u32::from(piece.len)).sum();
    let mut head = Head::from_frame(input.take(128.min(len as usize)));
    let Some(headers) = frame::parse(head.as_slice()) else { return };
    let Ok(offload) = slots::offload(meta, &mut head, &headers, len) else { return };
    let mut private = head.len() as u32;
    let rest = || {
        // What lies behind the head, piece by piece.
        let left = pieces.iter().map(move |piece| {
            let out = private.min(piece.len.into());
            private -= out;
            u32::from(piece.len) - out
        });
        left.filter(|len| *len > 0)
    };
    let sizes = Sizes::of(head.len() as u32, len, rest);
    let Some(layout) = Layout::of(sizes, &offload, || frame::parse(head.as_slice())) else {
        return;
    };
    assert!(layout.slots() <= 19 && layout.pages() <= layout.slots());
    let sizes = (0..layout.slots())
        .filter(|n| layout.size(*n).is_some())
        .map(|n| layout.response(n, [7, 9])[1] >> 16);
    assert_eq!(sizes.sum::<u32>(), len);
}

/// Any words, or such as make sense.
fn slot(input: &mut Input<'_>) -> TxSlot {
    match input.u8() {
        0..64 => [input.u32(), input.u32(), input.u32()],
        choice => {
            let flags = u32::from(input.u8() & 15);
            let (offset, size) = (u32::from(input.u16() % 4200), u32::from(input.u16() % 5000));
            match choice & 3 {
                0 => [u32::from(choice >> 2 & 7) | flags << 8, input.u32(), 0],
                1 => [1 | flags << 8 | size << 16, u32::from(choice >> 6), 0],
                _ => [u32::from(choice), offset | flags << 16, size << 16],
            }
        }
    }
}
