//! The whole datapath, between guests made of lists.

use std::collections::HashMap;
use std::sync::Arc;

use crate::peer::{Peer, port, wait};
use frame::{Accepts, Mac};
use network::count::DropReason;
use network::fabric::{Fabric, NewPort, Workers};
use network::poll::PollingPolicy;
use network::restrictions::Restrictions;
use switch::{PortId, PortRule, Vlan};

fn fabric(count: usize) -> Fabric {
    Fabric::start(&Workers { count, ..Workers::default() }).unwrap()
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// A UDP frame with a number in its payload.
fn udp(dst: Mac, src: Mac, port: u16, number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&dst.0[..], &src.0, &[8, 0, 0x45, 0]].concat();
    let total = (len - 14) as u16;
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, src.0[5], 10, 0, 0, dst.0[5]]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 9]);
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(len, number as u8);
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

/// Sum over all queues: in, copies, out, drops.
fn totals(fabric: &Fabric, ports: &[PortId]) -> [u64; 4] {
    let mut sum = [0; 4];
    for queue in ports.iter().flat_map(|&port| fabric.counters(port)) {
        sum[0] += queue.tx.frames.get();
        sum[1] += queue.copies.get();
        sum[2] += queue.rx.frames.get();
        sum[3] += queue.dropped_total();
    }
    sum
}

fn assert_balanced(fabric: &Fabric, ports: &[PortId]) {
    wait(|| {
        let [seen, copies, out, drops] = totals(fabric, ports);
        seen + copies == out + drops
    });
}

fn dropped(fabric: &Fabric, port: PortId, reason: DropReason) -> u64 {
    fabric.counters(port).iter().map(|queue| queue.dropped(reason)).sum()
}

#[test]
fn a_port_without_a_peer_gets_no_copy_of_a_flooded_frame() {
    for workers in [1, 2] {
        let fabric = fabric(workers);
        let ports = [(); 3].map(|()| port(&fabric, PortRule::default()).0);
        let sender = Peer::attach(&fabric, ports[0], 0, Accepts::ALL, usize::MAX);
        let broadcast = || udp(Mac([0xff; 6]), mac(0), 1, 7, 60);
        sender.send([broadcast()]);
        wait(|| sender.completed() == 1);
        assert_eq!(totals(&fabric, &ports), [1, 0, 0, 1], "nobody is connected");
        assert_eq!(dropped(&fabric, ports[0], DropReason::NoReceiver), 1);
        let receiver = Peer::attach(&fabric, ports[1], 0, Accepts::ALL, usize::MAX);
        // The sender's worker may hear of the receiver a little later.
        wait(|| {
            sender.send([broadcast()]);
            !receiver.received().is_empty()
        });
        assert_balanced(&fabric, &ports);
        assert_eq!(totals(&fabric, &ports)[1], 0, "one receives, and there is no second copy");
        assert_eq!(dropped(&fabric, ports[0], DropReason::PortDown), 0);
    }
}

#[test]
fn a_worker_sleeps_again_when_the_port_that_kept_it_awake_is_gone() {
    let fabric = fabric(1);
    let (rule, on_error) = (PortRule::default(), Arc::new(|_, _| {}));
    let spec = NewPort {
        name: "peer".into(),
        rule,
        mtu: None,
        on_error,
        coalescing: None,
        policy: Some(PollingPolicy::Always),
        restrictions: Restrictions::default(),
    };
    let port = fabric.add_port(spec).unwrap();
    let peer = Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX);
    peer.send([udp(mac(1), mac(0), 1, 7, 60)]);
    wait(|| peer.completed() == 1);
    let sleeps = || fabric.worker_counters()[0].run.sleeps.get();
    // The worker may be asleep, for good, as soon as the port is gone.
    let before = sleeps();
    fabric.remove_port(port);
    wait(|| sleeps() > before);
}

