//! Bursts of frames for several queues, mixed.

use std::collections::HashMap;

use crate::peer::host::{Host, MS};
use crate::peer::{Peer, flow_and_number, udp};
use frame::Accepts;
use network::count::DropReason;

/// A sender, station 0, and receivers, stations 1 to `receivers`, each with room for `room`.
fn star(receivers: usize, room: usize) -> (Host, Peer, Vec<Peer>) {
    let mut host = Host::new(1);
    let mut peers: Vec<Peer> = (0..=receivers).map(|_| host.add(usize::MAX)).collect();
    for (station, peer) in peers.iter().enumerate() {
        host.learn(station, peer);
    }
    let sender = peers.remove(0);
    for peer in &peers {
        peer.received();
        peer.limit(room);
    }
    (host, sender, peers)
}

/// Frames to stations 1 to `receivers` in turn, each of one of three flows.
fn in_turn(receivers: u32, count: u32) -> Vec<Vec<u8>> {
    let frame = |n: u32| udp(1 + (n % receivers) as u8, 0, (n / receivers % 3) as u16, n, 60);
    (0..count).map(frame).collect()
}

/// Whether the frames of each flow are in order.
fn is_in_order(frames: &[Vec<u8>]) -> bool {
    let mut last = HashMap::new();
    frames.iter().all(|frame| {
        let (flow, number) = flow_and_number(frame);
        last.insert(flow, number).is_none_or(|before| before < number)
    })
}

#[test]
fn frames_of_a_burst_for_one_queue_are_delivered_together() {
    let (mut host, sender, receivers) = star(8, usize::MAX);
    sender.send(in_turn(8, 64));
    host.rounds(2);
    let mut order: Vec<(u64, usize)> = Vec::new();
    for (at, peer) in receivers.iter().enumerate() {
        let arrived = peer.arrived();
        assert_eq!(arrived.len(), 8);
        let frames: Vec<_> = arrived.iter().map(|(_, frame)| frame.clone()).collect();
        assert!(is_in_order(&frames));
        order.extend(arrived.iter().map(|((stamp, _), _)| (*stamp, at)));
    }
    order.sort_unstable();
    let changes = order.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    assert_eq!(changes, 7, "{order:?}");
}

#[test]
fn a_burst_for_more_queues_than_can_be_grouped_arrives_whole() {
    let (mut host, sender, receivers) = star(20, usize::MAX);
    sender.send(in_turn(20, 6400));
    host.rounds(200);
    for peer in &receivers {
        let frames = peer.received();
        assert_eq!(frames.len(), 320);
        assert!(is_in_order(&frames));
    }
}

#[test]
fn what_full_receivers_leave_waits_for_them_and_keeps_its_order() {
    const FRAMES: u32 = 8000;
    let (mut host, sender, receivers) = star(4, 0);
    sender.send(in_turn(4, FRAMES));
    let mut seen: Vec<Vec<Vec<u8>>> = vec![Vec::new(); receivers.len()];
    // Different receivers are full at different times, none of them for long.
    let mut random = 1u32;
    for _ in 0..4000 {
        for (peer, seen) in receivers.iter().zip(&mut seen) {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seen.extend(peer.received());
            peer.limit((random >> 28) as usize);
        }
        host.rounds(1);
    }
    for (station, seen) in (1..).zip(&seen) {
        let drops = [DropReason::HeadOfLine, DropReason::RxFull, DropReason::HandoffFull];
        let drops: u64 = drops.iter().map(|reason| host.dropped(station, *reason)).sum();
        assert_eq!((seen.len() as u64, drops), (u64::from(FRAMES) / 4, 0), "station {station}");
        assert!(is_in_order(seen), "station {station}");
    }
    assert_eq!(sender.completed(), 1 + FRAMES as usize);
}

#[test]
fn others_of_the_same_burst_do_not_wait_for_a_full_receiver() {
    let (mut host, sender, receivers) = star(2, usize::MAX);
    receivers[0].limit(0);
    sender.send(in_turn(2, 64));
    host.rounds(2);
    assert_eq!(receivers[1].received().len(), 32);
    assert_eq!(sender.completed(), 1, "nothing is complete before all before it is");
    receivers[0].limit(usize::MAX);
    host.rounds(2);
    let frames = receivers[0].received();
    assert_eq!(frames.len(), 32);
    assert!(is_in_order(&frames));
    assert_eq!(sender.completed(), 65);
}

#[test]
fn a_receiver_that_takes_nothing_is_waited_for_until_its_credit_is_used_up() {
    let (mut host, sender, receivers) = star(2, usize::MAX);
    receivers[0].limit(0);
    sender.send(in_turn(2, 6400));
    host.rounds(MS);
    assert_eq!(receivers[1].received().len(), 32, "the next burst waits");
    host.rounds(21 * MS);
    assert_eq!(receivers[1].received().len(), 3168);
    assert_eq!(host.dropped(1, DropReason::HeadOfLine), 3200);
}

#[test]
fn the_backlog_of_a_queue_that_leaves_is_lost_by_name() {
    let (mut host, sender, receivers) = star(2, usize::MAX);
    receivers[0].limit(0);
    sender.send(in_turn(2, 64));
    host.rounds(2);
    host.detach(host.ports[1], &receivers[0]);
    host.rounds(4);
    assert_eq!(host.dropped(0, DropReason::PortDown), 32);
    assert_eq!(sender.completed(), 65);
}

#[test]
fn a_sender_leaves_when_nothing_of_it_is_in_the_backlog_any_more() {
    let (mut host, sender, receivers) = star(2, usize::MAX);
    receivers[0].limit(0);
    sender.send(in_turn(2, 128));
    host.rounds(2);
    // Its receiver has credit for 20 ms, which pass while it leaves.
    let port = host.ports[0];
    host.detach(port, &sender);
    assert_eq!(host.dropped(1, DropReason::HeadOfLine), 32);
    assert_eq!(sender.completed(), 65, "the second burst stays in its ring");
    receivers[0].limit(usize::MAX);
    let again = host.run_while(|fabric| Peer::attach(fabric, port, 0, Accepts::ALL, 0));
    again.send(in_turn(2, 64));
    host.rounds(4);
    assert_eq!(receivers[0].received().len(), 32);
}
