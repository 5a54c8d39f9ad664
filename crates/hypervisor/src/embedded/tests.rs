//! All generations of the inner design pass the same tests.

mod model;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use ring::Memory;
use ring::copies::{Copies, Place, Segment, Stage, Status};
use ring::grant::Granted;

use super::*;
use crate::domain::{Domain, Extent};

const DOM0: DomId = DomId(0);

fn copy_out(
    to: &Hypervisor,
    domain: DomId,
    reference: GrantRef,
    offset: u16,
    len: u32,
) -> Result<Vec<u8>, Status> {
    let mut copies = Copies::new(1, PAGE).unwrap();
    let (stage, at) = copies.reserve(len as usize).unwrap();
    copies.push(Place::Granted(Granted { domain, reference, offset }), at, len, 0).unwrap();
    to.grants.copy(&mut copies).unwrap();
    let mut bytes = vec![0; len as usize];
    copies.read(stage, 0, &mut bytes);
    match copies.segments()[0].status() {
        Status::DONE => Ok(bytes),
        status => Err(status),
    }
}

fn copy_in(
    from: &Hypervisor,
    domain: DomId,
    reference: GrantRef,
    offset: u16,
    bytes: &[u8],
) -> Status {
    let mut copies = Copies::new(1, PAGE).unwrap();
    let at = copies.stage(bytes).unwrap();
    copies
        .push(at, Place::Granted(Granted { domain, reference, offset }), bytes.len() as u32, 0)
        .unwrap();
    from.grants.copy(&mut copies).unwrap();
    copies.segments()[0].status()
}

#[test]
fn parts_of_pages_and_not_a_byte_more() {
    for design in Design::all() {
        let machine = Machine::new(design).unwrap();
        let dom0 = machine.hypervisor(DOM0).unwrap();
        let guest = machine.guest(DomId(1), 4, Version::V2).unwrap();
        guest.memory().write(PAGE as u64 + 100, b"frame").unwrap();
        let part = Extent::SubPage { offset: 100, len: 5 };
        let reference = guest.grant(DOM0, 1, part, false).unwrap();
        assert_eq!(copy_out(&dom0, DomId(1), reference, 100, 5), Ok(b"frame".to_vec()));
        assert_eq!(copy_out(&dom0, DomId(1), reference, 101, 4), Ok(b"rame".to_vec()));
        for (offset, len) in [(99, 5), (99, 1), (100, 6), (105, 1), (0, 4096)] {
            assert_eq!(
                copy_out(&dom0, DomId(1), reference, offset, len),
                Err(Status(-10)),
                "{offset} {len}"
            );
        }
        assert_eq!(copy_in(&dom0, DomId(1), reference, 100, b"x"), Status::REFUSED, "for reading");
        assert!(dom0.grants.map(DomId(1), &[reference]).is_err(), "a page holds more");
        assert!(guest.revoke(reference));
        assert_eq!(copy_out(&dom0, DomId(1), reference, 100, 5), Err(Status::REFUSED));
    }
}

