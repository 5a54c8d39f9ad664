//! Vifs that come and go, and daemons that start again.

use super::*;

#[test]
fn a_closed_frontend_can_connect_again() {
    let host = Host::new();
    let (mut a, b) =
        (Netfront::connected(&host, 1, many(2)), Netfront::connected(&host, 2, many(1)));
    introduce((&a, 1), (&b, 2));
    for queues in [1, 4, 2] {
        a.put("state", 5);
        wait(|| a.back_state() == Some(5));
        a.put("state", 6);
        wait(|| a.back_state() == Some(6));
        assert_eq!(a.guest.mapped(), 0, "all rings are let go of");
        a.put("state", 1);
        wait(|| a.back_state() == Some(2));
        a.spec.queues = queues;
        if queues == 1 {
            a.put("multi-queue-num-queues", 1);
        }
        a.connect();
        wait(|| host.connected(&a));
        assert_eq!(a.back_state(), Some(4));
        introduce((&a, 1), (&b, 2));
        assert_eq!(host.vif(&a).unwrap().queues, queues as usize);
    }
    assert_eq!(host.vif(&a).unwrap().connections, 4);
}

#[test]
fn several_vifs_of_a_domain_come_and_go() {
    let host = Host::new();
    let a = Netfront::connected(&host, 1, many(1));
    let b = Netfront::connected(&host, 2, many(1));
    let mut second = a.sibling(1, many(2));
    second.connect();
    introduce((&a, 1), (&b, 2));
    introduce((&second, 3), (&b, 2));
    second.device(|device| host.machine.detach(device)).unwrap();
    // As a frontend does that is told so.
    second.put("state", 6);
    wait(|| second.back_state() == Some(6));
    second.device(|device| host.machine.forget(device)).unwrap();
    wait(|| host.vif(&second).is_none());
    assert!(second.back_key("state").is_none(), "what was removed stays away");
    introduce((&a, 1), (&b, 2));
    second.attach();
    second.connect();
    introduce((&second, 3), (&b, 2));
}

#[test]
fn a_domain_destroyed_under_traffic_leaves_nothing() {
    let host = Host::new();
    let (a, b) = (Netfront::connected(&host, 1, many(1)), Netfront::connected(&host, 2, many(1)));
    for domain in 3..8 {
        let doomed = Netfront::connected(&host, domain, many(2));
        introduce((&doomed, domain as u8), (&b, 2));
        for n in 0..60 {
            doomed.queues[1].queue(&frame(domain as u8, 2, 3000, n), 0, None);
            a.queues[0].queue(&frame(1, domain as u8, 3000, n), 0, None);
        }
        doomed.queues[1].push_tx();
        a.queues[0].push_tx();
        host.machine.destroy(doomed.guest.id());
        wait(|| doomed.back_state() == Some(6));
        assert_eq!(host.vif(&doomed).unwrap().violations, 0, "that is no fault");
        doomed.device(|device| host.machine.forget(device)).unwrap();
        wait(|| host.vif(&doomed).is_none());
        b.received();
        introduce((&a, 1), (&b, 2));
    }
}

#[test]
fn a_restarted_daemon_continues_from_the_rings() {
    let mut host = Host::new();
    let (a, b) = (Netfront::connected(&host, 1, many(4)), Netfront::connected(&host, 2, many(1)));
    introduce((&a, 1), (&b, 2));
    for round in 0..3 {
        for n in 0..40 {
            a.queues[3].send(&frame(1, 2, 2000, n), 0, None);
        }
        b.expect(40);
        host.restart();
        // Sent while nobody may be there, to receive them or to pass them on.
        for n in 0..20 {
            a.queues[3].send(&frame(1, 2, 2000, 100 + n), 0, None);
        }
        wait(|| host.connected(&a) && host.connected(&b));
        // The new daemon knows nobody. A flood is dropped where a worker has too much under way.
        greet((&b, 2), (&a, 1));
        for n in 0..20 {
            a.queues[3].send(&frame(1, 2, 2000, 200 + n), 0, None);
        }
        let mut numbers: Vec<u32> = Vec::new();
        wait(|| {
            numbers.extend(b.received().iter().map(|got| what(&got.frame)));
            numbers.last() == Some(&219)
        });
        assert!(numbers.is_sorted(), "round {round}: {numbers:?}");
        assert_eq!(numbers.iter().filter(|number| **number >= 200).count(), 20);
        wait(|| a.queues[3].is_idle());
        assert_eq!((a.back_state(), b.back_state()), (Some(4), Some(4)));
        introduce((&a, 1), (&b, 2));
    }
}

/// The previous daemon was killed between writing responses and publishing them.
#[test]
fn written_but_unpublished_responses_are_no_violation() {
    let mut host = Host::new();
    // Whoever receives is taken up first.
    let (b, a) = (Front::connected(&host, 1, many(1)), Front::connected(&host, 2, many(1)));
    introduce((&a, 1), (&b, 2));
    host.service = None;
    // Three packets of three slots each. Two have arrived, of which four slots are answered.
    for n in 0..3 {
        a.queues[0].queue(&frame(1, 2, 10_000, n), 0, None);
    }
    a.queues[0].push_tx();
    let queue = &a.queues[0];
    let first = queue.get(queue.tx_ring, 8);
    for number in first..first + 4 {
        let slot = 64 + 12 * u64::from(number % 256);
        let id = queue.get(queue.tx_ring, slot + 8) & 0xffff;
        queue.set(queue.tx_ring, slot, id);
        queue.set(queue.tx_ring, slot + 4, queue.get(queue.tx_ring, slot + 4) | 1 << 31);
    }
    // Buffers for a frame and a half, the first with a segmentation extra.
    let queue = &b.queues[0];
    let first = queue.get(queue.rx_ring, 8);
    for (number, word) in (first..).zip([4 | 8 | 4096 << 16, 1, 900 << 16, 4 | 4096 << 16]) {
        let slot = 64 + 8 * u64::from(number % 256);
        queue.set(queue.rx_ring, slot + 4, word);
    }
    host.restart();
    wait(|| host.connected(&a) && host.connected(&b));
    // The third arrives, and nothing else.
    wait(|| a.queues[0].is_idle());
    let got = b.expect(1);
    assert_eq!(got.iter().map(|got| what(&got.frame)).collect::<Vec<_>>(), [2]);
    assert_eq!(
        b.queues[0].spoiled.get(),
        4,
        "buffers that were being answered, and came back empty"
    );
    assert_eq!(host.vif(&a).unwrap().violations + host.vif(&b).unwrap().violations, 0);
    assert!(a.queues[0].outcomes.borrow().iter().all(|outcome| *outcome == 0));
    // The console's and the store's pages are granted, too.
    assert!(host.machine.refusals().iter().all(|refusal| refusal.reference.0 > 8));
}

#[test]
fn a_vif_connects_after_its_hotplug_script() {
    let host = Host::new();
    let mut a = Netfront::attached(&host, 1, many(1));
    let store = host.machine.hypervisor(hypervisor::DomId(0)).store;
    store.nodes().remove(&format!("{}/hotplug-status", a.back())).unwrap();
    a.connect();
    let b = Netfront::connected(&host, 2, many(1));
    assert!(host.connected(&b) && !host.connected(&a));
    store.nodes().put(&format!("{}/hotplug-status", a.back()), "connected").unwrap();
    wait(|| host.connected(&a));
    introduce((&a, 1), (&b, 2));
}
