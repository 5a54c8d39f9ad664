use std::io;

use super::*;
use crate::body::IOV_MAX;
use proptest::prelude::*;
use std::io::Read;
use std::os::fd::AsFd;

/// A gather with one chain of these pieces, and the bytes that it should give.
fn gather_of(lens: &[u32]) -> (Gather, Chain, Vec<u8>) {
    let (mem, bytes) = memory();
    let mut gather = Gather::new(0);
    let (mark, mut total, mut expected) = (gather.mark(), 0, Vec::new());
    for (i, &len) in lens.iter().enumerate() {
        let at = 200 * i;
        gather.push_range(&mem, at as u64, len).unwrap();
        expected.extend_from_slice(&bytes[at..at + len as usize]);
        total += len;
    }
    let chain = gather.chain_from(mark, total);
    (gather, chain, expected)
}

fn memory() -> (Arc<Memory>, Vec<u8>) {
    let mem = Memory::anonymous(8192).unwrap();
    let bytes: Vec<u8> = (0..8192u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    mem.write(0, &bytes).unwrap();
    (Arc::new(mem), bytes)
}

fn all(body: Body<'_>) -> Vec<u8> {
    let mut bytes = vec![0; body.len() as usize];
    assert_eq!(body.read(&mut bytes), bytes.len());
    bytes
}

proptest! {
    #[test]
    fn slices_read_what_a_vector_would(
        lens in prop::collection::vec(0u32..150, 0..20),
        cuts in prop::collection::vec((0u32..2000, 0u32..2000), 1..5),
    ) {
        let (gather, chain, mut expected) = gather_of(&lens);
        let mut body = gather.body(chain);
        prop_assert_eq!(all(body), expected.clone());
        for (offset, len) in cuts {
            body = body.slice(offset, len);
            let from = (offset as usize).min(expected.len());
            let to = (from + len as usize).min(expected.len());
            expected = expected[from..to].to_vec();
            prop_assert_eq!(all(body), expected.clone());
        }
    }

    #[test]
    fn writes_prefix_and_body_as_one(lens in prop::collection::vec(0u32..150, 0..20), skip in 0u32..50) {
        let (gather, chain, expected) = gather_of(&lens);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let body = gather.body(chain).slice(skip, u32::MAX);
        let took = body.write_to(writer.as_fd(), &[b"net", b"", b"head"]).unwrap();
        drop(writer);
        let mut got = Vec::new();
        std::fs::File::from(reader).read_to_end(&mut got).unwrap();
        let rest = &expected[(skip as usize).min(expected.len())..];
        prop_assert_eq!(took, got.len());
        prop_assert_eq!(got, [b"nethead", rest].concat());
    }
}

#[test]
fn a_short_read_takes_the_start() {
    let (gather, chain, expected) = gather_of(&[5, 100, 30]);
    let mut buf = [0; 20];
    assert_eq!(gather.body(chain).read(&mut buf), 20);
    assert_eq!(buf, expected[..20]);
}

#[test]
fn ranges_outside_are_refused_and_leave_nothing() {
    let (mem, _) = memory();
    let mut gather = Gather::new(0);
    assert_eq!(
        gather.push_range(&mem, 8000, 193),
        Err(Violation::Outside { addr: 8000, len: 193 })
    );
    assert_eq!(gather.mark(), 0);
    assert_eq!(gather.push_range(&mem, 8000, 192).unwrap().len(), 192);
}

#[test]
fn a_full_gather_refuses() {
    let (mem, _) = memory();
    let mut gather = Gather::new(0);
    for _ in 0..MAX_SPANS {
        gather.push_range(&mem, 0, 1).unwrap();
    }
    assert_eq!(gather.push_range(&mem, 0, 1), Err(Violation::ChainScattered(MAX_SPANS as u32)));
    let (other, chain, _) = gather_of(&[3]);
    assert_eq!(gather.append_from(&other, chain), None);
    gather.clear();
    assert!(gather.append_from(&other, chain).is_some());
}

#[test]
fn an_appended_chain_outlives_where_it_came_from() {
    let (gather, chain, expected) = gather_of(&[100, 40]);
    let mut moved_to = Gather::new(0);
    let moved = moved_to.append_from(&gather, chain).unwrap();
    drop(gather);
    assert_eq!(all(moved_to.body(moved)), expected);
}

#[test]
fn chains_that_are_not_its_own_give_no_wild_bytes() {
    let (mut gather, chain, _) = gather_of(&[100, 40]);
    gather.clear();
    let mut buf = [0; 300];
    assert_eq!(gather.body(chain).read(&mut buf), 0);
    let (other, _, _) = gather_of(&[7, 8]);
    assert_eq!(other.body(chain).read(&mut buf), 15);
    assert_eq!(other.body(chain).slice(20, 100).read(&mut buf), 0);
}

#[test]
fn lets_go_of_memory_when_cleared() {
    let (mem, _) = memory();
    let mut gather = Gather::new(0);
    gather.push_range(&mem, 0, 10).unwrap();
    gather.push_range(&mem, 10, 10).unwrap();
    assert_eq!(Arc::strong_count(&mem), 2);
    gather.clear();
    assert_eq!(Arc::strong_count(&mem), 1);
}

#[test]
fn too_many_pieces_for_one_write_are_refused() {
    let (gather, chain, _) = gather_of(&[1; 30]);
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let prefix = [b"x".as_slice(); IOV_MAX - 29];
    let error = gather.body(chain).write_to(writer.as_fd(), &prefix).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}
