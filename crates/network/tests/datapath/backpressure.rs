//! Receivers that are full, and who waits for them.
//!
//! The workers are driven by the test, and the time that they see is made: nothing depends on how
//! fast the host is.

use std::time::Duration;

use crate::peer::host::{Host, MS, ROUND};
use crate::peer::{Peer, udp};
use frame::Accepts;
use network::count::DropReason;
use network::fabric::InFlight;

/// Stations 0, 1 and 2: a sender, a receiver with room, and one that gets `room`.
fn three(workers: usize, room: usize) -> (Host, Peer, Peer, Peer) {
    let mut host = Host::new(workers);
    let sender = host.add(usize::MAX);
    let good = host.add(usize::MAX);
    let full = host.add(usize::MAX);
    for (station, peer) in [(0, &sender), (1, &good), (2, &full)] {
        host.learn(station, peer);
    }
    full.received();
    full.limit(room);
    good.received();
    (host, sender, good, full)
}

/// Frames to station 1 and 2 in turn.
fn mixed(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| udp(1 + (n % 2) as u8, 0, 1, n, 1514)).collect()
}

#[test]
fn a_receiver_that_takes_nothing_holds_others_up_for_its_credit_only() {
    let (mut host, sender, good, _full) = three(1, 0);
    sender.send(mixed(20_000));
    // The credit is 20 ms; the rest goes at once, 64 frames a round.
    host.rounds(25 * MS);
    assert_eq!(good.received().len(), 10_000);
    assert_eq!(host.dropped(2, DropReason::HeadOfLine), 10_000);
    assert_eq!(host.dropped(1, DropReason::RxFull), 0);
}

#[test]
fn a_slow_receiver_does_not_set_the_pace_of_others() {
    let (mut host, sender, good, slow) = three(1, 0);
    // Its credit is used up first.
    sender.send(mixed(64));
    host.rounds(25 * MS);
    good.received();
    let before = host.waited(2);
    sender.send(mixed(40_000));
    for _ in 0..50 {
        slow.post(42);
        host.rounds(MS);
    }
    let seen = good.received().len();
    assert_eq!(seen, 20_000, "the others are not kept waiting");
    let taken = slow.received().len();
    assert!(taken > 100, "the slow one gets what it takes: {taken}");
    // A tenth of the 220 ns that a frame takes.
    let waited = host.waited(2) - before;
    assert!(waited <= Duration::from_nanos(25 * taken as u64) + 2 * ROUND, "{waited:?}");
}

#[test]
fn a_trickle_takes_nothing_from_others() {
    let (mut host, sender, good, trickle) = three(1, 0);
    sender.send(mixed(100_000));
    // One buffer each 19 ms, as was enough once to stop all others.
    for _ in 0..10 {
        host.rounds(19 * MS);
        trickle.post(1);
    }
    assert_eq!(good.received().len(), 50_000);
    assert!(host.waited(2) < Duration::from_millis(45), "{:?}", host.waited(2));
}

#[test]
fn a_queue_that_comes_again_has_no_new_credit() {
    let (mut host, sender, good, full) = three(1, 0);
    sender.send(mixed(64));
    host.rounds(25 * MS);
    good.received();
    let id = full.id;
    let port = host.ports[2];
    host.run_while(|fabric| {
        fabric.detach(id).unwrap();
    });
    let _again = host.run_while(|fabric| Peer::attach(fabric, port, 0, Accepts::ALL, 0));
    let before = host.waited(2);
    sender.send(mixed(6400));
    host.rounds(2 * MS);
    assert_eq!(good.received().len(), 3200);
    assert_eq!(host.waited(2), before);
}

