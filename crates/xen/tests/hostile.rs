//! Frontends that violate the protocol: each is stopped for a reason with a name, and no other vif
//! is affected.

mod front;

use std::time::Duration;

use front::netfront::Netfront;
use front::{
    CSUM_BLANK, EXTRA_INFO, Front, FrontSpec, Host, MORE_DATA, REQ_PROD, frame, introduce, wait,
    what,
};
use hypervisor::test::Reason;
use hypervisor::{Channel, GrantRef};

/// Runs `evil` beside two vifs whose traffic must go on without loss. Returns why the hostile vif
/// was stopped.
fn stopped(spec: FrontSpec, evil: impl FnOnce(&Front, &Netfront)) -> (Host, String) {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    introduce((&a, 1), (&b, 2));
    let bad = Front::connected(&host, 3, spec);
    let talk = |numbers: std::ops::Range<u32>| numbers.for_each(|n| a.send(&frame(1, 2, 1400, n)));
    talk(1000..1060);
    evil(&bad, &a);
    talk(1060..1100);
    let reason = host.stopped(&bad);
    talk(1100..1150);
    let mut got = Vec::new();
    wait(|| {
        got.extend(b.received().iter().map(|got| what(&got.frame)).filter(|what| *what >= 1000));
        got.len() >= 150
    });
    assert_eq!(got, (1000..1150).collect::<Vec<_>>());
    assert!(host.connected(&a) && host.connected(&b));
    assert_eq!(bad.guest.mapped(), 0, "nothing of it stays mapped");
    (host, reason)
}

fn stopped_by(evil: impl FnOnce(&Front)) -> String {
    stopped(FrontSpec::default(), |bad, _| evil(bad)).1
}

#[test]
fn a_tx_index_that_jumps() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.set(queue.tx_ring, REQ_PROD, 1000);
        queue.tx_port.notify();
    });
    assert_eq!(reason, "queue 0: request index jumped to 1000, 1000 ahead in a ring of 256");
}

#[test]
fn an_rx_index_that_jumps() {
    // The index is read only when no buffer is left.
    let (_, reason) = stopped(FrontSpec { post: 3, ..FrontSpec::default() }, |bad, a| {
        introduce((a, 1), (bad, 3));
        let queue = &bad.queues[0];
        queue.set(queue.rx_ring, REQ_PROD, 5000);
        (0..9).for_each(|n| a.send(&frame(1, 3, 60, n)));
    });
    assert!(reason.starts_with("queue 0: request index jumped to 5000, "), "{reason}");
}

#[test]
fn indices_that_go_back() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        (0..5).for_each(|_| bad.send(&frame(3, 9, 60, 1)));
        wait(|| queue.is_idle());
        queue.set(queue.tx_ring, REQ_PROD, queue.tx_prod.get() - 3);
        queue.tx_port.notify();
    });
    assert!(reason.starts_with("queue 0: request index jumped to "), "{reason}");
}

/// A frontend overwrites the indices that the backend writes. The backend never reads them back.
#[test]
fn overwritten_backend_indices_are_never_read() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let bad = Front::connected(&host, 3, FrontSpec::default());
    introduce((&a, 1), (&bad, 3));
    let page = bad.queues[0].take_page();
    for ring in [bad.queues[0].tx_ring, bad.queues[0].rx_ring] {
        for at in [front::RSP_PROD, front::REQ_EVENT, front::RSP_EVENT] {
            bad.queues[0].set(ring, at, 0xdead_beef);
        }
    }
    for n in 0..20 {
        a.send(&frame(1, 3, 100, n));
        bad.queues[0].data(page, 0, 0, 100);
        bad.queues[0].push_tx();
        bad.queues[0].tx_port.notify();
    }
    introduce((&a, 1), (&b, 2));
    assert!(host.connected(&bad));
}

#[test]
fn a_slot_beyond_its_page() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 4000, 0, 97);
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a slot reaches beyond its page");
}

#[test]
fn too_many_slots() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, MORE_DATA, 60_000);
        (0..30).for_each(|_| queue.data(queue.take_page(), 0, MORE_DATA, 100));
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a packet in too many slots");
}

#[test]
fn a_packet_without_its_end() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, MORE_DATA, 1000);
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: a packet's last slots are missing");
}

#[test]
fn extras_that_never_end() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, EXTRA_INFO, 60);
        (0..200).for_each(|_| queue.tx_slot([4 | 1 << 8, 0, 0], None));
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: extra info that does not end");
}

