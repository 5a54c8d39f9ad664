//! Vifs on a host for tests: well-behaved frontends, and all that a toolstack does.

mod connections;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::front::netfront::Netfront;
use crate::front::tcp::{is_right, tcp};
use crate::front::{CSUM_BLANK, Front, FrontSpec, Host, frame, greet, introduce, wait, what};
use xen::netif::status::Condition;

fn many(queues: u32) -> FrontSpec {
    FrontSpec { queues, ..FrontSpec::default() }
}

#[test]
fn frames_go_both_ways() {
    let host = Host::new();
    let mut all = Vec::new();
    for (domain, spec) in [(1, many(1)), (3, FrontSpec { split: false, ..many(1) }), (5, many(4))] {
        let a = Netfront::connected(&host, domain, spec.clone());
        let b = Netfront::connected(&host, domain + 1, spec);
        let (x, y) = (domain as u8, domain as u8 + 1);
        introduce((&a, x), (&b, y));
        for len in [0, 42, 60, 110, 111, 1500, 4000, 4096, 9000, 65_000] {
            a.send(&frame(x, y, len, 7));
            assert_eq!(b.expect(1)[0].frame, frame(x, y, len, 7), "{len} bytes");
            b.send(&frame(y, x, len, 8));
            assert_eq!(a.expect(1)[0].frame, frame(y, x, len, 8), "{len} bytes");
        }
        wait(|| a.queues[0].is_idle() && b.queues[0].is_idle());
        assert_eq!(a.queues[0].troubles() + b.queues[0].troubles(), 0);
        // What is flooded comes to all of them.
        all.push((a, b));
    }
    assert_eq!(host.machine.refusals(), []);
}

#[test]
fn payload_is_copied_once_by_one_copy_with_both_ends_granted() {
    let host = Host::new();
    let (a, b) = (Netfront::connected(&host, 1, many(1)), Netfront::connected(&host, 2, many(1)));
    introduce((&a, 1), (&b, 2));
    let before = host.machine.counts();
    for n in 0..64 {
        a.queues[0].queue(&frame(1, 2, 1400, n), 0, None);
    }
    a.queues[0].push_tx();
    b.expect(64);
    let counts = host.machine.counts();
    let frames = 64 * 1418;
    // The payload once, and each head twice: here, and there.
    assert_eq!(counts.bytes - before.bytes, frames + 64 * 128);
    assert_eq!(counts.both_granted - before.both_granted, 64);
    assert_eq!(counts.copies - before.copies, 3 * 64);
    assert_eq!(counts.maps, before.maps, "nothing is mapped but rings");
    assert!(counts.batches - before.batches <= 64, "{} batches", counts.batches - before.batches);
}

/// Many frames on all queues both ways: none is lost, and each flow stays in order.
#[test]
fn nothing_is_lost_between_many_queues() {
    let host = Host::new();
    let (a, b) = (Netfront::connected(&host, 1, many(4)), Netfront::connected(&host, 2, many(2)));
    introduce((&a, 1), (&b, 2));
    const EACH: u32 = 400;
    let mut got: HashMap<(u8, u32), Vec<u32>> = HashMap::new();
    let mut count = 0;
    let mut note = |front: &Netfront| {
        for received in front.received() {
            let (from, number) = (received.frame[11], what(&received.frame));
            let len = received.frame.len() - 18;
            assert_eq!(received.frame, frame(from, 3 - from, len, number));
            got.entry((from, number >> 16)).or_default().push(number & 0xffff);
            count += 1;
        }
        count
    };
    for n in 0..EACH {
        for (front, from) in [(&a, 1), (&b, 2)] {
            for (q, queue) in (0..).zip(&front.queues) {
                queue.send(
                    &frame(from, 3 - from, (n as usize * 37 + 1) % 5000, q << 16 | n),
                    0,
                    None,
                );
            }
        }
        // No more under way than there are buffers: a receiver that is full for long loses frames.
        wait(|| {
            note(&a);
            note(&b) + 96 >= 6 * n as usize
        });
    }
    wait(|| {
        note(&a);
        note(&b) == EACH as usize * 6
    });
    for ((from, queue), numbers) in got {
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "queue {queue} of {from}");
    }
}

