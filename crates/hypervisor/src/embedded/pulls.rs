//! What guests have copied for them, on all inner designs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::copies::Status;

use super::*;
use crate::domain::{Domain, Extent};
use crate::{Granted, Lender, Pull, Puller};

const DOM0: DomId = DomId(0);
const BEYOND: Status = Status(-10);

fn lender(machine: &Machine) -> Arc<dyn Lender> {
    machine.hypervisor(DOM0).unwrap().grants.lender().unwrap()
}

fn pull(puller: &mut dyn Puller, from: (DomId, GrantRef, u16), to: (u32, u16), len: u16) -> Status {
    let from = Granted { domain: from.0, reference: from.1, offset: from.2 };
    let mut outcomes = Vec::new();
    puller.pull(&[Pull { from, page: to.0, offset: to.1, len }], &mut outcomes).unwrap();
    assert_eq!(outcomes.len(), 1);
    outcomes[0]
}

/// Domain 0 passes on what one guest grants of a page; another fetches that, and not a byte more.
pub fn exchange(machine: &Machine, sender: &dyn Domain, receiver: &dyn Domain) {
    let lender = lender(machine);
    let mut puller = receiver.puller().unwrap();
    sender.memory().write(PAGE as u64, &[9; PAGE]).unwrap();
    sender.memory().write(PAGE as u64 + 100, b"frame").unwrap();
    let granted = sender.grant(DOM0, 1, Extent::Part { offset: 100, len: 5 }, false).unwrap();
    let lent = lender.reserve().unwrap();
    let fetch =
        |puller: &mut dyn Puller, offset, len| pull(puller, (DOM0, lent, offset), (2, 7), len);
    assert_eq!(fetch(&mut *puller, 100, 5), Status::REFUSED, "nothing is lent yet");
    lender.lend(lent, receiver.id(), sender.id(), granted);
    assert_eq!(fetch(&mut *puller, 100, 5), Status::DONE);
    let mut bytes = [0; 7];
    receiver.memory().read(2 * PAGE as u64 + 6, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0frame\0");
    for (offset, len) in [(99, 6), (99, 1), (100, 6), (105, 1), (0, 4096)] {
        assert_eq!(fetch(&mut *puller, offset, len), BEYOND, "{len} bytes from {offset}");
    }
    // Only to pages that it has, and only from others' grants.
    assert_eq!(pull(&mut *puller, (DOM0, lent, 100), (receiver.pages(), 0), 5), Status::BAD_PAGE);
    assert_eq!(pull(&mut *puller, (DOM0, lent, 100), (u32::MAX, 0), 5), Status::BAD_PAGE);
    assert_eq!(pull(&mut *puller, (DOM0, lent, 100), (0, 4092), 5), BEYOND);
    assert_eq!(pull(&mut *puller, (DomId::SELF, GrantRef(1), 0), (0, 0), 5), BEYOND);
    assert_eq!(
        pull(&mut *puller, (sender.id(), granted, 100), (2, 0), 5),
        Status::REFUSED,
        "not directly"
    );
    assert_eq!(
        pull(&mut *sender.puller().unwrap(), (DOM0, lent, 100), (2, 0), 5),
        Status::REFUSED,
        "not to others"
    );
    // More copies than go into one call.
    let from = Granted { domain: DOM0, reference: lent, offset: 100 };
    let many: Vec<Pull> =
        (0..500).map(|n| Pull { from, page: 3, offset: n * 5, len: 5 + n % 2 }).collect();
    let mut outcomes = Vec::new();
    puller.pull(&many, &mut outcomes).unwrap();
    let expected = (0..500).map(|n| if n % 2 == 0 { Status::DONE } else { BEYOND });
    assert!(outcomes.into_iter().eq(expected));
    assert!(lender.recall(lent));
    assert_eq!(fetch(&mut *puller, 100, 5), Status::REFUSED);
    lender.release(lent);
    assert!(sender.revoke(granted), "nothing is left in use");
}

#[test]
fn a_guest_fetches_what_is_passed_on_on_every_design() {
    for design in Design::all() {
        let refusals: Arc<Mutex<Vec<Reason>>> = Arc::default();
        let list = Arc::clone(&refusals);
        let machine = Machine::watched(
            design,
            Some(Box::new(move |refusal| list.lock().unwrap().push(refusal.reason))),
        );
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

/// What was recalled is not read any more, though somebody tries all the time.
#[test]
fn what_is_recalled_is_gone() {
    let machine = Machine::new(Design::default());
    let (lender, over) = (lender(&machine), AtomicBool::new(false));
    let sender = machine.guest(DomId(1), 2, Version::V2).unwrap();
    let receiver = machine.guest(DomId(2), 4, Version::V1).unwrap();
    let (granted, lent) = (sender.reserve().unwrap(), lender.reserve().unwrap());
    std::thread::scope(|scope| {
        for page in 0..2 {
            let mut puller = receiver.puller().unwrap();
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    pull(&mut *puller, (DOM0, lent, 0), (page, 0), 64);
                }
            });
        }
        for round in 0..300u32 {
            sender.memory().write(0, &[1; 64]).unwrap();
            sender.grant_as(granted, DOM0, 0, Extent::Part { offset: 0, len: 64 }).unwrap();
            lender.lend(lent, DomId(2), DomId(1), granted);
            if round % 3 == 0 {
                std::thread::yield_now();
            }
            while !lender.recall(lent) {
                std::thread::yield_now();
            }
            assert!(sender.withdraw(granted), "what lies behind is free first");
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
    let machine = Machine::new(Design::default());
    let lender = lender(&machine);
    let sender = machine.guest(DomId(1), 2, Version::V2).unwrap();
    let receiver = machine.guest(DomId(2), 4, Version::V1).unwrap();
    let granted = sender.grant(DOM0, 0, Extent::Whole, false).unwrap();
    let lent = lender.reserve().unwrap();
    lender.lend(lent, DomId(2), DomId(1), granted);
    let mut puller = receiver.puller().unwrap();
    assert_eq!(pull(&mut *puller, (DOM0, lent, 0), (0, 0), 64), Status::DONE);
    machine.destroy(DomId(1));
    assert_eq!(pull(&mut *puller, (DOM0, lent, 0), (0, 0), 64), Status::BAD_DOMAIN);
    assert!(lender.recall(lent), "nothing is left in use");
}
