//! Frontends of vbds that break the rules, beside one that does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::blkfront::{
    DISCARD, EOPNOTSUPP, ERROR, FLUSH, Front, FrontQueue, Host, INDIRECT, OKAY, READ, SECTOR,
    SECTORS, Segment, Spec, WRITE, wait,
};
use hypervisor::{GrantRef, PAGE};
use ring::xen::REQ_PROD;
use storage::count::ErrorReason;
use xen::blkif::layout::Layout;

/// The response to one request.
fn outcome(queue: &FrontQueue, id: u64) -> i16 {
    queue.push();
    queue.response(id).1
}

#[test]
fn segments_that_make_no_sense_are_errors_of_their_request() {
    let host = Host::new(1);
    for (domain, layout) in [(1, Layout::Bits64), (2, Layout::Bits32)] {
        let front =
            Front::connected(&host, domain, Spec { layout: Some(layout), ..Spec::default() });
        let queue = &front.queues[0];
        let page = queue.take_page().1;
        let segment = |first, last| Segment { page, first, last };
        let mut bad = 0;
        for operation in [READ, WRITE] {
            for (first, last) in [(0, 255), (1, 0), (255, 0), (0, 8), (8, 8), (255, 255)] {
                let id = queue.direct(operation, 0, 1, &[segment(first, last)]);
                assert_eq!(outcome(queue, id), ERROR, "{first} {last}");
                bad += 1;
            }
            for count in [0, 12, 255] {
                let id = queue.direct(operation, 0, count, &[segment(0, 7); 11]);
                assert_eq!(outcome(queue, id), ERROR, "{count} segments");
                bad += 1;
            }
            // Also with the segments in a page, of which one is wrong.
            let list = queue.take_page();
            for count in [0, 257, 512, u16::MAX] {
                let id = queue.indirect(operation, 0, count, list.1);
                assert_eq!(outcome(queue, id), ERROR, "{count} segments");
                bad += 1;
            }
            let id = queue.indirect(operation, 0, 256, list.1);
            assert_eq!(outcome(queue, id), ERROR, "no page");
            for sector in [SECTORS, SECTORS - 7, u64::MAX, u64::MAX / 512, 1 << 63] {
                let id = queue.direct(operation, sector, 1, &[segment(0, 7)]);
                assert_eq!(outcome(queue, id), ERROR, "sector {sector}");
            }
        }
        assert_eq!(host.failed(&front, ErrorReason::BadLength), bad);
        assert_eq!(host.failed(&front, ErrorReason::OutOfRange), 10);
        for head in [[2, 1, 0, 0], [4, 0, 0, 0], [DISCARD, 1, 0, 0], [INDIRECT, 6, 1, 0], [99; 4]] {
            let id = queue.slot_of(head, 0, &[0; 80]);
            assert_eq!(outcome(queue, id), EOPNOTSUPP, "{head:?}");
        }
        let id = queue.slot_of([FLUSH, 1, 0, 0], 0, &[0; 80]);
        assert_eq!(outcome(queue, id), ERROR);
        assert_eq!(host.vbd(&front).unwrap().bus.violations, 0);
        assert_eq!(front.write(0, 0, &[1; PAGE]), OKAY);
    }
}

#[test]
fn pages_that_are_not_granted_are_errors_of_their_request() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    let queue = &front.queues[0];
    assert_eq!(front.write(0, 0, &[7; 8 * PAGE]), OKAY);
    let [revoked, granted] = [queue.take_page(), queue.take_page()];
    // In this order: a reference that is free is the next one to be used.
    let read_only = front.guest.grant(hypervisor::DomId(0), granted.0, false);
    assert!(front.guest.revoke(revoked.1));
    let whole = |page| Segment { page, first: 0, last: 7 };
    let mut lost = 0;
    for page in [revoked.1, GrantRef(0), GrantRef(1_000_000), GrantRef(u32::MAX)] {
        for operation in [READ, WRITE] {
            let id = queue.direct(operation, 0, 2, &[whole(granted.1), whole(page)]);
            assert_eq!(outcome(queue, id), ERROR);
            let id = queue.indirect(operation, 0, 1, page);
            assert_eq!(outcome(queue, id), ERROR);
            lost += 2;
        }
    }
    let id = queue.direct(READ, 0, 1, &[whole(read_only)]);
    assert_eq!(outcome(queue, id), ERROR);
    let id = queue.direct(WRITE, 64, 1, &[whole(read_only)]);
    assert_eq!(outcome(queue, id), OKAY);
    wait(|| host.failed(&front, ErrorReason::Grant) == lost + 1);
    // A write of which a part could not be had has written nothing.
    assert_eq!(front.read(0, 0, 64), (OKAY, vec![7; 8 * PAGE]));
}

