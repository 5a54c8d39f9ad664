use crate::grant::{DomId, GrantRef};
use std::mem::offset_of;
use std::os::fd::OwnedFd;

use proptest::prelude::*;

use super::*;
use crate::gather::Gather;
use crate::region::RegionSpec;
use crate::segment::RawGranted;

fn granted(reference: u32, offset: u16) -> Place {
    Place::Granted(Granted { domain: DomId(3), reference: GrantRef(reference), offset })
}

fn copies() -> Copies {
    Copies::new(64, 4096).unwrap()
}

fn memory(len: usize) -> (Arc<Memory>, OwnedFd) {
    let (memory, file) = Memory::shared(len).unwrap();
    (Arc::new(memory), file)
}

/// A hypervisor for which grant reference n is page n of `pages`.
fn run(copies: &mut Copies, pages: &Arc<Memory>) {
    copies.emulate(|pin, granted, _, _| {
        pin.hold(pages);
        let page = u64::from(granted.reference.0) * PAGE as u64;
        Ok(page + u64::from(granted.offset))
    });
}

#[test]
fn segments_lie_as_the_kernel_has_them() {
    // struct gntdev_grant_copy_segment on 64-bit machines.
    assert_eq!(size_of::<Segment>(), 24);
    assert_eq!(align_of::<Segment>(), 8);
    assert_eq!(offset_of!(Segment, source), 0);
    assert_eq!(offset_of!(Segment, target), 8);
    assert_eq!(offset_of!(Segment, len), 16);
    assert_eq!(offset_of!(Segment, flags), 18);
    assert_eq!(offset_of!(Segment, status), 20);
    assert_eq!((offset_of!(RawGranted, reference), offset_of!(RawGranted, offset)), (0, 4));
    assert_eq!(offset_of!(RawGranted, domain), 6);
}

#[test]
fn copies_between_local_and_granted_places() {
    let (pages, _file) = memory(4 * PAGE);
    let mut copies = copies();
    let from = copies.stage(b"hello").unwrap();
    copies.push(from, granted(1, 10), 5, 1).unwrap();
    copies.push(granted(1, 10), granted(2, 4091), 5, 2).unwrap();
    let (stage, to) = copies.reserve(5).unwrap();
    copies.push(granted(2, 4091), to, 5, 3).unwrap();
    assert!(copies.is_waiting());
    assert_eq!(copies.failed().count(), 0, "nothing has failed before it is run");
    run(&mut copies, &pages);
    assert!(!copies.is_waiting());
    assert_eq!((copies.len(), copies.failed().count()), (3, 0));
    let mut bytes = [0; 8];
    assert_eq!(copies.read(stage, 0, &mut bytes), 5);
    assert_eq!(&bytes, b"hello\0\0\0");
    assert_eq!(copies.read(stage, 3, &mut bytes), 2);
    assert_eq!(&bytes[..2], b"lo");
    assert_eq!(copies.read(stage, 6, &mut bytes), 0);
}

#[test]
fn what_was_run_is_not_run_again() {
    let (pages, _file) = memory(PAGE);
    let mut copies = copies();
    let mut ran = 0;
    for n in 0..3 {
        copies.push(granted(0, 0), granted(0, 100), 4, n).unwrap();
        copies.emulate(|pin, _, _, _| {
            ran += 1;
            pin.hold(&pages);
            Ok(0)
        });
    }
    assert_eq!(ran, 6, "two ends of each");
}

