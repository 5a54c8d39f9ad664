//! Senders and receivers that misuse passed grants.

use super::*;

#[test]
fn a_receiver_cannot_copy_beyond_its_frame() {
    in_time(|host, a, b| {
        let third = station_with(host, 3, &FrontendConfig::default(), GUEST);
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        assert_eq!(passed_frame.offset, 128);
        host.machine.refusals();
        let refused = |by: &Station, offset, len| {
            let status = pull(by, passed_frame.passed, offset, len);
            (
                status,
                host.machine
                    .refusals()
                    .into_iter()
                    .map(|Refusal { reason, .. }| reason)
                    .collect::<Vec<_>>(),
            )
        };
        // All of the frame, any number of times.
        for _ in 0..2 {
            assert_eq!(refused(b, 0, 1018), (Status::DONE, vec![]));
        }
        for (offset, len) in [(0, 1019), (1018, 1), (128, 891), (4095, 1)] {
            assert_eq!(
                refused(b, offset, len),
                (Status(-10), vec![Reason::Beyond]),
                "{len} bytes from {offset}"
            );
        }
        assert_eq!(refused(&third, 128, 10), (Status::REFUSED, vec![Reason::NotToUs]));
        assert_eq!(refused(a, 128, 10), (Status::REFUSED, vec![Reason::NotToUs]));
        for other in [0, 7, 9000, u32::MAX]
            .map(GrantRef)
            .into_iter()
            .filter(|other| *other != passed_frame.passed)
        {
            assert_ne!(pull(b, other, 0, 10), Status::DONE);
        }
        assert!(arrival(host, b, 2)? == frame(1, 2, 1000, 0));
        idle(a);
        host.machine.refusals();
        assert_eq!(refused(b, 128, 10), (Status::REFUSED, vec![Reason::Revoked]));
        Some(())
    });
}

/// The granted part does not begin at the start of its page.
#[test]
fn a_receiver_cannot_copy_before_its_frame() {
    in_time(|host, a, b| {
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        // The sender says: only its payload.
        let part = hypervisor::domain::Extent::SubPage { offset: 128, len: 890 };
        let page = (a.queues[0].tx.place().unwrap() / 4096) as u32 - 1;
        assert!(a.guest.domain().end_access(passed_frame.granted));
        a.guest.domain().grant_at(passed_frame.granted, DomId(0), page, part).unwrap();
        host.machine.refusals();
        for (offset, len) in [(127, 1), (127, 891), (0, 128)] {
            assert_eq!(
                pull(b, passed_frame.passed, offset, len),
                Status(-10),
                "{len} bytes from {offset}"
            );
            assert_eq!(host.machine.refusals().pop().unwrap().reason, Reason::Beyond);
        }
        assert!(arrival(host, b, 2)? == frame(1, 2, 1000, 0));
        Some(())
    });
}

/// The head that was checked is delivered, whatever the sender writes over it.
#[test]
fn a_sender_rewrites_its_headers() {
    in_time(|host, a, b| {
        let at = a.queues[0].tx.place().unwrap();
        pass_frame(a, b, &frame(1, 2, 1000, 0));
        a.guest.memory().write(at, &[0xee; 300]).unwrap();
        let got = arrival(host, b, 2)?;
        let sent = frame(1, 2, 1000, 0);
        assert_eq!((&got[..128], &got[300..]), (&sent[..128], &sent[300..]));
        assert_eq!(got[128..300], [0xee; 172], "its payload is its own");
        Some(())
    });
}

#[test]
fn a_sender_revokes_its_grant() {
    in_time(|host, a, b| {
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        assert!(a.guest.domain().end_access(passed_frame.granted));
        wait(|| {
            assert!(b.received().is_empty());
            b.queues[0].rx.missed() == 1
        });
        idle(a);
        assert_eq!(drops(host, 2, DropReason::NotFetched), 0);
        exchange(host, a, b)
    });
}

