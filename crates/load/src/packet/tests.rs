use frame::checksum::Sum;

use super::headers::ip;
use super::*;

fn shape(len: u32, mss: Option<u16>, verify: Verify) -> Shape {
    Shape::new(Ends { from: 0, to: 1 }, len, mss, verify, 99)
}

/// The frame as the generator writes it, and its base.
fn build(shape: &Shape, tag: Tag) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; shape.len() as usize];
    bytes[..shape.headers().len()].copy_from_slice(shape.headers());
    let base = shape.stamp(tag, |at, piece| bytes[at..at + piece.len()].copy_from_slice(piece));
    for (at, len) in shape.words() {
        bytes[at..at + len].copy_from_slice(&shape.word(base, at).to_le_bytes()[..len]);
    }
    (bytes, base)
}

fn check(shape: &Shape, bytes: &[u8]) -> Result<Tag, Fault> {
    let mut head = [0; HEAD_MAX];
    head[..shape.head_len()].copy_from_slice(&bytes[..shape.head_len()]);
    let (tag, base) = shape.open(&head)?;
    for (at, len) in shape.words() {
        if bytes[at..at + len] != shape.word(base, at).to_le_bytes()[..len] {
            return Err(Fault::Payload(at));
        }
    }
    Ok(tag)
}

const TAG: Tag = Tag { flow: 7, seq: 1234, time: 0x1_2345_6789 };

#[test]
fn a_frame_opens_to_what_was_stamped() {
    for (len, mss) in [
        (64, None),
        (65, None),
        (1514, None),
        (76, Some(1448)),
        (65536, Some(1448)),
        (65549, Some(536)),
    ] {
        for verify in [Verify::Sampled, Verify::Full] {
            let shape = shape(len, mss, verify);
            let (bytes, _) = build(&shape, TAG);
            assert_eq!(check(&shape, &bytes), Ok(TAG), "{len} {verify:?}");
        }
    }
}

#[test]
fn every_byte_of_a_fully_verified_frame_matters() {
    for (len, mss) in [(64, None), (71, None), (200, None), (90, Some(1448))] {
        let shape = shape(len, mss, Verify::Full);
        let (bytes, _) = build(&shape, TAG);
        for at in 0..len as usize {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(check(&shape, &changed).is_err(), "byte {at} of {len}");
        }
    }
}

#[test]
fn sources_follow_flows_or_frames_and_are_checked() {
    let next = Tag { seq: TAG.seq + 1, ..TAG };
    let other = Tag { flow: TAG.flow + 1, ..TAG };
    for (sources, frames, flows) in
        [(Sources::Own, false, false), (Sources::Flow, false, true), (Sources::Frame, true, true)]
    {
        let shape = shape(64, None, Verify::Full).with_sources(sources);
        let source = |tag| build(&shape, tag).0[SOURCE].to_vec();
        assert_eq!(
            (source(TAG) != source(next), source(TAG) != source(other)),
            (frames, flows),
            "{sources:?}"
        );
        let (mut bytes, _) = build(&shape, TAG);
        assert_eq!(check(&shape, &bytes), Ok(TAG));
        assert!(!is_multicast(&source(TAG)));
        bytes[9] ^= 1;
        assert_eq!(check(&shape, &bytes), Err(Fault::Headers(9)));
    }
}

#[test]
fn other_lengths_runs_and_directions_do_not_pass() {
    let sent = shape(128, None, Verify::Sampled);
    let (bytes, _) = build(&sent, TAG);
    let other_run = Shape::new(Ends { from: 0, to: 1 }, 128, None, Verify::Sampled, 98);
    assert_eq!(check(&other_run, &bytes), Err(Fault::Tag));
    let back = Shape::new(Ends { from: 1, to: 0 }, 128, None, Verify::Sampled, 99);
    assert!(check(&back, &bytes).is_err());
    let shorter = shape(127, None, Verify::Sampled);
    assert!(check(&shorter, &bytes[..127]).is_err());
}

#[test]
fn stale_payload_does_not_pass() {
    let shape = shape(4096, Some(1448), Verify::Sampled);
    let (old, _) = build(&shape, Tag { seq: 1233, ..TAG });
    let (new, _) = build(&shape, TAG);
    for cut in [100, 1000, 3000, 4095] {
        let torn: Vec<u8> = [&new[..cut], &old[cut..]].concat();
        assert!(matches!(check(&shape, &torn), Err(Fault::Payload(_))), "{cut}");
    }
}

#[test]
fn the_frame_crate_reads_the_headers_alike() {
    let shape = shape(65536, Some(1448), Verify::Sampled);
    let (bytes, _) = build(&shape, TAG);
    let headers = frame::view::parse(&bytes[..128]).unwrap();
    let offload = frame::vnet::decode(shape.vnet(), &headers, shape.len()).unwrap();
    assert_eq!(offload.gso.map(|gso| gso.size), Some(1448));
    assert_eq!(offload.csum.map(|csum| (csum.start, csum.offset)), Some((34, 16)));
    assert_eq!(Sum::of(&bytes[14..34]).checksum(), 0, "the IPv4 header checks");
}

#[test]
fn a_pseudo_header_may_lack_its_length_where_it_is_segmented() {
    for (len, passes) in [(65536, true), (1000, false)] {
        let shape = shape(len, Some(1448), Verify::Sampled);
        let (mut bytes, _) = build(&shape, TAG);
        let sum = pseudo_sum([&ip(0), &ip(1)], 0);
        assert_ne!(bytes[50..52], sum);
        bytes[50..52].copy_from_slice(&sum);
        assert_eq!(check(&shape, &bytes).is_ok(), passes, "{len}");
        bytes[51] ^= 1;
        assert_eq!(check(&shape, &bytes), Err(Fault::Headers(if passes { 51 } else { 50 })));
    }
}

#[test]
fn vnet_headers_must_say_what_was_sent() {
    let plain = shape(64, None, Verify::Sampled);
    assert_eq!(plain.check_vnet(&[0; 12]), Ok(()));
    assert_eq!(plain.check_vnet(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Ok(()));
    assert_eq!(plain.check_vnet(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Fault::Vnet(1)));
    let tso = shape(65536, Some(1448), Verify::Sampled);
    let mut vnet = *tso.vnet();
    vnet[2] = 200;
    assert_eq!(tso.check_vnet(&vnet), Ok(()), "the header length is a hint");
    vnet[4] ^= 1;
    assert_eq!(tso.check_vnet(&vnet), Err(Fault::Vnet(4)));
    assert_eq!(tso.check_vnet(&[0; 12]), Err(Fault::Vnet(0)));
}
