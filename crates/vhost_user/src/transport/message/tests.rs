use proptest::prelude::*;

use super::layout::{NEED_REPLY, REPLY};
use super::*;

fn header(code: u32, flags: u32, size: u32) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..4].copy_from_slice(&code.to_le_bytes());
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    bytes[8..].copy_from_slice(&size.to_le_bytes());
    bytes
}

fn parse(code: u32, payload: &[u8], fds: usize) -> Result<Request, BadMessage> {
    let header = Header::parse(&header(code, 1, payload.len() as u32))?;
    Request::parse(&header, payload, fds)
}

fn state(ring: u32, value: u32) -> Vec<u8> {
    [ring.to_le_bytes(), value.to_le_bytes()].concat()
}

fn table(count: u32, present: u64) -> Vec<u8> {
    let mut bytes = state(count, 0);
    for field in 0..present * 4 {
        bytes.extend_from_slice(&(field + 1).to_le_bytes());
    }
    bytes
}

#[test]
fn a_header_says_whether_a_reply_is_wanted() {
    let parsed = Header::parse(&header(3, 1 | NEED_REPLY, 0)).unwrap();
    assert_eq!(parsed, Header { code: 3, need_reply: true, size: 0 });
    assert_eq!(parsed.name(), "SET_OWNER");
}

#[test]
fn a_header_is_refused_by_name() {
    assert_eq!(Header::parse(&header(1, 2, 0)), Err(BadMessage::Version(2)));
    assert_eq!(Header::parse(&header(1, 1 | REPLY, 0)), Err(BadMessage::IsReply));
    let oversized = Header::parse(&header(5, 1, MAX_PAYLOAD as u32 + 1));
    assert_eq!(oversized, Err(BadMessage::Oversized { name: "SET_MEM_TABLE", size: 4097 }));
    assert!(Header::parse(&header(5, 1, u32::MAX)).is_err());
}

#[test]
fn numbers_and_rings_are_read() {
    let feature = 1u64 << 32 | 5;
    assert_eq!(parse(2, &feature.to_le_bytes(), 0), Ok(Request::SetFeatures(feature)));
    assert_eq!(parse(8, &state(3, 256), 0), Ok(Request::SetVringNum(3, 256)));
    assert_eq!(parse(10, &state(3, 0x8001_8001), 0), Ok(Request::SetVringBase(3, 0x8001_8001)));
    assert_eq!(parse(11, &state(7, 9), 0), Ok(Request::GetVringBase(7)));
    assert_eq!(parse(18, &state(7, 1), 0), Ok(Request::SetVringEnable(7, true)));
    assert_eq!(parse(12, &5u64.to_le_bytes(), 1), Ok(Request::SetVringKick(5, true)));
    assert_eq!(parse(13, &0x105u64.to_le_bytes(), 0), Ok(Request::SetVringCall(5, false)));
}

#[test]
fn ring_addresses_are_read_in_the_order_of_the_structure() {
    let mut bytes = state(2, 0);
    for field in [0x1000u64, 0x2000, 0x3000, 0x4000] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    let address = RingAddress { flags: 0, desc: 0x1000, used: 0x2000, avail: 0x3000, log: 0x4000 };
    assert_eq!(parse(9, &bytes, 0), Ok(Request::SetVringAddr(2, address)));
    assert_eq!(address.used_log(), None);
    let logged = RingAddress { flags: 1, log: 0x5000, ..address };
    assert_eq!(logged.used_log(), Some(0x5000));
    assert!(logged.is_same_place(&address));
    assert!(!logged.is_same_place(&RingAddress { desc: 0, ..address }));
}

#[test]
fn requests_of_a_migration_are_read() {
    let area = [8192u64.to_le_bytes(), 4096u64.to_le_bytes()].concat();
    let log = LogArea { len: 8192, offset: 4096 };
    assert_eq!(parse(6, &area, 1), Ok(Request::SetLogBase(log)));
    assert_eq!(parse(7, &[], 1), Ok(Request::SetLogFd));
    let mac = [0x52, 0x54, 0, 1, 2, 3];
    assert_eq!(parse(19, &[0x52, 0x54, 0, 1, 2, 3, 9, 9], 0), Ok(Request::SendRarp(mac)));
    let alone = BadMessage::Descriptors { name: "SET_LOG_BASE", fds: 0, expected: 1 };
    assert_eq!(parse(6, &area, 0), Err(alone));
}

#[test]
fn memory_regions_are_read() {
    let first = Region { guest_addr: 1, len: 2, user_addr: 3, offset: 4 };
    let second = Region { guest_addr: 5, len: 6, user_addr: 7, offset: 8 };
    assert_eq!(parse(5, &table(2, 2), 2), Ok(Request::SetMemTable(vec![first, second])));
    assert_eq!(parse(37, &table(0, 1), 1), Ok(Request::AddMemReg(first)));
    assert_eq!(parse(38, &table(0, 1), 0), Ok(Request::RemMemReg(first)));
    assert_eq!(parse(38, &table(0, 1), 1), Ok(Request::RemMemReg(first)));
}

#[test]
fn sizes_are_exact() {
    for (code, expected) in
        [(1, 0usize), (2, 8), (8, 8), (9, 40), (12, 8), (20, 8), (37, 40), (38, 40)]
    {
        for size in [expected + 1, expected + 8, expected.wrapping_sub(1)] {
            if size <= MAX_PAYLOAD {
                let bad = BadMessage::Size { name: name(code), size, expected };
                assert_eq!(parse(code, &vec![0; size], 0), Err(bad));
            }
        }
    }
}