#[test]
fn a_receiver_that_never_fetches_gets_copies() {
    in_time(|host, a, b| {
        let mut c = station_with(host, 3, &FrontendConfig::default(), GUEST);
        reach(&mut c, a, (3, 1));
        reach(a, &mut c, (1, 3));
        let before = host.machine.counts().guest_copied_bytes;
        // All of them at once: the first is not recalled before the last is passed.
        (0..10).for_each(|n| a.queue_on(0, &frame(1, 2, 1000, n), Meta::default()));
        a.send(&frame(1, 3, 1000, 99));
        assert_eq!(arrival(host, &mut c, 3)?, frame(1, 3, 1000, 99), "others go on");
        idle(a);
        if drops(host, 3, DropReason::NotFetched) > 0 {
            return None;
        }
        assert_eq!(drops(host, 2, DropReason::NotFetched), 10);
        // From here on it gets copies.
        (10..20).for_each(|n| a.send(&frame(1, 2, 1000, n)));
        idle(a);
        let got: Vec<u32> = b.expect(10).iter().map(|(_, bytes, _)| what(bytes)).collect();
        assert_eq!(got, (10..20).collect::<Vec<_>>());
        assert_eq!(b.queues[0].rx.missed(), 10);
        assert_eq!(drops(host, 2, DropReason::NotFetched), 10);
        let fetched = host.machine.counts().guest_copied_bytes - before;
        assert_eq!(fetched, 1018 - 128, "what the other one fetched");
        // Until it has earned some time.
        wait(|| {
            a.send(&frame(1, 2, 60_000, 0));
            b.received();
            host.machine.counts().guest_copied_bytes > before + 1018
        });
        Some(())
    });
}

/// Posting the slots again releases the grant, so the receiver can no longer copy the frame.
#[test]
fn a_receiver_posts_slots_again_before_it_has_fetched() {
    in_time(|host, a, b| {
        let passed_frame = pass_frame(a, b, &frame(1, 2, 1000, 0));
        let rx = b.queues[0].rx.ring().page().addr(0);
        let posted = word(b, rx, 0);
        b.guest.memory().write(rx, &(posted + 2).to_le_bytes()).unwrap();
        b.queues[0].rx.ring().channel().notify();
        idle(a);
        assert_eq!(pull(b, passed_frame.passed, 128, 890), Status::REFUSED);
        assert_eq!(drops(host, 2, DropReason::NotFetched), 0, "as it said");
        Some(())
    });
}

#[test]
fn senders_and_receivers_are_destroyed() {
    let host = Host::new();
    let mut c = station_with(&host, 3, &FrontendConfig::default(), GUEST);
    // Each takes 128 references of the daemon's table with it, of which there are some 16000.
    for round in 0..150 {
        let (mut a, mut b) = pair(&host);
        if round % 10 == 0 {
            introduce(&mut a, &mut b);
            (0..5).for_each(|n| a.send(&frame(1, 2, 5000, n)));
            host.machine.destroy(DomId(if round % 20 == 0 { 1 } else { 2 }));
            if round % 20 == 0 {
                let got = b.received().len() as u64;
                assert!(got + b.queues[0].rx.missed() <= 5);
            } else {
                idle(&mut a);
            }
            let (mut other, own) = if round % 20 == 0 { (b, 2) } else { (a, 1) };
            reach(&mut other, &mut c, (own, 3));
            reach(&mut c, &mut other, (3, own));
        }
        for id in [1, 2].map(DomId) {
            host.machine.destroy(id);
            let (class, frontend, backend) = ("vif", id, DomId(0));
            let device = Device {
                class,
                handle: 0,
                frontend,
                backend,
                frontend_keys: &[],
                backend_keys: &[],
            };
            host.machine.forget(&device).unwrap();
        }
        wait(|| host.service.as_ref().unwrap().vifs().len() == 1);
    }
    let (mut a, mut b) = pair(&host);
    introduce(&mut a, &mut b);
    let before = host.machine.counts().guest_copied_bytes;
    // References were not used up.
    wait(|| {
        a.send(&frame(1, 2, 5000, 0));
        b.received();
        host.machine.counts().guest_copied_bytes > before
    });
}