#[test]
fn two_local_ends_are_copied_at_once() {
    let (mem, _file) = memory(PAGE);
    let mut copies = copies();
    let (from, to) = (copies.stage(b"abc").unwrap(), copies.place(&mem, 7, 3).unwrap());
    copies.push(from, to, 3, 0).unwrap();
    assert!(copies.is_empty());
    let mut bytes = [0; 3];
    mem.read(7, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
}

#[test]
fn failures_are_told_by_tag() {
    let (pages, _file) = memory(2 * PAGE);
    let mut copies = copies();
    for tag in [5, 6, 7] {
        copies.push(granted(tag, 0), granted(1, 0), 1, tag).unwrap();
    }
    copies.emulate(|pin, granted, _, write| {
        pin.hold(&pages);
        match granted.reference.0 {
            6 => Err(Status::REFUSED),
            7 => Ok(2 * PAGE as u64),
            _ => Ok(if write { 5 } else { 0 }),
        }
    });
    let failed: Vec<_> = copies.failed().map(|(tag, status, _)| (tag, status)).collect();
    assert_eq!(failed, [(6, Status::REFUSED), (7, Status::BAD_PAGE)]);
}

#[test]
fn only_pinned_memory_is_taken() {
    let (mem, _file) = memory(PAGE);
    let (mut ours, mut others) = (copies(), copies());
    let place = others.place(&mem, 0, 16).unwrap();
    let staged = others.stage(b"0123456789").unwrap();
    for place in [place, staged] {
        assert_eq!(ours.push(place, granted(0, 0), 10, 0), Err(Refused::NotPinned));
        assert_eq!(ours.push(granted(0, 0), place, 10, 0), Err(Refused::NotPinned));
        assert_eq!(ours.push(place, staged, 10, 0), Err(Refused::NotPinned));
    }
    ours.pin(&mem);
    ours.push(place, granted(0, 0), 10, 0).unwrap();
    ours.clear();
    assert_eq!(Arc::strong_count(&mem), 2, "ours has let go of it");
    assert_eq!(ours.push(place, granted(0, 0), 10, 0), Err(Refused::NotPinned));
}

#[test]
fn what_a_gather_points_into_is_pinned_with_it() {
    let (mem, _file) = memory(PAGE);
    let (mut gather, mut copies, mut other) = (Gather::new(8), copies(), copies());
    let chain = gather.push_range(&mem, 0, 100).unwrap();
    let place = other.place(&mem, 0, 100).unwrap();
    assert_eq!(copies.push(place, granted(0, 0), 100, 0), Err(Refused::NotPinned));
    copies.pin_all(gather.body(chain).pins());
    copies.push(place, granted(0, 0), 100, 0).unwrap();
}

#[test]
fn local_ends_stay_within_their_memory() {
    let (mem, _file) = memory(PAGE);
    let mut copies = copies();
    assert!(copies.place(&mem, 4096, 1).is_err());
    assert!(copies.place(&mem, 4000, 97).is_err());
    let place = copies.place(&mem, 4000, 96).unwrap();
    copies.push(place, granted(0, 0), 96, 0).unwrap();
    // A length that is not the one that was asked for.
    assert_eq!(copies.push(place, granted(0, 0), 97, 0), Err(Refused::NotPinned));
    let (_, last) = copies.reserve(4096).unwrap();
    assert_eq!(copies.push(last, granted(0, 0), 4097, 0), Err(Refused::NotPinned));
    copies.push(last, granted(0, 0), 4096, 0).unwrap();
}

#[test]
fn granted_ends_stay_within_their_page() {
    let mut copies = copies();
    let (_, to) = copies.reserve(4096).unwrap();
    for (offset, len, fits) in
        [(0, 4096, true), (1, 4096, false), (4095, 1, true), (4096, 1, false), (65535, 1, false)]
    {
        assert_eq!(copies.push(granted(0, offset), to, len, 0).is_ok(), fits, "{offset} {len}");
        assert_eq!(copies.push(to, granted(0, offset), len, 0).is_ok(), fits, "{offset} {len}");
    }
    assert!(copies.push(granted(0, 0), granted(1, 0), u32::MAX, 0).is_err());
    assert!(copies.push(granted(0, 0), granted(1, 0), 1 << 16, 0).is_err());
    // Copies of nothing do nothing.
    let before = copies.len();
    copies.push(granted(0, 65535), to, 0, 0).unwrap();
    assert_eq!(copies.len(), before);
}

#[test]
fn room_is_bounded() {
    let mut copies = Copies::new(2, 8).unwrap();
    assert!(copies.reserve(9).is_none());
    assert!(copies.reserve(usize::MAX).is_none());
    let (_, place) = copies.reserve(8).unwrap();
    assert!(copies.stage(b"x").is_none());
    assert!(copies.reserve(0).is_some(), "nothing fits always");
    copies.push(place, granted(0, 0), 8, 0).unwrap();
    copies.push(place, granted(0, 0), 8, 0).unwrap();
    assert_eq!(copies.room(), 0);
    assert_eq!(copies.push(place, granted(0, 0), 8, 0), Err(Refused::Full));
    copies.clear();
    assert_eq!(copies.room(), 2);
    assert!(copies.reserve(8).is_some());
}

#[test]
fn memory_that_cannot_be_reached_learns_it() {
    let file = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 2 * PAGE as u64).unwrap();
    let spec = |fd| RegionSpec { guest_addr: 0, user_addr: 0, len: 2 * PAGE as u64, offset: 0, fd };
    let mem = Arc::new(Memory::map(vec![spec(file.try_clone().unwrap())]).unwrap());
    let mut copies = copies();
    // Its last byte alone lies in the second page.
    let place = copies.place(&mem, 4090, 7).unwrap();
    copies.push(granted(0, 0), place, 7, 4).unwrap();
    rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
    assert!(!mem.is_faulted());
    copies.run(|mut batch| batch.fail_locally());
    assert!(mem.is_faulted());
    assert_eq!(
        copies.failed().map(|(tag, status, _)| (tag, status)).collect::<Vec<_>>(),
        [(4, Status::LOCAL_FAULT)]
    );
}

