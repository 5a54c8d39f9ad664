use proptest::prelude::*;

use super::*;
use crate::DomId;
use crate::store::Access;

#[test]
fn a_message_is_a_header_and_bytes() {
    let bytes = message(Kind::Read, 7, 3, b"path\0").unwrap();
    let words: Vec<u32> =
        bytes[..16].chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [2, 7, 3, 5]);
    assert_eq!(&bytes[16..], b"path\0");
    assert!(message(Kind::Write, 1, 0, &[0; 4096]).is_some());
    assert!(message(Kind::Write, 1, 0, &[0; 4097]).is_none());
}

#[test]
fn a_stream_refuses_messages_that_are_too_long() {
    let mut stream = Stream::default();
    stream.extend(&Header { kind: 2, request: 1, transaction: 0, len: 4097 }.encode());
    assert!(matches!(stream.next(), Err(StoreError::Protocol(_))));
}

#[test]
fn lists_end_each_string_with_a_nul() {
    let of = |list: &[u8]| split(list).collect::<Vec<_>>();
    assert_eq!(of(b""), [""; 0]);
    assert_eq!(of(b"\0"), [""; 0]);
    assert_eq!(of(b"a\0"), ["a"]);
    assert_eq!(of(b"a\0bc\0"), ["a", "bc"]);
    assert_eq!(of(b"a\0bc"), ["a", "bc"]);
    assert_eq!(of(b"a\0\0b\0"), ["a", "", "b"]);
    assert_eq!(of(b"\xff\0"), ["\u{fffd}"]);
    assert_eq!(strings(&["a", "bc"]).unwrap(), b"a\0bc\0");
    assert_eq!(strings(&["a\0b"]), None);
}

#[test]
fn pieces_of_directories() {
    assert_eq!(directory_part(b"12\0a\0b\0"), Some((&b"12"[..], &b"a\0b\0"[..], false)));
    assert_eq!(directory_part(b"12\0a\0b\0\0"), Some((&b"12"[..], &b"a\0b"[..], true)));
    assert_eq!(directory_part(b"12\0\0"), Some((&b"12"[..], &b""[..], true)));
    assert_eq!(directory_part(b"12\0"), Some((&b"12"[..], &b""[..], true)));
    assert_eq!(directory_part(b"12"), None);
}

#[test]
fn permissions_are_letters_and_numbers() {
    let set = permissions(b"n0\0r12\0b65535\0w1\0").unwrap();
    let expected =
        [(0, Access::None), (12, Access::Read), (65535, Access::Both), (1, Access::Write)];
    assert_eq!(set, expected.map(|(domain, access)| Permission { domain: DomId(domain), access }));
    assert_eq!(permissions(b"x0\0"), None);
    assert_eq!(permissions(b"n65536\0"), None);
    assert_eq!(permissions(b"n\0"), None);
}

#[test]
fn errors_have_names() {
    assert!(error(b"ENOENT\0", "/a").is_not_found());
    assert_eq!(error(b"ENOENT", "/a").to_string(), "/a: no such node");
    assert!(matches!(error(b"EACCES\0", ""), StoreError::Denied { .. }));
    assert!(matches!(error(b"EAGAIN\0", ""), StoreError::Again));
    assert!(matches!(error(b"E2BIG\0", ""), StoreError::TooLong { .. }));
    assert!(matches!(error(b"ENOSPC\0", ""), StoreError::Quota { .. }));
    assert_eq!(error(b"EISDIR\0", "/a").to_string(), "/a: refused as EISDIR");
}

proptest! {
    #[test]
    fn headers_come_back(kind: u32, request: u32, transaction: u32, len: u32) {
        let header = Header { kind, request, transaction, len };
        prop_assert_eq!(Header::decode(&header.encode()), header);
    }

    /// The messages do not depend on how the stream is cut.
    #[test]
    fn streams_are_cut_into_messages(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6),
        cuts in prop::collection::vec(1..200usize, 1..40),
    ) {
        let sent: Vec<u8> = payloads.iter().zip(1..)
            .flat_map(|(payload, n)| message(Kind::Write, n, 0, payload).unwrap()).collect();
        let (mut stream, mut left, mut got) = (Stream::default(), &sent[..], Vec::new());
        for cut in cuts.iter().cycle() {
            let (now, later) = left.split_at((*cut).min(left.len()));
            stream.extend(now);
            left = later;
            while let Some((header, payload)) = stream.next().unwrap() {
                prop_assert_eq!(header.request as usize, got.len() + 1);
                got.push(payload);
            }
            if left.is_empty() {
                break;
            }
        }
        prop_assert_eq!(got, payloads);
    }

    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>) {
        let mut stream = Stream::default();
        stream.extend(&bytes);
        while let Ok(Some(_)) = stream.next() {}
        let _ = (directory_part(&bytes), permissions(&bytes), error(&bytes, ""), split(&bytes).count());
    }
}