#[test]
fn the_first_frame_floods_and_the_answer_does_not() {
    let fabric = fabric(1);
    let ports = [0, 1, 2].map(|_| port(&fabric, PortRule::default()).0);
    let peers = ports.map(|port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX));
    peers[0].send([udp(mac(1), mac(0), 1, 7, 60)]);
    assert_eq!(peers[1].expect(1), [udp(mac(1), mac(0), 1, 7, 60)]);
    assert_eq!(peers[2].expect(1).len(), 1);
    peers[1].send([udp(mac(0), mac(1), 1, 8, 1514)]);
    assert_eq!(peers[0].expect(1), [udp(mac(0), mac(1), 1, 8, 1514)]);
    peers[0].send([udp(mac(1), mac(0), 1, 9, 9014)]);
    assert_eq!(peers[1].expect(1), [udp(mac(1), mac(0), 1, 9, 9014)]);
    assert_balanced(&fabric, &ports);
    assert!(peers[2].received().is_empty(), "a frame for another station was flooded");
}

#[test]
fn flows_keep_their_order_between_workers_and_queues() {
    for (workers, queues) in [(1, [1, 4]), (2, [4, 4]), (2, [1, 4]), (3, [4, 2]), (4, [2, 1])] {
        let fabric = fabric(workers);
        let ports = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
        let attach = |side: usize| -> Vec<Peer> {
            (0..queues[side])
                .map(|index| Peer::attach(&fabric, ports[side], index, Accepts::ALL, usize::MAX))
                .collect()
        };
        let (senders, receivers) = (attach(0), attach(1));
        receivers[0].send([udp(mac(9), mac(1), 1, 0, 60)]);
        wait(|| receivers[0].completed() == 1);
        const EACH: u32 = 2000;
        for (index, sender) in senders.iter().enumerate() {
            for number in 0..EACH {
                let flow = index as u16 * 16 + (number % 8) as u16;
                sender.send([udp(
                    mac(1),
                    mac(index as u8 + 10),
                    flow,
                    number,
                    60 + number as usize % 1400,
                )]);
            }
        }
        let mut flows: HashMap<u16, Vec<u32>> = HashMap::new();
        let mut seen = 0;
        wait(|| {
            for receiver in &receivers {
                for frame in receiver.received() {
                    seen += 1;
                    flows
                        .entry(u16::from_be_bytes([frame[34], frame[35]]))
                        .or_default()
                        .push(number(&frame));
                }
            }
            seen == EACH as usize * senders.len()
        });
        for (flow, numbers) in flows {
            assert!(
                numbers.is_sorted(),
                "{workers} workers, queues {queues:?}: flow {flow} out of order"
            );
        }
        wait(|| senders.iter().all(|sender| sender.completed() == EACH as usize));
        assert_balanced(&fabric, &ports);
    }
}

#[test]
fn a_sender_waits_a_little_for_a_full_receiver_and_then_loses() {
    for workers in [1, 2] {
        let fabric = fabric(workers);
        let ports = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
        let sender = Peer::attach(&fabric, ports[0], 0, Accepts::ALL, usize::MAX);
        let receiver = Peer::attach(&fabric, ports[1], 0, Accepts::ALL, 10);
        receiver.send([udp(mac(9), mac(1), 1, 0, 60)]);
        wait(|| receiver.completed() == 1);
        sender.send((0..100).map(|n| udp(mac(1), mac(0), 1, n, 60)));
        wait(|| sender.completed() == 100);
        let numbers: Vec<u32> = receiver.expect(10).iter().map(|frame| number(frame)).collect();
        assert!(numbers.is_sorted() && numbers.len() >= 10, "{numbers:?}");
        assert_balanced(&fabric, &ports);
        assert!(dropped(&fabric, ports[1], DropReason::RxFull) > 0);
    }
}

#[test]
fn a_receiver_that_keeps_up_in_the_end_loses_nothing() {
    for workers in [1, 2] {
        let fabric = fabric(workers);
        let ports = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
        let sender = Peer::attach(&fabric, ports[0], 0, Accepts::ALL, usize::MAX);
        let receiver = Peer::attach(&fabric, ports[1], 0, Accepts::ALL, 0);
        receiver.send([udp(mac(9), mac(1), 1, 0, 60)]);
        wait(|| receiver.completed() == 1);
        sender.send((0..2000).map(|n| udp(mac(1), mac(0), 1, n, 1514)));
        let mut numbers: Vec<u32> = Vec::new();
        wait(|| {
            // Room for a few at a time, and at once: the sender always finds the receiver full
            // before.
            for _ in 0..100 {
                numbers.extend(receiver.received().iter().map(|frame| number(frame)));
                receiver.post(8);
            }
            sender.completed() == 2000
        });
        numbers.extend(receiver.received().iter().map(|frame| number(frame)));
        assert_balanced(&fabric, &ports);
        let lost = dropped(&fabric, ports[1], DropReason::RxFull);
        assert_eq!(numbers.len() as u64, 2000 - lost);
        assert!(numbers.is_sorted());
    }
}