#[test]
fn extras_of_no_known_type() {
    let reason = stopped_by(|bad| {
        let queue = &bad.queues[0];
        queue.data(queue.take_page(), 0, EXTRA_INFO, 60);
        queue.tx_slot([9, 0, 0], None);
        queue.push_tx();
    });
    assert_eq!(reason, "queue 0: extra info of an unknown type");
}

#[test]
fn segmentation_of_no_known_kind() {
    for words in [[1 | 1448 << 16, 3, 0], [1 | 1448 << 16, 0, 0], [1, 1, 0]] {
        let reason = stopped_by(|bad| {
            let queue = &bad.queues[0];
            queue.data(queue.take_page(), 0, EXTRA_INFO, 1000);
            queue.tx_slot(words, None);
            queue.push_tx();
        });
        assert_eq!(reason, "queue 0: segmentation extra info makes no sense");
    }
}

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

#[test]
fn an_event_channel_that_is_not_for_us() {
    let host = Host::new();
    let mut bad = Front::attached(
        &host,
        3,
        FrontSpec { keys: vec![("event-channel-rx", "777")], ..FrontSpec::default() },
    );
    bad.connect();
    assert_eq!(host.stopped(&bad), "domain 3 has no event channel 777 that waits for us");
}

#[test]
fn keys_that_change_after_connecting() {
    for (key, value) in [
        ("tx-ring-ref", "9"),
        ("multi-queue-num-queues", "2"),
        ("feature-sg", "0"),
        ("event-channel-tx", "x"),
    ] {
        let reason = stopped_by(|bad| bad.put(key, value));
        assert_eq!(reason, "keys changed after connecting", "{key}");
    }
}

#[test]
fn a_flood_of_control_messages() {
    let spec = FrontSpec { control: true, ..FrontSpec::default() };
    let (_, reason) = stopped(spec, |bad, _| {
        let control_ring = bad.control_ring.as_ref().unwrap();
        let mut posted = 0;
        while bad.back_state() == Some(4) {
            if posted - control_ring.answered() < 100 {
                control_ring.post(4, [0; 3]);
                posted += 1;
            }
        }
    });
    assert_eq!(reason, "control ring: a flood of control messages");
}

#[test]
fn a_control_ring_whose_index_jumps() {
    let spec = FrontSpec { control: true, ..FrontSpec::default() };
    let (_, reason) = stopped(spec, |bad, _| {
        let control_ring = bad.control_ring.as_ref().unwrap();
        bad.queues[0].set(control_ring.ring, REQ_PROD, 129);
        control_ring.port.notify();
    });
    assert_eq!(reason, "control ring: request index jumped to 129, 129 ahead in a ring of 128");
}

#[test]
fn a_flood_of_signals_without_messages() {
    let spec = FrontSpec { control: true, ..FrontSpec::default() };
    let (_, reason) = stopped(spec, |bad, _| {
        while bad.back_state() == Some(4) {
            bad.control_ring.as_ref().unwrap().port.notify();
        }
    });
    assert_eq!(reason, "control ring: a flood of control messages");
}

/// Messages of unknown types, keys and tables of any length, pages that are not granted: each
/// message is answered.
#[test]
fn invalid_control_messages_are_answered() {
    let host = Host::new();
    let bad =
        Front::connected(&host, 3, FrontSpec { control: true, queues: 2, ..FrontSpec::default() });
    let control_ring = bad.control_ring.as_ref().unwrap();
    let page = control_ring.page.1.0;
    let foreign = bad.page();
    let foreign = bad.guest.grant(hypervisor::DomId(7), foreign, true).0;
    let revoked = bad.page();
    let revoked = bad.guest.grant(hypervisor::DomId(0), revoked, true);
    bad.guest.revoke(revoked);
    control_ring.write(&[0xff; 4096]);
    for (kind, data, status) in [
        (0, [0; 3], 1),
        (8, [0; 3], 1),
        (9, [0, page, 1], 1),
        (10, [0, page, 1], 1),
        (u16::MAX, [u32::MAX; 3], 1),
        (2, [1, 0, 0], 1),
        (7, [2, 0, 0], 2),
        (7, [1, 0, 0], 0),
        (2, [16, 0, 0], 2),
        (3, [page, 41, 0], 3),
        (3, [page, u32::MAX, 0], 3),
        (3, [foreign, 40, 0], 2),
        (3, [revoked.0, 40, 0], 2),
        (3, [u32::MAX, 40, 0], 2),
        (5, [129, 0, 0], 2),
        (5, [u32::MAX, 0, 0], 2),
        (5, [128, 0, 0], 0),
        // No such queues, whatever stood there when it was looked at.
        (6, [page, 128, 0], 2),
        (6, [page, 129, 0], 3),
        (6, [page, 1, u32::MAX], 2),
        (6, [page, u32::MAX, 1], 2),
        (6, [foreign, 1, 0], 2),
    ] {
        assert_eq!(control_ring.ask(kind, data).0, status, "message {kind} with {data:?}");
    }
    assert!(host.connected(&bad));
}