#[test]
fn grants_are_passed_on_as_far_as_they_go() {
    let machine = Machine::new(Design::default()).unwrap();
    let hypervisors = [0, 1, 2].map(|id| machine.hypervisor(DomId(id)).unwrap());
    let sender = machine.guest(DomId(1), 4, Version::V2).unwrap();
    let driver = machine.guest(DomId(3), 1, Version::V2).unwrap();
    sender.memory().write(8, b"frame").unwrap();
    // The sender grants some bytes of a page to the driver, which passes the grant on to domain 2.
    let first = sender.grant(DomId(3), 0, Extent::SubPage { offset: 8, len: 5 }, false).unwrap();
    let passed = driver.grant_transitive(DomId(2), DomId(1), first, false).unwrap();
    assert_eq!(copy_out(&hypervisors[2], DomId(3), passed, 8, 5), Ok(b"frame".to_vec()));
    assert_eq!(
        copy_out(&hypervisors[2], DomId(3), passed, 7, 5),
        Err(Status(-10)),
        "not a byte more"
    );
    assert_eq!(
        copy_out(&hypervisors[2], DomId(1), first, 8, 5),
        Err(Status::REFUSED),
        "not directly"
    );
    assert_eq!(
        copy_out(&hypervisors[1], DomId(3), passed, 8, 5),
        Err(Status::REFUSED),
        "not to another"
    );
    assert!(hypervisors[2].grants.map(DomId(3), &[passed]).is_err());
    // The grant that was passed on allows writing only if the first grant does.
    let greedy = driver.grant_transitive(DomId(2), DomId(1), first, true).unwrap();
    assert_eq!(copy_in(&hypervisors[2], DomId(3), greedy, 8, b"x"), Status::REFUSED);
    // A passed grant cannot be passed on again.
    let again = machine.guest(DomId(4), 1, Version::V2).unwrap();
    let to_fourth = driver.grant_transitive(DomId(4), DomId(1), first, false).unwrap();
    let further = again.grant_transitive(DomId(2), DomId(3), to_fourth, false).unwrap();
    assert_eq!(copy_out(&hypervisors[2], DomId(4), further, 8, 5), Err(Status::REFUSED));
    // Revoking the first grant ends the passed one.
    assert!(sender.revoke(first), "nothing is left in use by what was refused");
    assert_eq!(copy_out(&hypervisors[2], DomId(3), passed, 8, 5), Err(Status::REFUSED));
    assert!(driver.revoke(passed) && driver.revoke(greedy));
    // A circle of grants is refused.
    let circle = driver.grant_transitive(DomId(3), DomId(3), GrantRef(8), false).unwrap();
    let dom3 = machine.hypervisor(DomId(3)).unwrap();
    assert_eq!(copy_out(&dom3, DomId(3), circle, 8, 5), Err(Status::REFUSED));
}

#[test]
fn a_batch_goes_from_grant_to_grant_and_leaves_none_in_use() {
    for design in Design::all() {
        let machine = Machine::new(design).unwrap();
        let reader = machine.hypervisor(DomId(2)).unwrap();
        let guests = [1, 3].map(|id| machine.guest(DomId(id), 4, Version::V2).unwrap());
        let [first, second] = &guests;
        first.memory().write(0, b"a").unwrap();
        first.memory().write(PAGE as u64, b"b").unwrap();
        let whole = |page| first.grant(DomId(2), page, Extent::Whole, false).unwrap();
        let (a, b, gone) = (whole(0), whole(1), whole(2));
        assert!(first.revoke(gone));
        // The second passes on what the first lets it have: once a page, and once what is itself
        // passed on.
        let passed =
            first.grant(DomId(3), 1, Extent::SubPage { offset: 0, len: 1 }, false).unwrap();
        let through = second.grant_transitive(DomId(2), DomId(1), passed, false).unwrap();
        let far = first.grant_transitive(DomId(3), DomId(3), through, false).unwrap();
        let too_far = second.grant_transitive(DomId(2), DomId(1), far, false).unwrap();

        let wanted = [
            (1, a),
            (1, b),
            (1, b),
            (1, gone),
            (1, a),
            (3, through),
            (3, too_far),
            (3, too_far),
            (3, through),
            (1, b),
        ];
        let mut copies = Copies::new(wanted.len(), PAGE).unwrap();
        let mut stages = Vec::new();
        for (n, (domain, reference)) in (0..).zip(wanted) {
            let (stage, at) = copies.reserve(1).unwrap();
            copies
                .push(
                    Place::Granted(Granted { domain: DomId(domain), reference, offset: 0 }),
                    at,
                    1,
                    n,
                )
                .unwrap();
            stages.push(stage);
        }
        reader.grants.copy(&mut copies).unwrap();
        let came = |(stage, segment): (&Stage, &Segment)| {
            let mut byte = [0];
            copies.read(*stage, 0, &mut byte);
            if segment.status().is_done() { byte[0] } else { b'-' }
        };
        let came: Vec<u8> = stages.iter().zip(copies.segments()).map(came).collect();
        assert_eq!(came, *b"abb-ab--bb", "{design:?}");
        assert!(
            [a, b, passed, far].into_iter().all(|reference| first.revoke(reference)),
            "{design:?}"
        );
        assert!(
            [through, too_far].into_iter().all(|reference| second.revoke(reference)),
            "{design:?}"
        );
    }
}