#[test]
fn a_broken_peer_is_reported_once_and_others_go_on() {
    let fabric = fabric(2);
    let (ports, errors): (Vec<_>, Vec<_>) =
        (0..3).map(|_| port(&fabric, PortRule::default())).unzip();
    let peers: Vec<_> = ports
        .iter()
        .map(|&port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX))
        .collect();
    peers[1].send([udp(mac(9), mac(1), 1, 0, 60)]);
    peers[2].misbehave();
    wait(|| !errors[2].lock().is_empty());
    peers[0].expect(1);
    peers[0].send((0..500).map(|n| udp(mac(1), mac(0), 1, n, 60)));
    assert_eq!(peers[1].expect(500).len(), 500);
    assert_eq!(errors[2].lock().len(), 1);
    assert!(fabric.detach(peers[2].id).is_some(), "a broken pair can be taken back");
    assert_balanced(&fabric, &ports);
}

#[test]
fn queues_come_and_go_under_traffic_and_nothing_is_unaccounted_for() {
    let fabric = fabric(2);
    let ports = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
    let sender = Peer::attach(&fabric, ports[0], 0, Accepts::ALL, usize::MAX);
    let mut sent = 0;
    for round in 0..50 {
        let receiver = Peer::attach(&fabric, ports[1], round % 4, Accepts::ALL, usize::MAX);
        receiver.send([udp(mac(9), mac(1), 1, 0, 60)]);
        for _ in 0..20 {
            sender.send((0..10).map(|n| udp(mac(1), mac(0), n as u16, n, 200)));
            sent += 10;
        }
        assert!(fabric.detach(receiver.id).is_some());
    }
    wait(|| sender.completed() == sent);
    assert_balanced(&fabric, &ports);
}

#[test]
fn vlans_keep_apart_and_tags_are_put_on_and_taken_off() {
    let fabric = fabric(1);
    let rule = |vlan| PortRule { vlan, mac: None };
    let access = port(&fabric, rule(Vlan::Access(10))).0;
    let trunk = port(&fabric, rule(Vlan::Trunk(vec![10, 20]))).0;
    let other = port(&fabric, rule(Vlan::Access(20))).0;
    let [access_peer, trunk_peer, other_peer] =
        [access, trunk, other].map(|port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX));
    let plain = udp(mac(5), mac(0), 1, 3, 400);
    access_peer.send([plain.clone()]);
    let tagged = trunk_peer.expect(1).remove(0);
    assert_eq!(tagged[12..16], [0x81, 0, 0, 10]);
    assert_eq!([&tagged[..12], &tagged[16..]].concat(), plain);
    let answer = udp(mac(0), mac(5), 1, 4, 1000);
    trunk_peer.send([[&answer[..12], &[0x81, 0, 0, 10], &answer[12..]].concat()]);
    assert_eq!(access_peer.expect(1), [answer]);
    assert!(other_peer.received().is_empty());
    assert_balanced(&fabric, &[access, trunk, other]);
}

#[test]
fn a_locked_port_sends_from_its_own_address_only() {
    let fabric = fabric(1);
    let locked = port(&fabric, PortRule { mac: Some(mac(1)), ..PortRule::default() }).0;
    let open = port(&fabric, PortRule::default()).0;
    let [a, b] =
        [locked, open].map(|port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX));
    a.send([udp(mac(9), mac(2), 1, 1, 60), udp(mac(9), mac(1), 1, 2, 60)]);
    assert_eq!(number(&b.expect(1)[0]), 2);
    assert_balanced(&fabric, &[locked, open]);
    assert_eq!(dropped(&fabric, locked, DropReason::SourceLocked), 1);
}
