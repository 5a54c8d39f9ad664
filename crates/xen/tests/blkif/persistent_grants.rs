//! Frontends whose grants are persistent: their pages stay mapped, within limits.

use crate::blkfront::{
    ERROR, Front, FrontQueue, Host, INDIRECT, OKAY, READ, SECTOR, Segment, Spec, WRITE, wait,
};
use hypervisor::{DomId, GrantRef, PAGE};
use storage::count::ErrorReason;
use xen::blkif::persistent_grants::{MOST_FAILURES, MOST_PAGES};

fn spec() -> Spec {
    Spec { persistent: true, ..Spec::default() }
}

fn whole(page: GrantRef) -> Segment {
    Segment { page, first: 0, last: 7 }
}

#[track_caller]
fn outcome(queue: &FrontQueue, operation: u8, segments: &[Segment]) -> i16 {
    let id = queue.direct(operation, 0, segments.len() as u8, segments);
    queue.push();
    queue.response(id).1
}

fn is_persistent(host: &Host, front: &Front) -> bool {
    host.vbd(front).unwrap().connected.unwrap().persistent
}

#[test]
fn pages_stay_mapped_until_the_frontend_closes() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, spec());
    assert_eq!(front.back_number("feature-persistent"), Some(1));
    assert!(is_persistent(&host, &front));
    assert_eq!(front.guest.mapped(), 1, "the ring");
    for round in 1..4 {
        // Twenty pages, and a page with the list of them.
        assert_eq!(front.write(0, 0, &[round; 20 * PAGE]), OKAY);
        assert_eq!(front.guest.mapped(), 1 + 20 + 1);
        assert_eq!(front.read(0, 0, 160), (OKAY, vec![round; 20 * PAGE]));
        assert_eq!(front.read(0, 8, 8), (OKAY, vec![round; PAGE]));
    }
    assert_eq!(front.guest.mapped(), 1 + 20 + 1, "pages are mapped once");
    let page = front.queues[0].take_page();
    assert!(!front.guest.revoke(page.1), "a mapped page");
    front.close();
    wait(|| front.guest.mapped() == 0);
    assert_eq!(host.machine.refusals(), []);
}

#[test]
fn both_ends_have_to_agree() {
    let mut host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    assert!(!is_persistent(&host, &front));
    assert_eq!(front.write(0, 0, &[1; PAGE]), OKAY);
    assert_eq!(front.guest.mapped(), 1, "the ring");
    // A frontend that has said yes, and was told no by an earlier daemon, revokes its grants.
    for told in [Some("0"), None] {
        host.stop();
        front.put("feature-persistent", 1);
        match told {
            Some(told) => front.put_back("feature-persistent", told),
            None => front.remove_back("feature-persistent"),
        }
        host.start();
        wait(|| host.is_connected(&front));
        assert!(!is_persistent(&host, &front));
        assert_eq!(front.write(0, 0, &[2; PAGE]), OKAY);
        assert_eq!(front.guest.mapped(), 1, "the ring");
    }
    // One that was told yes does not.
    let front = Front::connected(&host, 2, spec());
    host.stop();
    host.start();
    wait(|| host.is_connected(&front));
    assert!(is_persistent(&host, &front));
    assert_eq!(front.write(0, 0, &[3; PAGE]), OKAY);
    assert_eq!(front.guest.mapped(), 2);
}

#[test]
fn a_page_may_be_named_more_than_once() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, spec());
    let queue = &front.queues[0];
    let page = queue.take_page();
    queue.fill(page, 0, &[9; PAGE]);
    assert_eq!(outcome(queue, WRITE, &[whole(page.1); 11]), OKAY);
    assert_eq!(front.guest.mapped(), 2);
    assert_eq!(front.read(0, 0, 88), (OKAY, vec![9; 11 * PAGE]));
}

/// Pages that cannot be mapped are copied where that is possible. After some failures the queue
/// maps nothing more, and still serves.
#[test]
fn pages_that_cannot_be_mapped_are_copied_or_refused() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, spec());
    let queue = &front.queues[0];
    let (page, list) = (queue.take_page(), queue.take_page());
    let read_only = front.guest.grant(DomId(0), page.0, false);
    queue.fill(page, 0, &[4; PAGE]);
    assert_eq!(outcome(queue, WRITE, &[whole(read_only)]), OKAY);
    assert_eq!(front.guest.mapped(), 1, "the ring");
    assert_eq!(outcome(queue, READ, &[whole(read_only)]), ERROR);
    for wrong in [GrantRef(0), GrantRef(1_000_000), GrantRef(u32::MAX)] {
        for operation in [READ, WRITE] {
            assert_eq!(outcome(queue, operation, &[whole(list.1), whole(wrong)]), ERROR);
            let id = queue.indirect(operation, 0, 1, wrong);
            queue.push();
            assert_eq!(queue.response(id).1, ERROR);
        }
    }
    assert!(host.failed(&front, ErrorReason::Grant) > u64::from(MOST_FAILURES));
    assert_eq!(host.vbd(&front).unwrap().bus.violations, 0);
    let before = front.guest.mapped();
    assert_eq!(front.write(0, 64, &[6; 20 * PAGE]), OKAY);
    assert_eq!(front.read(0, 64, 160), (OKAY, vec![6; 20 * PAGE]));
    assert_eq!(front.guest.mapped(), before, "nothing more is mapped");
    // The failures of a connection are its own.
    front.close();
    let mut front = front;
    front.put("state", 1);
    front.connect();
    assert_eq!(front.write(0, 0, &[7; PAGE]), OKAY);
    assert_eq!(front.guest.mapped(), 2);
}

/// Errors in segments are found also where the data is mapped.
#[test]
fn segments_that_make_no_sense_are_errors() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, spec());
    let queue = &front.queues[0];
    let (page, list) = (queue.take_page().1, queue.take_page());
    for (first, last) in [(0, 255), (1, 0), (0, 8), (255, 255)] {
        let bad = Segment { page, first, last };
        assert_eq!(outcome(queue, WRITE, &[whole(page), bad]), ERROR, "{first} {last}");
        let [a, b, c, d] = page.0.to_le_bytes();
        queue.fill(list, 0, &[a, b, c, d, first, last, 0, 0]);
        let id =
            queue.slot_of([INDIRECT, READ, 1, 0], 0, &[[0; 4], list.1.0.to_le_bytes()].concat());
        queue.push();
        assert_eq!(queue.response(id).1, ERROR, "{first} {last}");
    }
    assert_eq!(host.failed(&front, ErrorReason::BadLength), 8);
    assert_eq!(front.write(0, 0, &[1; SECTOR]), OKAY);
}

/// A frontend that names more and more pages is served by copies in the end.
#[test]
fn the_number_of_mapped_pages_is_limited() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, spec());
    let queue = &front.queues[0];
    let first = front.pages(MOST_PAGES as u32 + 100);
    let pages = (first..).take(MOST_PAGES + 100);
    for (n, page) in pages.enumerate() {
        let reference = front.guest.grant(DomId(0), page, true);
        queue.fill((page, reference), 0, &[n as u8; PAGE]);
        assert_eq!(outcome(queue, WRITE, &[whole(reference)]), OKAY);
        assert_eq!(front.read(0, 0, 8), (OKAY, vec![n as u8; PAGE]));
    }
    // The ring also is mapped.
    assert_eq!(front.guest.mapped(), 1 + MOST_PAGES);
}
