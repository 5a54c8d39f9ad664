mod mapped_pages;
mod virtqueues;

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::copies::OwnPages;
use crate::device::{DeviceRing, Put, RingConfig};
use crate::driver::{Direction, DriverRing, Piece, Used};
use crate::gather::Gather;
use crate::grant::Granted;
use crate::grant::{DomId, GrantRef, PAGE};
use crate::heads::Heads;
use crate::packed::device::PackedDevice;
use crate::packed::driver::PackedDriver;
use crate::region::{MappingOwner, RegionSpec};
use crate::split::device::SplitDevice;
use crate::split::driver::SplitDriver;

/// Domain 1, which grants the pages of its memory under their numbers, except some.
#[derive(Debug)]
struct Pages {
    memory: Arc<Memory>,
    withheld: Mutex<Vec<u32>>,
    runs: Mutex<Vec<usize>>,
}

impl Engine for Pages {
    fn run(&self, copies: &mut Copies) {
        self.runs.lock().push(copies.len());
        copies.emulate(|pin, at, _, _| {
            pin.hold(&self.memory);
            match self.withheld.lock().contains(&at.reference.0) {
                true => Err(Status::REFUSED),
                false => Ok(u64::from(at.reference.0) * PAGE as u64 + u64::from(at.offset)),
            }
        });
    }
}

fn pages() -> (Arc<Pages>, Arc<dyn Engine>, Vec<u8>) {
    let bytes: Vec<u8> =
        (0..16 * PAGE as u32).map(|i| (i.wrapping_mul(2654435761) >> 11) as u8).collect();
    let memory = Memory::anonymous(bytes.len()).unwrap();
    memory.write(0, &bytes).unwrap();
    let pages = Arc::new(Pages {
        memory: Arc::new(memory),
        withheld: Mutex::default(),
        runs: Mutex::default(),
    });
    (Arc::clone(&pages), pages, bytes)
}

fn at(page: u32, offset: u16) -> Granted {
    Granted { domain: DomId(1), reference: GrantRef(page), offset }
}

fn room(page: u32, offset: u16, len: u16) -> Target<'static> {
    Target { at: at(page, offset), len, page: None }
}

/// The bytes at those places.
fn expected(bytes: &[u8], pieces: &[(Granted, u16)]) -> Vec<u8> {
    let piece = |(at, len): &(Granted, u16)| {
        let start = at.reference.0 as usize * PAGE + usize::from(at.offset);
        bytes[start..start + usize::from(*len)].to_vec()
    };
    pieces.iter().flat_map(piece).collect()
}

#[test]
fn granted_bytes_are_read_like_any() {
    let (_, engine, bytes) = pages();
    let pieces =
        [(at(2, 100), 50), (at(0, 0), 4096), (at(3, 4095), 1), (at(5, 7), 0), (at(1, 1), 3000)];
    let mut gather = Gather::new(0);
    let chain = gather.push_granted(&engine, pieces).unwrap();
    let all = expected(&bytes, &pieces);
    assert_eq!(chain.len() as usize, all.len());
    for (skip, len) in [
        (0, 8000),
        (0, 10),
        (49, 3),
        (50, 4096),
        (51, 1),
        (4146, 2),
        (7000, 147),
        (7147, 9),
        (9000, 1),
    ] {
        let body = gather.body(chain).slice(skip, len);
        let mut got = vec![0; body.len() as usize];
        assert_eq!(body.read(&mut got), got.len());
        let skip = (skip as usize).min(all.len());
        assert_eq!(got, all[skip..(skip + len as usize).min(all.len())]);
        // Code that follows spans sees no bytes.
        assert_eq!(body.read_mapped(&mut [0; 8]), 0);
    }
    let twice = gather.body(chain).slice(60, 7000).slice(4000, 100);
    let mut got = vec![0; 100];
    assert_eq!(twice.read(&mut got), 100);
    assert_eq!(got, all[4060..4160]);
}

/// The owner of a mapping that the kernel can't find.
#[derive(Debug)]
struct Elsewhere;

impl MappingOwner for Elsewhere {}

/// The pages with these numbers, mapped: where they are, and a set of them.
fn mapped(pages: &Pages, numbers: &[u32], writable: bool) -> Arc<crate::Pages> {
    let page = |n: &u32| {
        let (base, _) = pages.memory.run(u64::from(*n) * PAGE as u64, &mut 0).unwrap();
        // SAFETY: within the memory of the test, which outlives them.
        let page = unsafe { crate::Page::adopt(base, writable, Box::new(Elsewhere)) };
        (GrantRef(*n), Arc::new(page))
    };
    Arc::new(crate::Pages::default().with(numbers.iter().map(page).collect()).unwrap())
}

