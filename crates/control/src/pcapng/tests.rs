use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// An independent reader: type and body of each block. Checks lengths and padding.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let len = word(4) as usize;
        assert!(len >= 12 && len == len.next_multiple_of(4), "{len}");
        assert_eq!(word(len - 4) as usize, len, "the length stands at both ends");
        blocks.push((word(0), bytes[8..len - 4].to_vec()));
        bytes = &bytes[len..];
    }
    blocks
}

/// Codes and values of options, up to the required end.
fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    loop {
        let code = u16::from_le_bytes([bytes[0], bytes[1]]);
        let len = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let end = 4 + len.next_multiple_of(4);
        assert!(bytes[4 + len..end].iter().all(|byte| *byte == 0), "padding is zero");
        if code == 0 {
            assert_eq!((len, bytes.len()), (0, 4), "nothing follows the end");
            return options;
        }
        options.push((code, bytes[4..4 + len].to_vec()));
        bytes = &bytes[end..];
    }
}

proptest! {
    #[test]
    fn what_is_written_can_be_read(
        names in vec("[a-z0-9/.-]{1,40}", 1..4),
        bytes in vec(any::<u8>(), 0..300),
        comments in vec("[ -~]{0,60}", 0..4),
        (time, longer, outbound) in (any::<u64>(), 0u32..70_000, any::<bool>()),
        counts in (any::<u64>(), any::<u64>(), any::<u64>()),
        cuts in vec(1usize..50, 1..100),
    ) {
        let mut file = Vec::new();
        section(&mut file, "ringmain");
        names.iter().for_each(|name| interface(&mut file, name, 262_144));
        let len = bytes.len() as u32 + longer;
        let interface = names.len() as u32 - 1;
        let (given, comments) = (&bytes[..], &comments[..]);
        packet(&mut file, &Packet { interface, time, outbound, len, bytes: given, comments });
        let (received, accepted, dropped) = counts;
        let counted = Statistics { interface, from: 5, to: time, received, accepted, dropped };
        statistics(&mut file, &Statistics { accepted: 1, ..counted });
        statistics(&mut file, &counted);

        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        let mut want = vec![SECTION_HEADER];
        want.extend(names.iter().map(|_| INTERFACE_DESCRIPTION));
        want.extend([ENHANCED_PACKET, INTERFACE_STATISTICS, INTERFACE_STATISTICS]);
        prop_assert_eq!(kinds, want);
        prop_assert_eq!(&blocks[0].1[..4], &[0x4d, 0x3c, 0x2b, 0x1a]);
        for (name, (_, body)) in names.iter().zip(&blocks[1..]) {
            let want = [(IF_NAME, name.as_bytes().to_vec()), (IF_TSRESOL, vec![9])];
            prop_assert_eq!(options(&body[8..]), want);
        }
        let body = &blocks[names.len() + 1].1;
        let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
        prop_assert_eq!(word(0), interface);
        prop_assert_eq!(u64::from(word(4)) << 32 | u64::from(word(8)), time);
        prop_assert_eq!((word(12) as usize, word(16)), (bytes.len(), len));
        prop_assert_eq!(&body[20..20 + bytes.len()], &bytes[..]);
        let found = options(&body[20 + bytes.len().next_multiple_of(4)..]);
        prop_assert_eq!(&found[0], &(EPB_FLAGS, vec![1 + u8::from(outbound), 0, 0, 0]));
        let texts: Vec<(u16, Vec<u8>)> =
            comments.iter().map(|text| (OPT_COMMENT, text.clone().into_bytes())).collect();
        prop_assert_eq!(&found[1..], &texts[..]);

        // The scan finds the last statistics for every split of the stream.
        let (mut scan, mut rest) = (StreamScan::default(), &file[..]);
        for cut in cuts.iter().cycle() {
            let (now, behind) = rest.split_at((*cut).min(rest.len()));
            scan.feed(now);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!((scan.packets(), scan.dropped()), (1, dropped));
    }

    #[test]
    fn a_scan_survives_any_bytes(bytes in vec(any::<u8>(), 0..2000)) {
        let mut scan = StreamScan::default();
        bytes.chunks(7).for_each(|chunk| scan.feed(chunk));
    }
}

#[test]
fn a_long_comment_is_cut_off() {
    let (mut file, comments) = (Vec::new(), [String::from_utf8(vec![b'x'; 70_000]).unwrap()]);
    let bytes = [0; 60];
    let frame = Packet {
        interface: 0,
        time: 0,
        outbound: true,
        len: 60,
        bytes: &bytes,
        comments: &comments,
    };
    packet(&mut file, &frame);
    let body = &blocks(&file)[0].1;
    assert_eq!(options(&body[80..])[1].1.len(), LONGEST_OPTION);
}