#[test]
fn offloads_pass_through_or_are_done_in_software() {
    let host = Host::new();
    let a = Netfront::connected(&host, 1, many(1));
    let plain = FrontSpec { sg: false, gso: false, csum: false, ..many(1) };
    let (b, c) = (Netfront::connected(&host, 2, many(1)), Netfront::connected(&host, 3, plain));
    introduce((&a, 1), (&b, 2));
    introduce((&a, 1), (&c, 3));
    a.queues[0].send(&tcp(1, 2, 30_000), CSUM_BLANK, Some((1, 1448)));
    let got = &b.expect(1)[0];
    assert_eq!((&got.frame, got.blank, got.gso), (&tcp(1, 2, 30_000), true, Some((1, 1448))));
    // Without a word about the checksum: it is put right.
    a.queues[0].send(&tcp(1, 2, 30_000), 0, Some((1, 1448)));
    let got = &b.expect(1)[0];
    assert_eq!((&got.frame, got.blank, got.gso), (&tcp(1, 2, 30_000), true, Some((1, 1448))));
    a.queues[0].send(&tcp(1, 2, 1000), CSUM_BLANK, None);
    let got = &b.expect(1)[0];
    assert_eq!((&got.frame, got.blank, got.gso), (&tcp(1, 2, 1000), true, None));
    // To one who takes neither, as finished frames.
    a.queues[0].send(&tcp(1, 3, 30_000), CSUM_BLANK, Some((1, 1448)));
    let got = c.expect(30_000usize.div_ceil(1448));
    assert!(got.iter().all(|got| !got.blank && got.gso.is_none() && is_right(&got.frame)));
    let payload: Vec<u8> = got.iter().flat_map(|got| got.frame[54..].to_vec()).collect();
    assert_eq!(payload, tcp(1, 3, 30_000)[54..]);
    a.queues[0].send(&tcp(1, 3, 2000), CSUM_BLANK, None);
    let got = &c.expect(1)[0];
    assert!(!got.blank && is_right(&got.frame));
}

#[test]
fn the_number_of_queues_can_be_limited() {
    let host = Host::new();
    let mut a = Front::attached(
        &host,
        1,
        FrontSpec { back_keys: vec![("ringmain/queues", "2")], ..many(3) },
    );
    wait(|| a.back_state() == Some(2));
    assert_eq!(a.back_key("multi-queue-max-queues").unwrap(), "2");
    a.connect();
    assert_eq!(host.stopped(&a), "multi-queue-num-queues is 3, 1 to 2 are possible");
}

#[test]
fn vifs_of_other_scripts_are_left_alone() {
    let host = Host::new();
    let a = Front::attached(
        &host,
        1,
        FrontSpec { back_keys: vec![("script", "/etc/xen/scripts/vif-bridge")], ..many(1) },
    );
    let b = Front::connected(&host, 2, many(1));
    assert!(host.connected(&b));
    assert!(host.vif(&a).is_none());
    assert_eq!(a.back_state(), Some(1));
}

#[test]
fn vlans_separate() {
    let host = Host::new();
    let in_vlan = |vlan| FrontSpec { back_keys: vec![("ringmain/vlan", vlan)], ..many(1) };
    let a = Netfront::connected(&host, 1, in_vlan("10"));
    let b = Netfront::connected(&host, 2, in_vlan("20"));
    let c = Netfront::connected(&host, 3, in_vlan("10"));
    let trunk = Netfront::connected(
        &host,
        4,
        FrontSpec { back_keys: vec![("ringmain/trunk", "10:20")], ..many(1) },
    );
    introduce((&a, 1), (&c, 3));
    a.send(&[&[255; 6], &frame(1, 0, 60, 5)[6..]].concat());
    assert_eq!(c.expect(1).len(), 1);
    wait(|| trunk.received().iter().any(|got| got.frame[12..16] == [0x81, 0, 0, 10]));
    assert_eq!(b.received(), []);
}

#[test]
fn only_requested_multicast_groups_are_delivered() {
    let host = Host::new();
    let a = Front::connected(&host, 1, many(1));
    let b = Front::connected(
        &host,
        2,
        FrontSpec { keys: vec![("request-multicast-control", "1")], ..many(1) },
    );
    introduce((&a, 1), (&b, 2));
    let to_group = |last: u8, n| [&[1, 0, 0x5e, 0, 0, last], &frame(1, 0, 60, n)[6..]].concat();
    let tell = |kind: u32, last: u32| {
        // A dummy request, and the group.
        b.queues[0].tx_slot([0, 8 << 16, 0], None);
        b.queues[0].tx_slot([kind | 1 << 16, 0x5e | last << 24, 0], None);
        b.queues[0].push_tx();
        wait(|| b.queues[0].is_idle());
    };
    let come = |n| {
        (1..4).for_each(|last| a.send(&to_group(last, n)));
        a.send(&[&[255; 6], &frame(1, 0, 60, n)[6..]].concat());
        a.send(&frame(1, 2, 60, n));
        let got = std::cell::RefCell::new(Vec::new());
        wait(|| {
            got.borrow_mut().extend(b.received().into_iter().map(|got| got.frame[5]));
            got.borrow().last() == Some(&2)
        });
        got.into_inner()
    };
    assert_eq!(come(0), [255, 2]);
    tell(2, 3);
    assert_eq!(come(1), [3, 255, 2]);
    tell(2, 1);
    tell(3, 3);
    assert_eq!(come(2), [1, 255, 2]);
    b.put("request-multicast-control", 0);
    wait(|| come(3).len() == 5);
}