#[test]
fn a_page_for_reading_is_no_room() {
    let (pages, engine, bytes) = pages();
    let set = mapped(&pages, &[1, 8], false);
    let mut seen = crate::pages::LookupHint::default();
    let mut gather = Gather::new(0);
    let chain = gather.push_mapped(&engine, &set, &mut seen, [(at(1, 0), 100)]).unwrap();
    let page = set.find(GrantRef(8), false, &mut seen);
    let mut grant_copies = GrantCopyBatch::new();
    assert!(grant_copies.begin(&engine, gather.body(chain), 1, 100, 3, 0));
    grant_copies.body(gather.body(chain), Target { page, ..room(8, 0, 100) }, &[]);
    assert!(pages.runs.lock().is_empty(), "not yet");
    assert_eq!(grant_copies.flush().count(), 0);
    let mut got = [0; 100];
    pages.memory.read(8 * PAGE as u64, &mut got).unwrap();
    assert_eq!((got[..].to_vec(), pages.runs.lock().len()), (bytes[PAGE..PAGE + 100].to_vec(), 1));
}

#[test]
fn chains_of_both_kinds_do_not_mix() {
    let (pages, engine, _) = pages();
    let mut gather = Gather::new(0);
    gather.push_range(&pages.memory, 0, 10).unwrap();
    assert!(gather.push_granted(&engine, [(at(0, 0), 1)]).is_none());
    gather.clear();
    assert!(gather.push_granted(&engine, [(at(0, 4090), 7)]).is_none(), "beyond its page");
    assert!(gather.push_granted(&engine, [(at(0, 0), 1)]).is_some());
    let mut other = Gather::new(0);
    let chain = gather.push_granted(&engine, [(at(4, 4), 4), (at(5, 5), 5)]).unwrap();
    let copy = other.append_from(&gather, chain).unwrap();
    assert_eq!(other.body(copy).granted().count(), 2);
    other.clear();
    assert!(other.push_range(&pages.memory, 0, 10).is_ok());
    assert!(other.append_from(&gather, chain).is_none());
}

#[test]
fn heads_of_a_burst_are_one_batch() {
    let (pages, engine, bytes) = pages();
    let mut gather = Gather::new(0);
    let frames: Vec<_> = (0..15).map(|n| [(at(n, 9), 60), (at(n + 1, 0), 200)]).collect();
    let chains: Vec<_> =
        frames.iter().map(|frame| gather.push_granted(&engine, *frame).unwrap()).collect();
    let mut heads = Heads::new();
    heads.fetch(&gather, &chains, 128, 128);
    assert_eq!(*pages.runs.lock(), [30]);
    for (i, frame) in frames.iter().enumerate() {
        let mut head = [0; 128];
        assert_eq!((heads.failure(i), heads.read(i, &mut head)), (None, 128));
        assert_eq!(head, expected(&bytes, frame)[..128]);
    }
    heads.clear();
    pages.withheld.lock().push(7);
    heads.fetch(&gather, &chains, 128, 128);
    let failed: Vec<usize> =
        (0..15).filter(|i| heads.failure(*i) == Some(Status::REFUSED)).collect();
    assert_eq!(failed, [6, 7]);
}

#[test]
fn a_first_piece_may_be_enough_and_more_is_fetched_when_it_is_not() {
    let (pages, engine, bytes) = pages();
    let mut gather = Gather::new(0);
    let frames = [
        [(at(1, 9), 50), (at(2, 0), 200)],
        [(at(3, 9), 49), (at(4, 0), 20)],
        [(at(5, 0), 50), (at(6, 0), 300)],
    ];
    let chains = frames.map(|frame| gather.push_granted(&engine, frame).unwrap());
    let mut heads = Heads::new();
    heads.fetch(&gather, &chains, 50, 128);
    let lens = |heads: &Heads| [0, 1, 2].map(|i| heads.len(i));
    assert_eq!(lens(&heads), [50, 69, 50]);
    heads.fetch_again(&gather, &chains, &[2, 9], 128);
    assert_eq!(lens(&heads), [50, 69, 128]);
    for (i, frame) in frames.iter().enumerate() {
        let mut head = [0; 128];
        let len = heads.read(i, &mut head);
        assert_eq!((heads.failure(i), len), (None, heads.len(i)));
        assert_eq!(head[..len], expected(&bytes, frame)[..len]);
    }
    assert_eq!(*pages.runs.lock(), [4, 6]);
    pages.withheld.lock().push(6);
    heads.fetch(&gather, &chains, 50, 128);
    assert_eq!([0, 1, 2].map(|i| heads.failure(i)), [None; 3]);
    heads.fetch_again(&gather, &chains, &[0, 2], 128);
    assert_eq!([0, 1, 2].map(|i| heads.failure(i)), [None, None, Some(Status::REFUSED)]);
}