#[test]
fn batches_halve_down_to_one() {
    let mut copies = copies();
    (0..13).for_each(|n| copies.push(granted(n, 0), granted(n, 1), 1, n).unwrap());
    fn fail(mut batch: Batch<'_>) -> usize {
        if batch.len() < 2 {
            batch.fail(Status::BAD_PAGE);
            return batch.len();
        }
        let (first, second) = batch.halves();
        fail(first) + fail(second)
    }
    assert_eq!(copies.run(fail), 13);
    assert_eq!(copies.failed().count(), 13);
}

#[test]
fn mapped_grants_are_no_local_ends() {
    #[derive(Debug)]
    struct Owner;
    impl crate::region::MappingOwner for Owner {}
    let (mem, _file) = Memory::shared(PAGE).unwrap();
    let mem = Arc::new(mem.owned_by(Box::new(Owner)));
    let mut copies = copies();
    let place = copies.place(&mem, 0, 8).unwrap();
    assert_eq!(copies.push(place, granted(0, 0), 8, 0), Err(Refused::NotPinned));
}

proptest! {
    /// Any sequence of copies has the same result as plain copies.
    #[test]
    fn any_copies_are_those_of_a_model(ops in prop::collection::vec((0..4u32, 0..4u32, 0..5000u32, 0..5000u32, 0..5000u32), 1..60)) {
        // Places 0 and 1 are pages granted, 2 and 3 halves of local memory of two pages each.
        let (pages, _a) = memory(2 * PAGE);
        let (local, _b) = memory(4 * PAGE);
        let mut model: Vec<Vec<u8>> = [1, 1, 2, 2].iter().enumerate().map(|(n, pages)| {
            (0..pages * PAGE).map(|at| (at * (n + 3)) as u8).collect()
        }).collect();
        pages.write(0, &[&model[0][..], &model[1][..]].concat()).unwrap();
        local.write(0, &[&model[2][..], &model[3][..]].concat()).unwrap();
        let mut copies = copies();
        copies.pin(&local);
        for (from, to, at, there, len) in ops {
            let mut place = |n: u32, at: u32| match n {
                0 | 1 => Some(granted(n, at as u16)),
                n => copies.place(&local, u64::from(n - 2) * 2 * PAGE as u64 + u64::from(at), 0).ok(),
            };
            let (Some(source), Some(target)) = (place(from, at), place(to, there)) else { continue };
            let fits = |n: u32, at: u32| n > 1 || at + len <= PAGE as u32;
            let inside = |n: u32, at: u32| (at + len) as usize <= model[n as usize].len();
            prop_assume!(inside(from, at) || from < 2);
            prop_assume!(inside(to, there) || to < 2);
            let pushed = copies.push(source, target, len, 0);
            prop_assert_eq!(pushed.is_ok(), len == 0 || (fits(from, at) && fits(to, there)));
            // One at a time, since two local ends do not wait for the others.
            run(&mut copies, &pages);
            if pushed.is_ok() && len > 0 {
                let bytes = model[from as usize][at as usize..(at + len) as usize].to_vec();
                model[to as usize][there as usize..(there + len) as usize].copy_from_slice(&bytes);
            }
        }
        let (mut a, mut b) = (vec![0; 2 * PAGE], vec![0; 4 * PAGE]);
        pages.read(0, &mut a).unwrap();
        local.read(0, &mut b).unwrap();
        prop_assert_eq!(a, [&model[0][..], &model[1][..]].concat());
        prop_assert_eq!(b, [&model[2][..], &model[3][..]].concat());
    }
}

#[test]
fn memories_are_held_as_long_as_copies_run_and_no_longer() {
    let ((first, _a), (second, _b)) = (memory(PAGE), memory(PAGE));
    let mut copies = copies();
    for n in [0, 0, 1, 1, 0] {
        copies.push(granted(n, 0), granted(n, 100), 4, n).unwrap();
    }
    let mut held = Vec::new();
    copies.emulate(|pin, granted, _, write| {
        pin.hold([&first, &second][granted.reference.0 as usize]);
        if write {
            held.push((Arc::strong_count(&first), Arc::strong_count(&second)));
        }
        Ok(0)
    });
    assert_eq!(held, [(3, 1), (3, 1), (1, 3), (1, 3), (3, 1)]);
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1));
}

#[test]
fn where_no_memory_was_pinned_nothing_is_copied() {
    let mut copies = copies();
    copies.push(granted(0, 0), granted(0, 100), 4, 0).unwrap();
    copies.emulate(|_, _, _, _| Ok(0));
    assert_eq!(
        copies.failed().map(|(_, status, _)| status).collect::<Vec<_>>(),
        [Status::BAD_PAGE]
    );
}