#[test]
fn a_page_that_is_not_there_is_not_granted() {
    let machine = Machine::new(Design::default()).unwrap();
    let dom0 = machine.hypervisor(DOM0).unwrap();
    for version in [Version::V1, Version::V2] {
        let guest = machine.guest(DomId(1), 2, version).unwrap();
        let reference = guest.grant(DOM0, 1, Extent::Whole, true).unwrap();
        let layout = Layout { pages: 2 };
        let frame = layout.entry(version, reference) + u64::from(version.entry()) / 2;
        for page in [2, 3, 1000, u32::MAX] {
            guest.memory().write(frame, &page.to_le_bytes()).unwrap();
            assert_eq!(
                copy_out(&dom0, DomId(1), reference, 0, 4),
                Err(Status::BAD_PAGE),
                "page {page}"
            );
            assert!(dom0.grants.map(DomId(1), &[reference]).is_err());
        }
        guest.memory().write(frame, &1u32.to_le_bytes()).unwrap();
        assert_eq!(copy_out(&dom0, DomId(1), reference, 0, 4), Ok(vec![0; 4]));
        assert!(guest.revoke(reference), "nothing is left in use");
    }
}

/// A domain that clears an entry in use neither ends present uses nor allows new ones.
#[test]
fn an_entry_that_is_cleared_while_it_is_used() {
    for version in [Version::V1, Version::V2] {
        let machine = Machine::new(Design::default()).unwrap();
        let dom0 = machine.hypervisor(DOM0).unwrap();
        let guest = machine.guest(DomId(1), 2, version).unwrap();
        let reference = guest.grant(DOM0, 1, Extent::Whole, true).unwrap();
        let mapped = dom0.grants.map(DomId(1), &[reference]).unwrap();
        assert!(!guest.revoke(reference));
        let entry = Layout { pages: 2 }.entry(version, reference);
        guest.memory().write(entry, &[0; 16]).unwrap();
        mapped.write(0, b"still").unwrap();
        let mut bytes = [0; 5];
        guest.memory().read(PAGE as u64, &mut bytes).unwrap();
        assert_eq!(&bytes, b"still");
        assert_eq!(
            copy_out(&dom0, DomId(1), reference, 0, 4),
            Err(Status::REFUSED),
            "nobody joins them"
        );
        drop(mapped);
        assert_eq!(copy_out(&dom0, DomId(1), reference, 0, 4), Err(Status::REFUSED));
        assert_eq!(machine.mapped(DomId(1)), 0);
    }
}

/// One reserved reference, under which several grants are made one after the other.
#[test]
fn a_reference_that_is_reserved() {
    let machine = Machine::new(Design::default()).unwrap();
    let dom0 = machine.hypervisor(DOM0).unwrap();
    let guest = machine.guest(DomId(1), 2, Version::V2).unwrap();
    let reference = guest.reserve().unwrap();
    assert_eq!(copy_out(&dom0, DomId(1), reference, 0, 1), Err(Status::REFUSED));
    for (offset, len) in [(0, 8), (100, 1), (3000, 96)] {
        guest.grant_at(reference, DOM0, 1, Extent::SubPage { offset, len }).unwrap();
        assert!(copy_out(&dom0, DomId(1), reference, offset, len.into()).is_ok());
        assert_eq!(
            copy_out(&dom0, DomId(1), reference, offset, u32::from(len) + 1).unwrap_err(),
            Status(-10)
        );
        assert_eq!(
            copy_in(&dom0, DomId(1), reference, offset, b"x"),
            Status::REFUSED,
            "for reading"
        );
        assert!(guest.end_access(reference));
        assert_eq!(copy_out(&dom0, DomId(1), reference, offset, 1), Err(Status::REFUSED));
    }
    assert!(guest.grant_at(reference, DOM0, 2, Extent::Whole).is_err(), "no such page");
    assert_ne!(guest.grant(DOM0, 0, Extent::Whole, false).unwrap(), reference);
    guest.release(reference);
    assert_eq!(guest.grant(DOM0, 0, Extent::Whole, false).unwrap(), reference, "used again");
    let old = machine.guest(DomId(2), 2, Version::V1).unwrap();
    assert!(old.reserve().is_err() && !old.has_sub_page_grants());
}