#[test]
fn pieces_and_rooms_of_any_lengths_meet() {
    let (pages, engine, bytes) = pages();
    let mut gather = Gather::new(0);
    let pieces =
        [(at(0, 100), 50), (at(1, 0), 4096), (at(2, 4095), 1), (at(3, 7), 0), (at(4, 1), 3000)];
    let chain = gather.push_granted(&engine, pieces).unwrap();
    let all = expected(&bytes, &pieces);
    for (skip, rooms) in [
        (0, vec![4096, 3051]),
        (10, vec![40, 4096, 3001]),
        (60, vec![1, 1, 4000, 3085]),
        (4147, vec![2999, 1]),
    ] {
        let mut grant_copies = GrantCopyBatch::new();
        let body = gather.body(chain).slice(skip, u32::MAX);
        assert!(grant_copies.begin(&engine, body, 0, 0, body.fragments() + rooms.len(), 0));
        let mut rooms = rooms.into_iter().zip(8..).map(|(len, page)| room(page, 0, len));
        let (first, others) = (rooms.next().unwrap(), rooms.collect::<Vec<_>>());
        grant_copies.body(body, first, &others);
        assert_eq!(grant_copies.flush().count(), 0);
        let got = [first].into_iter().chain(others).map(|room| (room.at, room.len));
        let read = |(at, len): (Granted, u16)| {
            let mut bytes = vec![0; len.into()];
            pages.memory.read(u64::from(at.reference.0) * PAGE as u64, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(got.flat_map(read).collect::<Vec<_>>(), all[skip as usize..], "from {skip}");
    }
}

#[test]
fn without_rooms_it_is_the_receivers_fault() {
    let (pages, engine, _) = pages();
    let source = Arc::new(Memory::anonymous(4096).unwrap());
    let (mut granted, mut mapped) = (Gather::new(0), Gather::new(0));
    let granted_chain = granted.push_granted(&engine, [(at(0, 0), 100)]).unwrap();
    let mapped_chain = mapped.push_range(&source, 0, 100).unwrap();
    for body in [granted.body(granted_chain), mapped.body(mapped_chain)] {
        let mut grant_copies = GrantCopyBatch::new();
        assert!(grant_copies.begin(&engine, body, 5, 100, 2, 0));
        grant_copies.body(body, room(1, 0, 60), &[]);
        let failures: Vec<_> = grant_copies.flush().collect();
        let frame = Some((5, 100));
        assert_eq!(
            failures,
            [Failure {
                sender: 0,
                receiver: 0,
                frame,
                faulty: FaultyEnd::Receiver,
                status: Status::BAD_PAGE
            }]
        );
    }
    assert_eq!(pages.runs.lock().len(), 2);
}

#[test]
fn the_end_that_is_to_blame_is_found_out() {
    let (pages, engine, _) = pages();
    let mut gather = Gather::new(0);
    let mut grant_copies = GrantCopyBatch::new();
    pages.withheld.lock().extend([5, 6]);
    for (n, (from, to)) in [(1, 2), (5, 2), (1, 6), (5, 6)].into_iter().enumerate() {
        let chain = gather.push_granted(&engine, [(at(from, 0), 10), (at(from, 10), 10)]).unwrap();
        grant_copies.set_ends(70 + n as u32, 40 + n as u32);
        assert!(grant_copies.begin(&engine, gather.body(chain), n as u32, 20, 2, 0));
        grant_copies.body(gather.body(chain), room(to, 0, 20), &[]);
    }
    let failure = |n: u32, faulty| Failure {
        sender: 70 + n,
        receiver: 40 + n,
        frame: Some((n, 20)),
        faulty,
        status: Status::REFUSED,
    };
    let failures: Vec<_> = grant_copies.flush().collect();
    assert_eq!(
        failures,
        [
            failure(1, FaultyEnd::Sender),
            failure(2, FaultyEnd::Receiver),
            failure(3, FaultyEnd::Sender)
        ]
    );
}

#[test]
fn what_does_not_fit_into_one_batch_makes_two() {
    let (pages, engine, bytes) = pages();
    let mut gather = Gather::new(0);
    let chain = gather.push_granted(&engine, [(at(0, 0), 4096)]).unwrap();
    let mut grant_copies = GrantCopyBatch::new();
    for n in 0..COPIES as u32 + 10 {
        assert!(grant_copies.begin(&engine, gather.body(chain), n, 1, 1, 0));
        grant_copies.body(
            gather.body(chain).slice(n % 4096, 1),
            room(9, (n % 4096) as u16, 1),
            &[],
        );
    }
    assert_eq!(grant_copies.flush().count(), 0);
    assert_eq!(*pages.runs.lock(), [COPIES, 10]);
    let mut page = vec![0; COPIES];
    pages.memory.read(9 * PAGE as u64, &mut page).unwrap();
    assert_eq!(page, bytes[..COPIES]);
    assert!(!grant_copies.begin(&engine, gather.body(chain), 0, 1, COPIES + 1, 0));
    assert!(!grant_copies.begin(&engine, gather.body(chain), 0, 1, 1, STAGE + 1));
}