/// A table changes while it is read. The values that were checked are used.
#[test]
fn a_mapping_that_changes_while_it_is_read() {
    let host = Host::new();
    let a = Netfront::connected(&host, 1, FrontSpec::default());
    let bad =
        Front::connected(&host, 3, FrontSpec { control: true, queues: 2, ..FrontSpec::default() });
    introduce((&a, 1), (&bad, 3));
    let control_ring = bad.control_ring.as_ref().unwrap();
    assert_eq!(
        [
            control_ring.ask(7, [1, 0, 0]),
            control_ring.ask(2, [15, 0, 0]),
            control_ring.ask(5, [128, 0, 0])
        ],
        [(0, 0); 3]
    );
    let (memory, at) =
        (std::sync::Arc::clone(bad.guest.memory()), u64::from(control_ring.page.0) * 4096);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let scribbler = std::thread::spawn(move || {
        let tables =
            [[1u32, 1_000_000], [0, 1]].map(|pair| pair.map(u32::to_le_bytes).concat().repeat(64));
        let running = || matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        while running() {
            tables.iter().for_each(|table| memory.write(at, table).unwrap());
        }
    });
    for n in 0..100 {
        assert!(matches!(control_ring.ask(6, [control_ring.page.1.0, 128, 0]).0, 0 | 2));
        let mut frame = front::tcp::tcp(1, 3, 100);
        frame[35] = n;
        a.queues[0].send(&frame, CSUM_BLANK, None);
        assert_eq!(bad.expect(1)[0].frame, frame);
    }
    drop(stop);
    scribbler.join().unwrap();
    assert!(host.connected(&bad));
}

/// Event channels that are closed, and event channels that are signalled all the time.
#[test]
fn event_channels_closed_and_flooded() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let mut bad = Front::connected(&host, 3, FrontSpec::default());
    introduce((&a, 1), (&b, 2));
    introduce((&a, 1), (&bad, 3));
    for n in 0..200 {
        (0..500).for_each(|_| bad.queues[0].tx_port.notify());
        a.send(&frame(1, 2, 1400, n));
        assert_eq!(what(&b.expect(1)[0].frame), n);
    }
    // Closed, while frames are under way both ways.
    (0..40).for_each(|n| bad.queues[0].queue(&frame(3, 1, 3000, n), 0, None));
    bad.queues[0].push_tx();
    bad.queues[0].tx_port = bad.guest.open(hypervisor::DomId(0)).unwrap();
    bad.queues[0].rx_port = Some(bad.guest.open(hypervisor::DomId(0)).unwrap());
    (0..40).for_each(|n| a.send(&frame(1, 3, 3000, n)));
    introduce((&a, 1), (&b, 2));
    // The guest gets no signals; nothing else changes.
    assert!(host.connected(&bad));
    bad.begin_anew();
    bad.connect();
    wait(|| host.connected(&bad));
    introduce((&a, 1), (&bad, 3));
}

/// Rings whose grants are revoked stay mapped. Two vifs of one domain may name the same rings; that
/// affects only their domain.
#[test]
fn rings_that_are_revoked_or_shared() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let bad = Front::connected(&host, 3, FrontSpec::default());
    assert!(
        !bad.guest.revoke(bad.queues[0].tx_ring.1) && !bad.guest.revoke(bad.queues[0].rx_ring.1)
    );
    introduce((&a, 1), (&bad, 3));
    let mut twin = bad.sibling(1, FrontSpec::default());
    wait(|| twin.back_state() == Some(2));
    twin.make();
    twin.put("tx-ring-ref", bad.queues[0].tx_ring.1);
    twin.put("rx-ring-ref", bad.queues[0].rx_ring.1);
    twin.put("state", 4);
    wait(|| host.vif(&twin).is_some_and(|vif| vif.connections > 0));
    // Of its own, since a page that it received into holds the first guest's address: sent again,
    // it would teach the switch that this guest is here.
    let page = bad.queues[0].take_page();
    bad.queues[0].write(page, 0, &frame(3, 3, 60, 0));
    for n in 0..200 {
        bad.queues[0].data(page, 0, 0, 60);
        bad.queues[0].push_tx();
        bad.queues[0].tx_port.notify();
        twin.queues[0].tx_port.notify();
        a.send(&frame(1, 3, 100, n));
        b.received();
    }
    // Frames that were flooded when the hostile vifs' ports were stopped may have left no room.
    wait(|| a.queues[0].is_idle());
    b.received();
    introduce((&a, 1), (&b, 2));
    assert!(host.connected(&a) && host.connected(&b));
}