#[test]
fn a_memory_table_is_as_long_as_it_says() {
    assert_eq!(parse(5, &table(0, 0), 0), Err(BadMessage::Regions(0)));
    assert_eq!(parse(5, &table(9, 9), 9), Err(BadMessage::Regions(9)));
    assert_eq!(parse(5, &table(u32::MAX, 1), 1), Err(BadMessage::Regions(u32::MAX)));
    let short = BadMessage::Size { name: "SET_MEM_TABLE", size: 40, expected: 72 };
    assert_eq!(parse(5, &table(2, 1), 2), Err(short));
    assert_eq!(
        parse(5, &[0; 7], 0),
        Err(BadMessage::Size { name: "SET_MEM_TABLE", size: 7, expected: 8 })
    );
}

#[test]
fn descriptors_are_counted() {
    let wrong = |name, fds, expected| Err(BadMessage::Descriptors { name, fds, expected });
    assert_eq!(parse(5, &table(2, 2), 1), wrong("SET_MEM_TABLE", 1, 2));
    assert_eq!(parse(5, &table(2, 2), 3), wrong("SET_MEM_TABLE", 3, 2));
    assert_eq!(parse(12, &5u64.to_le_bytes(), 0), wrong("SET_VRING_KICK", 0, 1));
    assert_eq!(parse(13, &0x105u64.to_le_bytes(), 1), wrong("SET_VRING_CALL", 1, 0));
    assert_eq!(parse(3, &[], 1), wrong("SET_OWNER", 1, 0));
    assert_eq!(parse(38, &table(0, 1), 2), wrong("REM_MEM_REG", 2, 0));
}

#[test]
fn impossible_values_are_refused() {
    assert_eq!(
        parse(11, &state(256, 0), 0),
        Err(BadMessage::Ring { name: "GET_VRING_BASE", ring: 256 })
    );
    assert_eq!(
        parse(12, &0x200u64.to_le_bytes(), 1),
        Err(BadMessage::Ring { name: "SET_VRING_KICK", ring: 512 })
    );
    assert_eq!(
        parse(8, &state(0, 65536), 0),
        Err(BadMessage::Value { name: "SET_VRING_NUM", value: 65536 })
    );
    assert_eq!(
        parse(18, &state(0, 2), 0),
        Err(BadMessage::Value { name: "SET_VRING_ENABLE", value: 2 })
    );
}

#[test]
fn what_is_not_offered_can_be_declined() {
    for (code, refusal) in [
        (28, BadMessage::NotOffered("POSTCOPY_ADVISE")),
        (33, BadMessage::NotOffered("GPU_SET_SOCKET")),
        (0, BadMessage::Unknown(0)),
        (45, BadMessage::Unknown(45)),
        (u32::MAX, BadMessage::Unknown(u32::MAX)),
    ] {
        assert_eq!(parse(code, &[1, 2, 3], 2), Err(refusal));
        assert!(refusal.is_declinable());
    }
}

#[test]
fn a_range_of_the_configuration_space_is_read() {
    let range = ConfigRange { offset: 4, size: 8, flags: 0 };
    let message = |range: ConfigRange, room| {
        [state(range.offset, range.size), range.flags.to_le_bytes().to_vec(), vec![0; room]]
            .concat()
    };
    assert_eq!(parse(24, &message(range, 8), 0), Ok(Request::GetConfig(range)));
    let size = |size, expected| Err(BadMessage::Size { name: "GET_CONFIG", size, expected });
    assert_eq!(parse(24, &message(range, 7), 0), size(19, 20));
    assert_eq!(parse(24, &[0; 11], 0), size(11, 12));
    let huge = ConfigRange { size: 257, ..range };
    let value = BadMessage::Value { name: "GET_CONFIG", value: 257 };
    assert_eq!(parse(24, &message(huge, 257), 0), Err(value));
    let reply = Reply::Config(range, Some(vec![7; 8])).encode(24);
    assert_eq!(reply[12..], [message(range, 0), vec![7; 8]].concat());
    assert_eq!(Reply::Config(range, None).encode(24), header(24, 1 | REPLY, 0));
}

#[test]
fn replies_name_their_request() {
    let bytes = Reply::State(3, 77).encode(11);
    assert_eq!(bytes[..12], header(11, 1 | REPLY, 8));
    assert_eq!(bytes[12..], state(3, 77));
    assert_eq!(Reply::Empty.encode(6), header(6, 1 | REPLY, 0));
    assert_eq!(Reply::Number(1).encode(2)[12..], 1u64.to_le_bytes());
}

proptest! {
    #[test]
    fn no_bytes_whatever_panic(code in 0u32..50, payload in proptest::collection::vec(any::<u8>(), 0..400), fds in 0usize..10) {
        let _ = parse(code, &payload, fds);
    }

    #[test]
    fn no_header_whatever_panics_or_passes_the_limit(bytes in any::<[u8; HEADER_LEN]>()) {
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.size <= MAX_PAYLOAD);
        }
    }

    #[test]
    fn what_parses_has_the_descriptors_that_it_needs(code in 0u32..50, payload in proptest::collection::vec(any::<u8>(), 0..50), fds in 0usize..10) {
        if let Ok(request) = parse(code, &payload, fds) {
            prop_assert!(request.fds() <= fds);
        }
    }
}
