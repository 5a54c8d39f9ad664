//! A frame's first bytes and its offload header, and all that is done with them.

use frame::{
    Gso, GsoKind, HEAD_LEN, Head, Headers, Mac, Offload, Owner, Segmenter, Sum, TagEdit, VNET_LEN,
    answer, complete_csum, flow_hash, owned, parse, requested, vnet,
};

use crate::input::Input;

/// Takes `data` for a frame.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut net = [0; VNET_LEN];
    let bytes = input.take(VNET_LEN);
    net[..bytes.len()].copy_from_slice(bytes);
    let (more, edit) = (u32::from(input.u16()), edit(&mut input));
    let head = Head::from_frame(input.take(HEAD_LEN));
    let len = head.len() as u32 + if head.len() == HEAD_LEN { more } else { 0 };
    let Some(headers) = parse(head.as_slice()) else {
        assert!(head.len() < 14);
        return;
    };
    check(&headers, &head);
    answered(&head, &headers);
    flow_hash(&headers, head.as_slice());
    let _ = vnet::decode_legacy(net.first_chunk().expect("ten bytes"), &headers, len);
    let offload = vnet::decode(&net, &headers, len).unwrap_or_default();
    let again = vnet::decode(&vnet::encode(&offload, headers.end.into()), &headers, len);
    assert_eq!(again, Ok(Offload { valid: false, ..offload }));
    edited(head, headers, offload, len, edit);
    guessed(&head, &headers, len, &mut input);
}

fn edit(input: &mut Input<'_>) -> TagEdit {
    match input.u8() % 4 {
        0 => TagEdit::Keep,
        1 => TagEdit::Pop,
        2 => TagEdit::Push(input.u16()),
        _ => TagEdit::Replace(input.u16()),
    }
}

fn check(headers: &Headers, head: &Head) {
    assert!(headers.l3_at <= headers.l4_at && headers.l4_at <= headers.end);
    assert!(usize::from(headers.end) <= head.len(), "{headers:?}");
    let address = owned(head.as_slice(), headers);
    assert!(address.is_none_or(|it| !it.is_unspecified() && !it.is_multicast()), "{address:?}");
}

/// An answer is the owner's, and asks for nothing itself.
fn answered(head: &Head, headers: &Headers) {
    let (mut answered, owner) = (*head, Owner::host(Mac([2, 0, 0, 0, 0, 7])));
    if !answer(&mut answered, headers, owner) {
        assert_eq!(answered.as_slice(), head.as_slice());
        return;
    }
    let headers = parse(answered.as_slice()).expect("an Ethernet header");
    assert_eq!(headers.src, owner.mac);
    assert_eq!(requested(answered.as_slice(), &headers), None);
}

/// Edits on the way to a receiver that wants another tag, or takes no offloads.
fn edited(mut head: Head, mut headers: Headers, mut offload: Offload, len: u32, edit: TagEdit) {
    let before = head.len();
    if edit.apply(&mut head, &mut headers, &mut offload).is_err() {
        return;
    }
    check(&headers, &head);
    let len = len + head.len() as u32 - before as u32;
    flow_hash(&headers, head.as_slice());
    if let Some(gso) = offload.gso {
        segmented(&head, &headers, gso, len);
    }
    if let Some(csum) = offload.csum {
        let _ = complete_csum(head.as_mut_slice(), &headers, csum, Sum::of(&[1, 2, 3]));
    }
}

/// Cuts the frame whatever its offload header said.
fn guessed(head: &Head, headers: &Headers, len: u32, input: &mut Input<'_>) {
    let kind = [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::UdpV4, GsoKind::UdpV6]
        [usize::from(input.u8() % 4)];
    segmented(head, headers, Gso { kind, size: input.u16(), ecn: false }, len);
}

/// Segments are the whole payload, in order, each with all headers.
fn segmented(head: &Head, headers: &Headers, gso: Gso, len: u32) {
    let Ok(segments) = Segmenter::new(head.as_slice(), headers, gso, len) else { return };
    let (mut next, mut count) = (u32::from(headers.end), 0);
    for mut segment in segments {
        assert_eq!((segment.from, segment.headers_len), (next, headers.end));
        assert!((1..=u32::from(gso.size)).contains(&segment.len));
        next += segment.len;
        count += 1;
        if count % 2 == 0 {
            let csum = segment.leave_partial();
            assert!(
                u32::from(csum.start) + u32::from(csum.offset) + 2
                    <= u32::from(segment.headers_len)
            );
        } else {
            segment.finish(Sum::of(&[count as u8]));
        }
    }
    assert!(next == len && count >= 1);
}