/// A frontend changes its store entries as fast as it can. Other vifs are not delayed.
#[test]
fn a_flood_of_changes_in_the_store() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let bad = Front::connected(&host, 3, FrontSpec::default());
    for n in 0..300 {
        (0..20).for_each(|m| bad.put("request-multicast-control", (n + m) % 2));
        if n % 100 == 0 {
            introduce((&a, 1), (&b, 2));
        }
    }
    let late = Netfront::connected(&host, 4, FrontSpec::default());
    introduce((&late, 4), (&b, 2));
    assert!(host.connected(&bad));
}

#[test]
fn a_stopped_vif_may_connect_again_later() {
    let host = Host::new();
    let mut bad = Front::connected(&host, 3, FrontSpec::default());
    let b = Netfront::connected(&host, 2, FrontSpec::default());
    for n in 1..4 {
        bad.queues[0].data((0, GrantRef(5000)), 0, 0, 60);
        bad.queues[0].push_tx();
        wait(|| host.vif(&bad).unwrap().violations == n);
        bad.put("state", 6);
        wait(|| bad.back_state() == Some(6));
        bad.put("state", 1);
        bad.connect();
        wait(|| host.connected(&bad));
        introduce((&bad, 3), (&b, 2));
        assert_eq!(host.vif(&bad).unwrap().reason, None);
    }
}

/// A frontend writes random words into its rings while other vifs have traffic.
#[test]
fn random_words_in_rings_do_no_harm() {
    let host = Host::new();
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut bad = Front::attached(&host, 3, FrontSpec { queues: 2, ..FrontSpec::default() });
    for round in 0..7 {
        bad.connect();
        wait(|| bad.back_state() != Some(2));
        for _ in 0..800 {
            let queue = &bad.queues[random() as usize % 2];
            let ring = if random() % 2 == 0 { queue.tx_ring } else { queue.rx_ring };
            let at = if random() % 8 == 0 { random() % 4 * 4 } else { 64 + random() % 300 * 4 };
            let value = match random() % 3 {
                0 => random() as u32,
                1 => random() as u32 % 300,
                _ => random() as u32 & 0x000f_0fff,
            };
            queue.set(ring, at, value);
            queue.tx_port.notify();
            a.send(&frame(1, 3, 100, 1));
            // Some are flooded.
            b.received();
        }
        // Frames for unknown stations were flooded here, too, and may have left no room.
        wait(|| a.queues[0].is_idle());
        b.received();
        introduce((&a, 1), (&b, 2));
        wait(|| host.vif(&bad).is_some());
        bad.put("state", 6);
        wait(|| bad.back_state() == Some(6));
        bad.put("state", 1);
        assert!(host.connected(&a) && host.connected(&b), "round {round}");
    }
}

#[test]
fn revoking_grants_under_traffic_stops_only_that_vif() {
    let host = Host::with(4, Duration::from_secs(60));
    let (a, b) = (
        Netfront::connected(&host, 1, FrontSpec::default()),
        Netfront::connected(&host, 2, FrontSpec::default()),
    );
    let bad = Front::connected(&host, 3, FrontSpec::default());
    introduce((&a, 1), (&b, 2));
    introduce((&a, 1), (&bad, 3));
    let pages: Vec<_> = bad.queues[0].posted.borrow().iter().flatten().copied().collect();
    for n in 0..50 {
        a.queues[0].queue(&frame(1, 3, 1400, n), 0, None);
        a.queues[0].queue(&frame(1, 2, 1400, 1000 + n), 0, None);
    }
    a.queues[0].push_tx();
    for page in pages {
        bad.guest.revoke(page.1);
    }
    // Perhaps all of them arrived before that.
    a.send(&frame(1, 3, 1400, 99));
    assert_eq!(
        host.stopped(&bad),
        "queue 0: a page is not granted for what it is used for (refused)"
    );
    let mut got = Vec::new();
    wait(|| {
        got.extend(b.received().into_iter().map(|got| what(&got.frame)));
        got.len() >= 50
    });
    assert_eq!(got, (1000..1050).collect::<Vec<_>>());
    assert!(host.connected(&a) && host.connected(&b));
}