/// One domain grants and revokes as fast as it can, while others use what they find: no use
/// survives a revocation.
#[test]
fn a_revoked_grant_is_gone() {
    for version in [Version::V1, Version::V2] {
        for locking in [Locking::Table, Locking::Entries, Locking::PerCpu] {
            let machine = Machine::new(Design { locking, ..Design::default() }).unwrap();
            let dom0 = machine.hypervisor(DOM0).unwrap();
            let guest = machine.guest(DomId(1), 2, version).unwrap();
            let reference = guest.grant(DOM0, 1, Extent::Whole, true).unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for n in 0..2u8 {
                    let (dom0, over) = (&dom0, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            copy_in(dom0, DomId(1), reference, u16::from(n) * 8, &[n + 1; 8]);
                        }
                    });
                }
                for _ in 0..300 {
                    while !guest.revoke(reference) {
                        std::thread::yield_now();
                    }
                    guest.memory().write(PAGE as u64, &[0; 16]).unwrap();
                    std::thread::yield_now();
                    let mut bytes = [0; 16];
                    guest.memory().read(PAGE as u64, &mut bytes).unwrap();
                    assert_eq!(bytes, [0; 16], "written after it was revoked");
                    assert_eq!(guest.grant(DOM0, 1, Extent::Whole, true).unwrap(), reference);
                }
                over.store(true, Ordering::Relaxed);
            });
        }
    }
}

#[test]
fn a_table_grows_while_it_is_used() {
    let machine = Machine::new(Design::default()).unwrap();
    let dom0 = machine.hypervisor(DOM0).unwrap();
    let guest = machine.guest(DomId(1), 1, Version::V2).unwrap();
    let first = guest.grant(DOM0, 0, Extent::Whole, true).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(copy_in(&dom0, DomId(1), first, 0, b"x"), Status::DONE);
            }
        });
        let all: Vec<GrantRef> =
            std::iter::from_fn(|| guest.grant(DOM0, 0, Extent::Whole, true).ok()).collect();
        assert_eq!(all.len() as u32, 64 * 256 - 8 - 1);
        for reference in [all[0], all[247], all[8000], *all.last().unwrap()] {
            assert_eq!(copy_in(&dom0, DomId(1), reference, 0, b"x"), Status::DONE, "{reference}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(copy_in(&dom0, DomId(1), GrantRef(64 * 256), 0, b"x"), Status::BAD_REFERENCE);
}

#[test]
fn mappings_are_real_and_bounded() {
    for design in Design::all() {
        let machine = Machine::new(design).unwrap();
        let dom0 = machine.hypervisor(DOM0).unwrap();
        let guest = machine.guest(DomId(1), 40, Version::V1).unwrap();
        let references: Vec<GrantRef> =
            (0..16).map(|page| guest.grant(DOM0, 2 * page, Extent::Whole, true).unwrap()).collect();
        for _ in 0..3 {
            let maps: Vec<Arc<Memory>> =
                (0..20).map(|_| dom0.grants.map(DomId(1), &references).unwrap()).collect();
            for page in 0..16u64 {
                maps[7].write(page * PAGE as u64 + 9, &[page as u8 + 1]).unwrap();
                let mut byte = [0];
                guest.memory().read(2 * page * PAGE as u64 + 9, &mut byte).unwrap();
                assert_eq!(byte, [page as u8 + 1]);
                maps[19].read(page * PAGE as u64 + 9, &mut byte).unwrap();
                assert_eq!(byte, [page as u8 + 1]);
            }
            assert_eq!(machine.mapped(DomId(1)), 320);
        }
        assert_eq!(machine.mapped(DomId(1)), 0, "{design:?}");
        assert!(references.iter().all(|reference| guest.revoke(*reference)));
    }
}
