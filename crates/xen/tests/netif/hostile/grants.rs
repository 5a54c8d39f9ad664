//! Pages that are not granted, or no longer.

use super::*;

#[test]
fn a_page_that_was_never_granted() {
    let (host, reason) = stopped(FrontSpec::default(), |bad, _| {
        let queue = &bad.queues[0];
        queue.data((0, GrantRef(3)), 0, 0, 60);
        queue.push_tx();
    });
    assert!(
        reason.starts_with("queue 0: a page is not granted for what it is used for ("),
        "{reason}"
    );
    assert_eq!(host.machine.refusals()[0].reason, Reason::NeverGranted);
}

#[test]
fn a_page_granted_to_another_domain() {
    let (host, reason) = stopped(FrontSpec::default(), |bad, _| {
        let page = bad.page();
        let reference = bad.guest.grant(hypervisor::DomId(2), page, true);
        bad.queues[0].data((page, reference), 0, 0, 60);
        bad.queues[0].push_tx();
    });
    assert_eq!(reason, "queue 0: a page is not granted for what it is used for (refused)");
    assert_eq!(host.machine.refusals()[0].reason, Reason::NotToUs);
}

/// The receiver posts buffers that are not granted: the receiver is stopped, not the sender.
#[test]
fn buffers_that_are_not_granted() {
    for to in [Some(2), None] {
        let spec = FrontSpec { post: 0, ..FrontSpec::default() };
        let (host, reason) = stopped(spec, |bad, a| {
            let page = bad.page();
            let reference = bad.guest.grant(hypervisor::DomId(to.unwrap_or(0)), page, true);
            if to.is_none() {
                bad.guest.revoke(reference);
            }
            (0..200).for_each(|_| bad.queues[0].post((page, reference)));
            bad.queues[0].push_rx();
            bad.send(&frame(3, 1, 60, 1));
            wait(|| a.received().iter().any(|got| what(&got.frame) == 1));
            a.send(&frame(1, 3, 60, 2));
        });
        assert_eq!(reason, "queue 0: a page is not granted for what it is used for (refused)");
        let expected = if to.is_some() { Reason::NotToUs } else { Reason::Revoked };
        assert!(host.machine.refusals().iter().all(|refusal| refusal.reason == expected));
    }
}

#[test]
fn a_reference_beyond_the_table() {
    let (host, reason) = stopped(FrontSpec::default(), |bad, _| {
        let queue = &bad.queues[0];
        queue.data((0, GrantRef(u32::MAX)), 0, CSUM_BLANK, 60);
        queue.push_tx();
    });
    assert_eq!(
        reason,
        "queue 0: a page is not granted for what it is used for (no such reference)"
    );
    assert_eq!(host.machine.refusals()[0].reason, Reason::BeyondTable);
}

#[test]
fn receive_pages_that_are_granted_for_reading() {
    let (host, reason) =
        stopped(FrontSpec { read_only: true, ..FrontSpec::default() }, |bad, a| {
            bad.send(&frame(3, 1, 60, 1));
            wait(|| a.received().iter().any(|got| what(&got.frame) == 1));
            a.send(&frame(1, 3, 1400, 2));
        });
    assert_eq!(reason, "queue 0: a page is not granted for what it is used for (refused)");
    assert!(host.machine.refusals().iter().all(|refusal| refusal.reason == Reason::ReadOnly));
}

/// The head is granted, the rest is not. That shows only after the receiver's buffers were chosen.
#[test]
fn a_page_revoked_in_flight() {
    let (host, reason) = stopped(FrontSpec::default(), |bad, a| {
        introduce((a, 1), (bad, 3));
        let queue = &bad.queues[0];
        let (head, rest) = (queue.take_page(), queue.take_page());
        queue.write(head, 0, &frame(3, 1, 1000, 7));
        queue.data(head, 0, MORE_DATA, 1018 + 500);
        queue.data(rest, 0, 0, 500);
        assert!(bad.guest.revoke(rest.1));
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a page is not granted for what it is used for (refused)");
    assert!(host.machine.refusals().iter().all(|refusal| refusal.reason == Reason::Revoked));
}

/// The receiver gets its buffers back without a frame.
#[test]
fn a_frame_that_could_not_be_copied_does_not_arrive() {
    let host = Host::new();
    let (a, bad) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Front::connected(&host, 3, FrontSpec::default()),
    );
    introduce((&a, 1), (&bad, 3));
    let queue = &bad.queues[0];
    queue.queue(&frame(3, 1, 1000, 1), 0, None);
    let (head, rest) = (queue.take_page(), queue.take_page());
    queue.write(head, 0, &frame(3, 1, 1000, 2));
    queue.data(head, 0, MORE_DATA, 1018 + 500);
    queue.data(rest, 0, 0, 500);
    bad.guest.revoke(rest.1);
    queue.push_tx();
    host.stopped(&bad);
    let got = a.expect(1);
    assert_eq!(got.iter().map(|got| what(&got.frame)).collect::<Vec<_>>(), [1]);
    let port = host.vif(&a).unwrap().port.unwrap();
    let counters = host.fabric.counters(port);
    assert_eq!(counters[0].dropped(network::count::DropReason::NotGranted), 1);
    assert_eq!(counters[0].rx.frames.get(), 2, "that one, and the greeting");
}

#[test]
fn rings_in_pages_that_are_not_granted() {
    let host = Host::new();
    let mut bad = Front::attached(
        &host,
        3,
        FrontSpec { keys: vec![("rx-ring-ref", "4000")], ..FrontSpec::default() },
    );
    bad.connect();
    assert_eq!(host.stopped(&bad), "domain 3 has not granted page 4000 to us for writing");
    assert_eq!(bad.guest.mapped(), 0);
}