/// The list of an indirect request is rewritten all the time. Whatever was read of it, only what
/// was checked is used.
#[test]
fn a_list_that_is_rewritten_under_way_reaches_nothing_else() {
    let host = Host::new(1);
    let front = Front::connected(&host, 1, Spec::default());
    let queue = &front.queues[0];
    let (list, page) = (queue.take_page(), queue.take_page());
    let memory = Arc::clone(front.guest.memory());
    let ends = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ends, at) = (Arc::clone(&ends), u64::from(list.0) * PAGE as u64);
        let [a, b, c, d] = page.1.0.to_le_bytes();
        std::thread::spawn(move || {
            let (right, wrong) = ([a, b, c, d, 0, 7, 0, 0], [0xff, 0xff, 0xff, 0xff, 0, 255, 0, 0]);
            while !ends.load(Ordering::Relaxed) {
                for bytes in [right.repeat(256), wrong.repeat(256), right.repeat(256)] {
                    memory.write(at, &bytes).unwrap();
                }
            }
        })
    };
    let mut seen = [0, 0];
    while seen.contains(&0) || seen.iter().sum::<u32>() < 200 {
        let ids: Vec<u64> = (0..8).map(|n| queue.indirect(WRITE, n * 64, 12, list.1)).collect();
        queue.push();
        for id in ids {
            match queue.response(id) {
                (WRITE, OKAY) => seen[0] += 1,
                (WRITE, ERROR) => seen[1] += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(host.vbd(&front).unwrap().bus.violations, 0);
}

#[test]
fn an_index_that_cannot_be_stops_the_vbd_and_no_other() {
    let host = Host::new(2);
    let good = Front::connected(&host, 1, Spec::default());
    for (domain, index) in [(2, 1000), (3, u32::MAX), (4, 33)] {
        let bad = Front::connected(&host, domain, Spec { queues: 2, ..Spec::default() });
        bad.queues[1].set(REQ_PROD, index);
        hypervisor::Channel::notify(&bad.queues[1].port);
        wait(|| host.vbd(&bad).is_some_and(|vbd| vbd.bus.violations == 1));
        let reason = host.vbd(&bad).unwrap().bus.reason.unwrap();
        assert!(reason.starts_with("queue 1: "), "{reason}");
        assert_eq!(bad.back_state(), Some(5));
        wait(|| bad.guest.mapped() == 0);
        assert_eq!(good.write(0, 8, &[1; SECTOR]), OKAY);
    }
}

/// More is published than there is room for data, by each of several queues.
#[test]
fn requests_beyond_the_room_for_data_wait() {
    let host = Host::new(2);
    let spec = Spec { queues: 2, order: Some(4), ..Spec::default() };
    let front = Front::connected(&host, 1, spec);
    let list_of = |queue: &FrontQueue| {
        let (list, page) = (queue.take_page(), queue.take_page());
        let [a, b, c, d] = page.1.0.to_le_bytes();
        queue.fill(page, 0, &[5; PAGE]);
        queue.fill(list, 0, &[a, b, c, d, 0, 7, 0, 0].repeat(256));
        list.1
    };
    // 1 MiB each.
    let lists = [list_of(&front.queues[0]), list_of(&front.queues[1])];
    let send = |n: usize, i: u64| front.queues[n].indirect(WRITE, i % 2 * 2048, 256, lists[n]);
    let ids: Vec<Vec<u64>> = (0..2).map(|n| (0..40).map(|i| send(n, i)).collect()).collect();
    front.queues.iter().for_each(FrontQueue::push);
    for (queue, ids) in front.queues.iter().zip(ids) {
        ids.into_iter().for_each(|id| assert_eq!(queue.response(id), (WRITE, OKAY)));
    }
    assert!(std::fs::read(&front.image).unwrap().iter().all(|byte| *byte == 5));
}

#[test]
fn connections_that_come_and_go_leave_nothing() {
    let host = Host::new(2);
    let mut front = Front::connected(&host, 1, Spec { queues: 2, ..Spec::default() });
    let good = Front::connected(&host, 2, Spec::default());
    for round in 0..3 {
        for queue in &front.queues {
            (0..16).for_each(|n| drop(queue.start_write(n * 8, &[round; PAGE])));
            queue.push();
        }
        // Without waiting for anything, and then as it should be.
        for state in [6, 1, 3, 4, 5, 1, 6, 4, 1, 6] {
            front.put("state", state);
        }
        wait(|| front.back_state() == Some(6));
        front.put("state", 1);
        front.connect();
        assert_eq!(front.write(0, 800, &[round; PAGE]), OKAY);
        assert_eq!(good.write(0, 800, &[round; PAGE]), OKAY);
    }
    front.close();
    wait(|| front.guest.mapped() == 0);
    assert_eq!(host.vbd(&good).unwrap().bus.violations, 0);
}
