//! All generations of the inner design pass the same tests.

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
    // The sender lets the driver have some bytes of a page, and the driver passes them on to domain
    // 2.
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
    // For writing it goes no further than the first grant does.
    let greedy = driver.grant_transitive(DomId(2), DomId(1), first, true).unwrap();
    assert_eq!(copy_in(&hypervisors[2], DomId(3), greedy, 8, b"x"), Status::REFUSED);
    // What was passed on is not passed on further.
    let again = machine.guest(DomId(4), 1, Version::V2).unwrap();
    let to_fourth = driver.grant_transitive(DomId(4), DomId(1), first, false).unwrap();
    let further = again.grant_transitive(DomId(2), DomId(3), to_fourth, false).unwrap();
    assert_eq!(copy_out(&hypervisors[2], DomId(4), further, 8, 5), Err(Status::REFUSED));
    // It ends where it began.
    assert!(sender.revoke(first), "nothing is left in use by what was refused");
    assert_eq!(copy_out(&hypervisors[2], DomId(3), passed, 8, 5), Err(Status::REFUSED));
    assert!(driver.revoke(passed) && driver.revoke(greedy));
    // Nobody gets round in circles.
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

/// A domain that clears an entry which is in use takes nothing away, and gives nobody anything
/// more.
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

/// One reference, under which one thing after the other is granted.
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

/// An action of a domain or its users.
#[derive(Clone, Debug)]
enum Step {
    Grant { to: u16, page: u32, part: Option<(u16, u16)>, writable: bool },
    Revoke(usize),
    Copy { by: usize, grant: usize, offset: u16, len: u16, write: bool },
    Map { by: usize, grants: Vec<usize> },
    Unmap(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let part = proptest::option::of(
        (0u16..4096, 0u16..4096).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b))),
    );
    prop_oneof![
        3 => (0u16..3, 0u32..4, part, any::<bool>())
            .prop_map(|(to, page, part, writable)| Step::Grant { to: to * 2, page, part, writable }),
        2 => (0usize..12).prop_map(Step::Revoke),
        4 => (0usize..2, 0usize..12, 0u16..4000, 1u16..96, any::<bool>())
            .prop_map(|(by, grant, offset, len, write)| Step::Copy { by, grant, offset, len, write }),
        2 => (0usize..2, proptest::collection::vec(0usize..12, 1..4)).prop_map(|(by, grants)| Step::Map { by, grants }),
        2 => (0usize..6).prop_map(Step::Unmap),
    ]
}

/// A whole page: no part is as long.
const WHOLE: (u32, u32) = (0, 4096);

/// A grant as a simple model has it.
#[derive(Clone, Debug)]
struct Given {
    to: DomId,
    page: u32,
    range: (u32, u32),
    writable: bool,
    mapped: usize,
}

/// Runs random steps on a host and on a model; each has to give what the other does.
fn agree(design: Design, version: Version, steps: Vec<Step>) {
    let machine = Machine::new(design).unwrap();
    let users = [0, 2].map(|id| machine.hypervisor(DomId(id)).unwrap());
    let guest = machine.guest(DomId(1), 4, version).unwrap();
    let mut content = vec![0u8; 4 * PAGE];
    let mut given: HashMap<GrantRef, Given> = HashMap::new();
    let mut known: Vec<GrantRef> = Vec::new();
    let mut maps: Vec<(Arc<Memory>, Vec<GrantRef>)> = Vec::new();
    let mut tag = 0u8;
    for step in steps {
        let pick = |n: usize| known.get(n % known.len().max(1)).copied().unwrap_or(GrantRef(8));
        match step {
            Step::Grant { to, page, part, writable } => {
                let part = part.filter(|_| version == Version::V2);
                let extent =
                    part.map_or(Extent::Whole, |(offset, len)| Extent::SubPage { offset, len });
                let range =
                    part.map_or(WHOLE, |(offset, len)| (offset.into(), u32::from(offset + len)));
                let reference = guest.grant(DomId(to), page, extent, writable).unwrap();
                let new = Given { to: DomId(to), page, range, writable, mapped: 0 };
                assert!(given.insert(reference, new).is_none(), "given twice");
                known.push(reference);
            }
            Step::Revoke(n) => {
                let reference = pick(n);
                let used = given.get(&reference).is_some_and(|given| given.mapped > 0);
                assert_eq!(guest.revoke(reference), !used);
                if !used {
                    given.remove(&reference);
                }
            }
            Step::Copy { by, grant, offset, len, write } => {
                let reference = pick(grant);
                let user = &users[by];
                let (start, end) = (u32::from(offset), u32::from(offset) + u32::from(len));
                let expected = match given.get(&reference) {
                    Some(given) if given.to != user.domain || write && !given.writable => {
                        Err(Status::REFUSED)
                    }
                    Some(given) if start < given.range.0 || end > given.range.1 => Err(Status(-10)),
                    Some(given) => Ok(given.page as usize * PAGE + start as usize),
                    None => Err(Status::REFUSED),
                };
                if write {
                    tag = tag.wrapping_add(1);
                    let status = copy_in(user, DomId(1), reference, offset, &vec![tag; len.into()]);
                    assert_eq!(status, expected.err().unwrap_or(Status::DONE));
                    if let Ok(at) = expected {
                        content[at..at + usize::from(len)].fill(tag);
                    }
                } else {
                    let got = copy_out(user, DomId(1), reference, offset, len.into());
                    assert_eq!(got, expected.map(|at| content[at..at + usize::from(len)].to_vec()));
                }
            }
            Step::Map { by, grants } => {
                let references: Vec<GrantRef> = grants.iter().map(|n| pick(*n)).collect();
                let may = |given: &Given| {
                    given.to == users[by].domain && given.writable && given.range == WHOLE
                };
                let expected =
                    references.iter().all(|reference| given.get(reference).is_some_and(may));
                let got = users[by].grants.map(DomId(1), &references);
                assert_eq!(got.is_ok(), expected, "{references:?}");
                if let Ok(memory) = got {
                    references
                        .iter()
                        .for_each(|reference| given.get_mut(reference).unwrap().mapped += 1);
                    maps.push((memory, references));
                }
            }
            Step::Unmap(n) => {
                if !maps.is_empty() {
                    let at = n % maps.len();
                    let (memory, references) = maps.swap_remove(at);
                    for (n, reference) in references.iter().enumerate() {
                        let given = given.get_mut(reference).unwrap();
                        let mut bytes = vec![0; PAGE];
                        memory.read((n * PAGE) as u64, &mut bytes).unwrap();
                        let at = given.page as usize * PAGE;
                        assert!(bytes == content[at..at + PAGE], "what is mapped is the page");
                        given.mapped -= 1;
                    }
                }
            }
        }
        let mapped: usize = given.values().map(|given| given.mapped).sum();
        assert_eq!(machine.mapped(DomId(1)), mapped);
    }
    let mut bytes = vec![0; 4 * PAGE];
    guest.memory().read(0, &mut bytes).unwrap();
    assert!(bytes == content, "nothing else was written");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_use_agrees_with_a_model(
        design in 0usize..54,
        second in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let design = Design::all().nth(design).unwrap();
        agree(design, if second { Version::V2 } else { Version::V1 }, steps);
    }
}
