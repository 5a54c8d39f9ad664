//! Copies by hypercalls of guests, on all inner designs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::copies::Status;

use super::*;
use crate::domain::{Domain, Extent};
use crate::{CopyOp, Granted, Hypercalls, TransitiveGrants};

const DOM0: DomId = DomId(0);
const BAD_COPY_ARG: Status = Status(-10);

fn dom0_grants(machine: &Machine) -> Arc<dyn TransitiveGrants> {
    machine.hypervisor(DOM0).unwrap().grants.transitive_grants().unwrap()
}

fn copy_one(
    hypercalls: &mut dyn Hypercalls,
    from: (DomId, GrantRef, u16),
    to: (u32, u16),
    len: u16,
) -> Status {
    let from = Granted { domain: from.0, reference: from.1, offset: from.2 };
    let mut outcomes = Vec::new();
    hypercalls
        .grant_copy(&[CopyOp { from, page: to.0, offset: to.1, len }], &mut outcomes)
        .unwrap();
    assert_eq!(outcomes.len(), 1);
    outcomes[0]
}

/// Domain 0 passes on a part of a page that one guest grants. Another guest can copy only that
/// part.
pub fn exchange(machine: &Machine, sender: &dyn Domain, receiver: &dyn Domain) {
    let transitive = dom0_grants(machine);
    let mut hypercalls = receiver.hypercalls().unwrap();
    sender.memory().write(PAGE as u64, &[9; PAGE]).unwrap();
    sender.memory().write(PAGE as u64 + 100, b"frame").unwrap();
    let granted = sender.grant(DOM0, 1, Extent::SubPage { offset: 100, len: 5 }, false).unwrap();
    let passed = transitive.reserve().unwrap();
    let fetch = |hypercalls: &mut dyn Hypercalls, offset, len| {
        copy_one(hypercalls, (DOM0, passed, offset), (2, 7), len)
    };
    assert_eq!(fetch(&mut *hypercalls, 100, 5), Status::REFUSED, "nothing is passed yet");
    transitive.grant(passed, receiver.id(), sender.id(), granted);
    assert_eq!(fetch(&mut *hypercalls, 100, 5), Status::DONE);
    let mut bytes = [0; 7];
    receiver.memory().read(2 * PAGE as u64 + 6, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0frame\0");
    for (offset, len) in [(99, 6), (99, 1), (100, 6), (105, 1), (0, 4096)] {
        assert_eq!(fetch(&mut *hypercalls, offset, len), BAD_COPY_ARG, "{len} bytes from {offset}");
    }
    // A guest can copy only to its own pages, and only from grants of others.
    assert_eq!(
        copy_one(&mut *hypercalls, (DOM0, passed, 100), (receiver.pages(), 0), 5),
        Status::BAD_PAGE
    );
    assert_eq!(copy_one(&mut *hypercalls, (DOM0, passed, 100), (u32::MAX, 0), 5), Status::BAD_PAGE);
    assert_eq!(copy_one(&mut *hypercalls, (DOM0, passed, 100), (0, 4092), 5), BAD_COPY_ARG);
    assert_eq!(copy_one(&mut *hypercalls, (DomId::SELF, GrantRef(1), 0), (0, 0), 5), BAD_COPY_ARG);
    assert_eq!(
        copy_one(&mut *hypercalls, (sender.id(), granted, 100), (2, 0), 5),
        Status::REFUSED,
        "not directly"
    );
    assert_eq!(
        copy_one(&mut *sender.hypercalls().unwrap(), (DOM0, passed, 100), (2, 0), 5),
        Status::REFUSED,
        "not to others"
    );
    // More copies than go into one call.
    let from = Granted { domain: DOM0, reference: passed, offset: 100 };
    let many: Vec<CopyOp> =
        (0..500).map(|n| CopyOp { from, page: 3, offset: n * 5, len: 5 + n % 2 }).collect();
    let mut outcomes = Vec::new();
    hypercalls.grant_copy(&many, &mut outcomes).unwrap();
    let expected = (0..500).map(|n| if n % 2 == 0 { Status::DONE } else { BAD_COPY_ARG });
    assert!(outcomes.into_iter().eq(expected));
    assert!(transitive.end_access(passed));
    assert_eq!(fetch(&mut *hypercalls, 100, 5), Status::REFUSED);
    transitive.release(passed);
    assert!(sender.revoke(granted), "nothing is left in use");
}

#[test]
fn a_guest_copies_passed_grants_on_every_design() {
    for design in Design::all() {
        let refusals: Arc<Mutex<Vec<Reason>>> = Arc::default();
        let list = Arc::clone(&refusals);
        let machine = Machine::watched(
            design,
            Some(Box::new(move |refusal| list.lock().unwrap().push(refusal.reason))),
        )
        .unwrap();
        let sender = machine.guest(DomId(1), 4, Version::V2).unwrap();
        let receiver = machine.guest(DomId(2), 4, Version::V1).unwrap();
        exchange(&machine, &sender, &receiver);
        let refused =
            |reason| refusals.lock().unwrap().iter().filter(|other| **other == reason).count();
        assert!(refused(Reason::Beyond) >= 5, "{design:?}");
        assert!(
            refused(Reason::NotToUs) >= 2
                && refused(Reason::Revoked) + refused(Reason::NeverGranted) >= 2
        );
    }
}

/// A revoked grant is not read any more, although another domain tries all the time.
#[test]
fn what_is_recalled_is_gone() {
    let machine = Machine::new(Design::default()).unwrap();
    let (transitive, over) = (dom0_grants(&machine), AtomicBool::new(false));
    let sender = machine.guest(DomId(1), 2, Version::V2).unwrap();
    let receiver = machine.guest(DomId(2), 4, Version::V1).unwrap();
    let (granted, passed) = (sender.reserve().unwrap(), transitive.reserve().unwrap());
    std::thread::scope(|scope| {
        for page in 0..2 {
            let mut hypercalls = receiver.hypercalls().unwrap();
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    copy_one(&mut *hypercalls, (DOM0, passed, 0), (page, 0), 64);
                }
            });
        }
        for round in 0..300u32 {
            sender.memory().write(0, &[1; 64]).unwrap();
            sender.grant_at(granted, DOM0, 0, Extent::SubPage { offset: 0, len: 64 }).unwrap();
            transitive.grant(passed, DomId(2), DomId(1), granted);
            if round % 3 == 0 {
                std::thread::yield_now();
            }
            while !transitive.end_access(passed) {
                std::thread::yield_now();
            }
            assert!(sender.end_access(granted), "what lies behind is free first");
            sender.memory().write(0, &[2; 64]).unwrap();
            std::thread::yield_now();
            let mut bytes = [0; 1];
            for page in 0..2 {
                receiver.memory().read(page * PAGE as u64, &mut bytes).unwrap();
                assert_ne!(bytes, [2], "read after it was recalled");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn who_is_gone_has_nothing_to_fetch() {
    let machine = Machine::new(Design::default()).unwrap();
    let transitive = dom0_grants(&machine);
    let sender = machine.guest(DomId(1), 2, Version::V2).unwrap();
    let receiver = machine.guest(DomId(2), 4, Version::V1).unwrap();
    let granted = sender.grant(DOM0, 0, Extent::Whole, false).unwrap();
    let passed = transitive.reserve().unwrap();
    transitive.grant(passed, DomId(2), DomId(1), granted);
    let mut hypercalls = receiver.hypercalls().unwrap();
    assert_eq!(copy_one(&mut *hypercalls, (DOM0, passed, 0), (0, 0), 64), Status::DONE);
    machine.destroy(DomId(1));
    assert_eq!(copy_one(&mut *hypercalls, (DOM0, passed, 0), (0, 0), 64), Status::BAD_DOMAIN);
    assert!(transitive.end_access(passed), "nothing is left in use");
}