#[test]
fn a_sole_receiver_that_is_slow_loses_nothing() {
    let (mut host, sender, good, slow) = three(1, 0);
    // Nothing to anybody else for a second.
    host.now += Duration::from_secs(2);
    drop(good);
    sender.send((0..2000).map(|n| udp(2, 0, 1, n, 60)));
    for _ in 0..110 {
        slow.post(20);
        host.rounds(MS);
    }
    assert_eq!(slow.received().len(), 2000);
    assert_eq!(host.dropped(2, DropReason::RxFull), 0);
    assert_eq!(host.dropped(2, DropReason::HeadOfLine), 0);
}

#[test]
fn a_sole_receiver_that_takes_a_trickle_does_not_keep_a_ring_full() {
    let (mut host, sender, _good, trickle) = three(1, 0);
    host.now += Duration::from_secs(2);
    sender.send((0..256).map(|n| udp(2, 0, 1, n, 60)));
    for _ in 0..5 {
        host.rounds(10 * MS);
        trickle.post(1);
    }
    let completed = sender.completed() as u64;
    assert_eq!(completed, 1 + 256, "the ring is empty");
    assert!(host.dropped(2, DropReason::RxFull) >= 240);
}

#[test]
fn a_full_receiver_of_another_worker_holds_up_nobody_else() {
    let mut host = Host::new(2);
    // Senders 0 and 2 are on one worker, receivers 1 and 3 on the other.
    let peers: Vec<Peer> = (0..4).map(|_| host.add(usize::MAX)).collect();
    for (station, peer) in peers.iter().enumerate() {
        host.learn(station, peer);
    }
    let placed = |at: usize| host.fabric.placement(host.ports[at])[0].1;
    assert_eq!([0, 1, 2, 3].map(placed), [0, 1, 0, 1]);
    host.rounds(100);
    peers.iter().for_each(|peer| {
        peer.received();
    });
    peers[3].limit(0);
    host.now += Duration::from_secs(2);
    // Many batches for the full one, and others behind them.
    peers[0].send((0..20_000).map(|n| udp(3, 0, 1, n, 60)));
    host.rounds(10);
    peers[2].send((0..20_000).map(|n| udp(1, 2, 1, n, 60)));
    host.rounds(30 * MS);
    assert_eq!(peers[1].received().len(), 20_000);
    let drops = [DropReason::HeadOfLine, DropReason::RxFull].map(|why| host.dropped(3, why));
    assert_eq!(drops.iter().sum::<u64>(), 20_000);
}

/// A sender, 64 of whose frames are on their way to a full receiver of another worker.
fn on_the_way() -> (Host, Peer, Peer) {
    let (mut host, sender, full, _) = three(2, usize::MAX);
    full.limit(0);
    host.now += Duration::from_secs(2);
    sender.send((0..64).map(|n| udp(1, 0, 1, n, 60)));
    host.rounds(10);
    assert_eq!(sender.completed(), 1);
    (host, sender, full)
}

#[test]
fn queues_leave_for_another_process_once_their_frames_are_taken() {
    let (mut host, _, full) = on_the_way();
    let left = host.withdraw(InFlight::Wait, |round| {
        if round == 1000 {
            full.limit(usize::MAX);
        }
    });
    assert_eq!(left, Ok(()));
    assert_eq!(full.received().len(), 64);
}

#[test]
fn a_receiver_that_takes_nothing_keeps_no_queue_from_leaving_for_another_process() {
    let (mut host, sender, full) = on_the_way();
    assert_eq!(host.withdraw(InFlight::Drop, |_| ()), Ok(()));
    let drops = [DropReason::HeadOfLine, DropReason::RxFull].map(|why| host.dropped(1, why));
    assert_eq!((full.received().len(), drops.iter().sum()), (0, 64));
    // Back at their workers, frames wait again.
    host.run_while(|fabric| fabric.release());
    host.now += Duration::from_secs(2);
    sender.send((0..64).map(|n| udp(1, 0, 1, n, 60)));
    host.rounds(10);
    full.limit(usize::MAX);
    host.rounds(10);
    assert_eq!(full.received().len(), 64);
}