#[test]
fn the_rate_is_for_the_whole_vif() {
    let host = Host::new();
    // 4 MB a second, in steps of 50 ms.
    let a = Netfront::connected(
        &host,
        1,
        FrontSpec { back_keys: vec![("rate", "200000,50000")], ..many(4) },
    );
    let b = Netfront::connected(&host, 2, many(1));
    introduce((&a, 1), (&b, 2));
    let (start, mut bytes) = (Instant::now(), 0);
    let mut note = || {
        bytes += b.received().iter().map(|got| got.frame.len()).sum::<usize>();
        let allowed = start.elapsed().as_secs_f64() * 4e6 + 200_000.0;
        assert!(bytes as f64 <= allowed + 1000.0, "{bytes} of {allowed}");
        bytes
    };
    for n in 0..50 {
        a.queues.iter().for_each(|queue| queue.send(&frame(1, 2, 8000, n), 0, None));
        note();
    }
    wait(|| note() == 200 * 8018);
}

#[test]
fn a_stalled_frontend_is_detected_and_delays_no_other() {
    let host = Host::with(4, Duration::from_millis(50));
    let (a, b) = (Front::connected(&host, 1, many(1)), Front::connected(&host, 2, many(1)));
    let stuck = Front::connected(&host, 3, FrontSpec { post: 20, ..many(1) });
    introduce((&a, 1), (&b, 2));
    introduce((&stuck, 3), (&b, 2));
    stuck.queues[0].repost.set(false);
    let is = |condition| host.vif(&stuck).unwrap().condition == condition;
    let mut n = 0;
    wait(|| {
        // To the one, and to the other.
        n += 1;
        a.send(&frame(1, 3, 4000, n));
        a.send(&frame(1, 2, 4000, n));
        stuck.received();
        wait(|| b.received().iter().any(|got| what(&got.frame) == n));
        is(Condition::Stalled)
    });
    stuck.queues[0].repost.set(true);
    for _ in 0..100 {
        let page = stuck.page();
        stuck.queues[0].post((page, stuck.guest.grant(hypervisor::DomId(0), page, true)));
    }
    stuck.queues[0].push_rx();
    wait(|| {
        a.send(&frame(1, 3, 4000, 0));
        stuck.received();
        is(Condition::Connected)
    });
}

#[test]
fn a_guest_steers_what_it_receives() {
    let host = Host::new();
    let a = Front::connected(&host, 1, many(2));
    let b = Front::connected(&host, 2, FrontSpec { control: true, ..many(4) });
    introduce((&a, 1), (&b, 2));
    let control_ring = b.control_ring.as_ref().unwrap();
    assert_eq!(control_ring.ask(1, [0; 3]), (1, 0), "no algorithm yet");
    assert_eq!(control_ring.ask(7, [1, 0, 0]), (0, 0));
    assert_eq!(control_ring.ask(1, [0; 3]), (0, 15));
    let key: Vec<u8> = (0..40).map(|i| i * 5 + 1).collect();
    control_ring.write(&key);
    assert_eq!(control_ring.ask(3, [control_ring.page.1.0, 40, 0]), (0, 0));
    assert_eq!(control_ring.ask(5, [8, 0, 0]), (0, 0));
    let table = [3u32, 1, 2, 0, 0, 1, 3, 2];
    control_ring.write(&table.map(u32::to_le_bytes).concat());
    assert_eq!(control_ring.ask(6, [control_ring.page.1.0, 8, 0]), (0, 0));
    assert_eq!(control_ring.ask(2, [3, 0, 0]), (0, 0));
    assert_eq!(control_ring.ask(6, [9999, 8, 0]), (2, 0), "not granted");
    let toeplitz = xen::netif::toeplitz::Toeplitz::new(&key);
    for port in 0..200u16 {
        let mut frame = tcp(1, 2, 100);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        let input = [&frame[26..34], &frame[34..38]].concat();
        let queue = table[toeplitz.hash(&input) as usize % 8] as usize;
        a.queues[usize::from(port % 2)].send(&frame, CSUM_BLANK, None);
        wait(|| b.queues[queue].received().iter().any(|got| got.frame == frame));
        assert!(b.received().is_empty());
    }
}
