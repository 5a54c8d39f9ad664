//! Slots of a vbd's ring that say anything.

use ring::grant::PAGE;
use xen::blkif::layout::Layout;
use xen::blkif::request::{What, is_response, parse, read_segments, response, slot_segments};

use crate::input::Input;

/// Reads `data` as a slot, and what follows as a list of segments.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let layout = if input.u8() & 1 == 0 { Layout::Bits64 } else { Layout::Bits32 };
    let mut slot: [u32; 28] = std::array::from_fn(|_| input.u32());
    if input.u8() < 200 {
        slot[0] = slot[0] & !0xff | u32::from(input.u8() % 7);
    }
    let request = parse(layout, &slot);
    let mut list = Vec::new();
    let segments = match request.what {
        What::Data { segments, list: Some(_), .. } => {
            read_segments(input.take(usize::from(segments) * 8), &mut list)
        }
        What::Data { segments, list: None, .. } => {
            let bytes = slot_segments(layout, &slot);
            read_segments(&bytes[..usize::from(segments) * 8], &mut list)
        }
        _ => Ok(0),
    };
    assert!(list.len() <= request.what.pages() as usize);
    for segment in &list {
        assert!(usize::from(segment.offset) + usize::from(segment.len) <= PAGE && segment.len > 0);
    }
    if let Ok(bytes) = segments {
        assert!(bytes as usize <= list.len() * PAGE);
    }
    let answer: [u32; 28] = response(layout, request.id, request.operation, -1);
    assert!(is_response(layout, &answer));
}
