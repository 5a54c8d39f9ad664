//! Workers that their owner drives.

use std::time::{Duration, Instant};

use crate::peer::{Peer, port};
use frame::Accepts;
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use switch::PortRule;

/// A fabric of two workers, and two ports, one on each.
fn two_workers() -> (Fabric, [ManualWorker; 2], [Peer; 2]) {
    let (fabric, workers) = Fabric::manual(&Workers { count: 2, ..Workers::default() }).unwrap();
    let [mut one, mut other] = <[ManualWorker; 2]>::try_from(workers).ok().unwrap();
    let peers = [0, 1].map(|_| {
        let port = port(&fabric, PortRule::default()).0;
        one.run_while(|| {
            other.run_while(|| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX))
        })
    });
    (fabric, [one, other], peers)
}

/// A broadcast frame.
fn frame() -> Vec<u8> {
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame
}

#[test]
fn nothing_moves_unless_a_worker_is_driven() {
    let (_fabric, [mut one, mut other], [a, b]) = two_workers();
    let mut now = Instant::now();
    a.send([frame()]);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(b.received().len(), 0, "no worker was driven");
    let mut rounds = 0;
    while b.received().is_empty() {
        now += Duration::from_micros(10);
        one.run_once(now);
        other.run_once(now);
        rounds += 1;
        assert!(rounds < 100, "it is handed off from one worker to the other in a few rounds");
    }
}

#[test]
fn a_queue_that_was_armed_is_found_again() {
    let (_fabric, [mut one, mut other], [a, b]) = two_workers();
    let mut now = Instant::now();
    // Longer than any worker looks at a queue that has nothing.
    for _ in 0..100 {
        now += Duration::from_millis(1);
        assert!(![one.run_once(now), other.run_once(now)].contains(&true), "nothing to do");
    }
    b.send([frame()]);
    for _ in 0..4 {
        now += Duration::from_millis(1);
        one.run_once(now);
        other.run_once(now);
    }
    assert_eq!(a.received().len(), 1);
}

#[test]
fn a_burst_of_floods_ends_when_their_copies_have_used_it_up() {
    let (fabric, workers) = Fabric::manual(&Workers { count: 1, ..Workers::default() }).unwrap();
    let mut worker = workers.into_iter().next().unwrap();
    let peers: Vec<Peer> = (0..40)
        .map(|_| {
            let port = port(&fabric, PortRule::default()).0;
            worker.run_while(|| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX))
        })
        .collect();
    peers[0].send(vec![frame(); 500]);
    let (mut now, mut most) = (Instant::now(), 0);
    while peers[0].completed() < 500 {
        now += Duration::from_micros(50);
        let before = peers[0].completed();
        assert!(worker.run_once(now), "it goes on at once");
        most = most.max(peers[0].completed() - before);
    }
    // Thirty-nine copies each, which cost four frames; alone on its worker, a port may spend as
    // much as 256 frames of 1514 bytes cost.
    assert!((2..5).contains(&most), "{most} floods in one round");
    peers[1..].iter().for_each(|peer| assert_eq!(peer.received().len(), 500));
}
