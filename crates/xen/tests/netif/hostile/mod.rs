//! Frontends that violate the protocol: each is stopped for a reason with a name, and no other vif
//! is affected.

mod control_ring;
mod grants;
mod rings;

use std::time::Duration;

use crate::front::netfront::Netfront;
use crate::front::{
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
