//! Offloads of packets that a guest sends.

use super::*;

fn judge(meta: Meta, frame: &[u8]) -> (Result<Offload, BadOffload>, Head) {
    let mut head = Head::from_frame(frame);
    let headers = frame::parse(head.as_slice()).unwrap();
    (offload(meta, &mut head, &headers, frame.len() as u32), head)
}

#[test]
fn a_blank_checksum_is_where_the_protocol_has_it() {
    let blank = Meta { csum_blank: true, gso: None };
    let csum = |meta, frame: &[u8]| judge(meta, frame).0.map(|offload| offload.csum);
    assert_eq!(csum(blank, &frame(false, 6, 10)), Ok(Some(PartialCsum { start: 34, offset: 16 })));
    assert_eq!(csum(blank, &frame(true, 17, 10)), Ok(Some(PartialCsum { start: 54, offset: 6 })));
    assert_eq!(csum(Meta::default(), &frame(true, 17, 10)), Ok(None));
    assert_eq!(csum(blank, &frame(false, 1, 10)), Err(BadOffload::CsumPlace));
    let mut fragment = frame(false, 6, 10);
    fragment[20] = 0x20;
    assert_eq!(csum(blank, &fragment), Err(BadOffload::Fragment));
}

#[test]
fn segmentation_matches_the_frame() {
    let gso = |kind, size| Meta { csum_blank: true, gso: Some((kind, size)) };
    let of = |meta, frame: &[u8]| judge(meta, frame).0.map(|offload| offload.gso);
    let expected = Some(Gso { kind: GsoKind::TcpV4, size: 100, ecn: false });
    assert_eq!(of(gso(1, 100), &frame(false, 6, 300)), Ok(expected));
    assert_eq!(of(gso(2, 100), &frame(true, 6, 300)).unwrap().unwrap().kind, GsoKind::TcpV6);
    assert_eq!(of(gso(1, 300), &frame(false, 6, 300)), Ok(None), "one segment is enough");
    assert_eq!(of(gso(2, 100), &frame(false, 6, 300)), Err(BadOffload::GsoProtocol));
    assert_eq!(of(gso(1, 100), &frame(false, 17, 300)), Err(BadOffload::GsoProtocol));
}

#[test]
fn segmentation_without_a_blank_checksum_gets_one() {
    for (v6, kind) in [(false, 1), (true, 2)] {
        let bytes = frame(v6, 6, 500);
        let meta = Meta { csum_blank: false, gso: Some((kind, 100)) };
        let (judged, head) = judge(meta, &bytes);
        let csum = judged.unwrap().csum.unwrap();
        let at = usize::from(csum.start + csum.offset);
        let field = u16::from_be_bytes([head.as_slice()[at], head.as_slice()[at + 1]]);
        // Finished over the whole frame, it verifies.
        let mut whole = bytes.clone();
        whole[at..at + 2].copy_from_slice(&field.to_be_bytes());
        let sum = Sum::of(&whole[usize::from(csum.start)..]).checksum();
        whole[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let headers = frame::parse(&bytes).unwrap();
        let mut check = Sum::of(&whole[usize::from(csum.start)..]);
        let mut pseudo = Sum::new();
        pseudo.add_u16(pseudo_sum(&bytes, &headers, bytes.len() as u32).unwrap());
        check.append(pseudo);
        assert_eq!(check.fold(), 0xffff);
    }
}
