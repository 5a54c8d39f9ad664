//! Two frames that came side by side, taken for segments of a stream.

use frame::{Coalescer, Gso, HEAD_LEN, Headers, L3, L4, Segmenter, Sum, parse};

use crate::input::Input;

/// Takes `data` for a frame, and for the changes that make the next frame of it. Checksums are made
/// right: no input would have right ones by chance.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (first_len, changes) = (usize::from(input.u8()), input.u8() % 8);
    let mut first = input.take(first_len).to_vec();
    let mut second = first.clone();
    for _ in 0..changes {
        let (at, value) = (usize::from(input.u8()), input.u8());
        if let Some(byte) = second.get_mut(at) {
            *byte = value;
        }
    }
    second.truncate(first_len.saturating_sub(usize::from(input.u8())).max(1));
    let frames = [&mut first, &mut second];
    frames.into_iter().for_each(|frame| _ = complete(frame));
    let Some(mut coalescer) = Coalescer::begin(&first) else { return };
    if !coalescer.append(&second) {
        assert!(coalescer.finish().is_none());
        return;
    }
    let headers_len = coalescer.headers_len();
    let (head, offload) = coalescer.finish().expect("two segments");
    let payload = |frame: &[u8]| frame[headers_len..].to_vec();
    let whole = [head.to_vec(), payload(&first), payload(&second)].concat();
    let cut = segments(&whole, offload.gso.expect("segments"));
    assert_eq!(cut.len(), 2);
    assert_eq!(cut[0], first);
    let mut last = cut[1].clone();
    let headers = view(&last).expect("an Ethernet header");
    let id = usize::from(headers.l3_at) + 4;
    // The identification of a packet that must not be fragmented says nothing.
    if headers.l3 == L3::V4 && last[id + 2] & 0x40 != 0 {
        last[id..id + 2].copy_from_slice(&second[id..id + 2]);
        complete(&mut last);
    }
    assert_eq!(last, second);
}

fn view(frame: &[u8]) -> Option<Headers> {
    parse(&frame[..frame.len().min(HEAD_LEN)])
}

/// Makes length and checksums right.
fn complete(frame: &mut [u8]) -> Option<()> {
    let headers = view(frame).filter(|headers| headers.l4 == L4::Tcp)?;
    let (l3, l4) = (usize::from(headers.l3_at), usize::from(headers.l4_at));
    let l4_len = (frame.len() - l4) as u32;
    let mut sum = Sum::new();
    if headers.l3 == L3::V4 {
        let len = (frame.len() - l3) as u16;
        frame[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
        frame[l3 + 10..l3 + 12].fill(0);
        let csum = Sum::of(&frame[l3..l4]).checksum();
        frame[l3 + 10..l3 + 12].copy_from_slice(&csum.to_be_bytes());
        let of = |at: usize| frame[l3 + at..].first_chunk().copied();
        sum.add_pseudo_v4(of(12)?, of(16)?, 6, l4_len);
    } else {
        let len = (frame.len() - l3 - 40) as u16;
        frame[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
        let of = |at: usize| frame[l3 + at..].first_chunk().copied();
        sum.add_pseudo_v6(of(8)?, of(24)?, 6, l4_len);
    }
    frame[l4 + 16..l4 + 18].fill(0);
    sum.add(&frame[l4..]);
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum.checksum().to_be_bytes());
    Some(())
}

/// What software segmentation makes of a frame.
fn segments(frame: &[u8], gso: Gso) -> Vec<Vec<u8>> {
    let head = &frame[..frame.len().min(HEAD_LEN)];
    let headers = parse(head).expect("an Ethernet header");
    let segmenter =
        Segmenter::new(head, &headers, gso, frame.len() as u32).expect("a frame to be segmented");
    let whole = |mut segment: frame::Segment| {
        let payload = &frame[segment.from as usize..(segment.from + segment.len) as usize];
        segment.finish(Sum::of(payload));
        [segment.header_bytes(), payload].concat()
    };
    segmenter.map(whole).collect()
}
