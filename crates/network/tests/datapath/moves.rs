//! Queue pairs that change workers under traffic: nothing is lost, nothing overtakes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::peer::{Peer, Stamp, flow_and_number, port, udp, wait};
use fastrand::Rng;
use frame::{Accepts, Headers};
use network::balance::Balancer;
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use network::queue_selector::QueueSelector;
use network::topology::QueueId;
use proptest::prelude::*;
use switch::{PortId, PortRule};

/// A flow's frames that come to another queue than before have waited at least so long.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// Ports with a guest each; station `n` is port `n`.
struct Net {
    fabric: Fabric,
    ports: Vec<PortId>,
    /// By port and queue.
    peers: Vec<Vec<Peer>>,
}

impl Net {
    fn new(workers: usize, queues: &[u16]) -> Self {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let ports: Vec<_> = queues.iter().map(|_| port(&fabric, PortRule::default()).0).collect();
        let attach = |(&port, &queues): (&PortId, &u16)| {
            (0..queues)
                .map(|index| Peer::attach(&fabric, port, index, Accepts::ALL, usize::MAX))
                .collect()
        };
        let peers: Vec<Vec<Peer>> = ports.iter().zip(queues).map(attach).collect();
        let net = Net { fabric, ports, peers };
        // All stations are known before anything counts.
        for (own, peers) in (0..).zip(&net.peers) {
            peers[0].send([udp(200, own, 1, 0, 60)]);
            wait(|| peers[0].completed() == 1);
        }
        wait(|| net.is_balanced());
        net.peers.iter().flatten().for_each(|peer| drop(peer.received()));
        net
    }

    fn counters(&self) -> impl Iterator<Item = Arc<network::count::QueueCounters>> + '_ {
        self.ports.iter().flat_map(|&port| self.fabric.counters(port))
    }

    fn is_balanced(&self) -> bool {
        let sum = self.counters().fold([0; 2], |[come, gone], queue| {
            let came = queue.tx.frames.get() + queue.copies.get();
            [come + came, gone + queue.rx.frames.get() + queue.dropped_total()]
        });
        sum[0] == sum[1]
    }

    fn losses(&self) -> Vec<(DropReason, u64)> {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.dropped(reason)))
            .filter(|(_, frames)| *frames > 0)
            .collect()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.counters().map(|queue| queue.dropped(reason)).sum()
    }

    /// The frames that a port received, in the order of their arrival: queue, when, and frame.
    fn arrived(&self, port: usize) -> Vec<(usize, Stamp, Vec<u8>)> {
        let queues = self.peers[port].iter().enumerate();
        let mut all: Vec<_> = queues
            .flat_map(|(at, peer)| peer.arrived().into_iter().map(move |(when, f)| (at, when, f)))
            .collect();
        all.sort_by_key(|(_, stamp, _)| stamp.0);
        all
    }

    /// Each of `flows` flows of each queue of `from` sends frames with these numbers to `to`.
    fn send(&self, from: usize, to: usize, flows: u16, numbers: Range<u32>) {
        for (queue, peer) in (0u16..).zip(&self.peers[from]) {
            let frame = |number| {
                move |flow: u16| {
                    udp(
                        to as u8,
                        from as u8,
                        queue * 64 + flow,
                        number,
                        60 + (number as usize * 7) % 1400,
                    )
                }
            };
            peer.send(numbers.clone().flat_map(|number| (0..flows).map(frame(number))));
        }
    }
}

/// Checks that no flow is out of order, and that it had come to rest wherever it changed queues.
/// Returns how often that was.
fn assert_in_order(arrived: &[(usize, Stamp, Vec<u8>)]) -> usize {
    let mut last: HashMap<(u8, u16), (u32, usize, Instant)> = HashMap::new();
    let mut changes = 0;
    for (queue, (_, time), frame) in arrived {
        let (flow, number) = flow_and_number(frame);
        if let Some((before, old, then)) = last.insert(flow, (number, *queue, *time)) {
            assert!(number == before + 1, "flow {flow:?}: {number} after {before}");
            if old != *queue {
                changes += 1;
                let rest = time.saturating_duration_since(then);
                assert!(
                    rest >= LEAST_WAIT,
                    "flow {flow:?} went from queue {old} to {queue} after {rest:?}"
                );
            }
        }
    }
    changes
}

/// Moves pairs at random until `enough`.
fn move_about(net: &Net, workers: usize, seed: u64, enough: impl Fn() -> bool) {
    let all: Vec<_> = net.peers.iter().flatten().map(|peer| peer.id).collect();
    let mut random = Rng::with_seed(seed);
    while !enough() {
        net.fabric.move_queue(all[random.usize(..all.len())], random.usize(..workers));
        std::thread::sleep(Duration::from_micros(random.u64(..1000)));
    }
}

/// Two ports send to each other, and between their bursts a pair moves.
fn exchange_while_moving(workers: usize, queues: [u16; 2], seed: u64, rounds: u32) {
    let net = Net::new(workers, &queues);
    let all: Vec<_> = net.peers.iter().flatten().map(|peer| peer.id).collect();
    let mut random = Rng::with_seed(seed);
    for round in 0..rounds {
        let numbers = round * 20..(round + 1) * 20;
        net.send(0, 1, 4, numbers.clone());
        net.send(1, 0, 4, numbers);
        net.fabric.move_queue(all[random.usize(..all.len())], random.usize(..workers));
    }
    let sent = queues.map(|queues| queues as usize * 4 * 20 * rounds as usize);
    wait(|| {
        net.peers.iter().flatten().map(Peer::completed).sum::<usize>() == sent[0] + sent[1] + 2
    });
    wait(|| net.is_balanced());
    for port in [0, 1] {
        let arrived = net.arrived(port);
        assert_eq!(
            arrived.len(),
            sent[1 - port],
            "lost on the way to port {port}: {:?}",
            net.losses()
        );
        assert_in_order(&arrived);
    }
    assert!(net.fabric.moves() > 0);
}

/// Moves a pair. On a loaded machine a pair may not be able to leave in time, and stays.
fn move_eventually(fabric: &Fabric, queue: QueueId, to: usize) {
    wait(|| fabric.move_queue(queue, to));
}

#[test]
fn a_pair_moves_and_its_traffic_goes_on() {
    let net = Net::new(2, &[1, 1]);
    let [a, b] = [0, 1].map(|port| net.peers[port][0].id);
    let place = |port: usize| net.fabric.placement(net.ports[port])[0].1;
    for round in 0u32..20 {
        let to = 1 - place(0);
        net.send(0, 1, 4, round * 50..(round + 1) * 50);
        move_eventually(&net.fabric, a, to);
        assert_eq!(place(0), to);
        assert!(!net.fabric.move_queue(a, to), "it is there");
        net.send(1, 0, 4, round * 50..(round + 1) * 50);
        move_eventually(&net.fabric, b, 1 - place(1));
        wait(|| {
            net.peers.iter().flatten().map(Peer::completed).sum::<usize>()
                == 2 + 400 * (round as usize + 1)
        });
    }
    assert_eq!(net.fabric.moves(), 40);
    assert!(!net.fabric.move_queue(a, 2), "no such worker");
    assert!(net.fabric.detach(a).is_some(), "wherever it is, it can be taken back");
    assert!(!net.fabric.move_queue(a, 0), "it is not attached");
    wait(|| net.is_balanced());
    assert_eq!(net.peers[1][0].received().len(), 20 * 200);
}

#[test]
fn nothing_is_lost_and_nothing_overtakes_while_pairs_move() {
    for (workers, queues) in [(2, [1, 1]), (2, [2, 2]), (3, [4, 2]), (4, [3, 5])] {
        exchange_while_moving(workers, queues, 7, 40);
    }
}

#[test]
fn floods_reach_everybody_while_pairs_move() {
    let net = Net::new(2, &[1, 1, 2]);
    // To a station that nobody knows.
    net.peers[0][0].send((0..3000).map(|number| udp(99, 0, 1, number, 100)));
    move_about(&net, 2, 3, || net.peers[0][0].completed() == 3001);
    wait(|| net.is_balanced());
    for port in [1, 2] {
        let arrived = net.arrived(port);
        assert_eq!(arrived.len(), 3000);
        assert_in_order(&arrived);
    }
}

#[test]
fn full_receivers_that_move_lose_nothing_that_they_have_room_for_in_time() {
    let net = Net::new(2, &[2, 0, 1].map(|queues| u16::max(queues, 1)));
    let slow = Peer::attach(&net.fabric, net.ports[1], 1, Accepts::ALL, 0);
    let done = AtomicBool::new(false);
    let sent = net.peers[0].len() * 4 * 1000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                slow.post(16);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        net.send(0, 1, 4, 0..1000);
        let completed = || net.peers[0].iter().map(Peer::completed).sum::<usize>() == sent + 1;
        let mut random = Rng::with_seed(5);
        while !completed() {
            let queue = [slow.id, net.peers[1][0].id, net.peers[0][0].id][random.usize(..3)];
            net.fabric.move_queue(queue, random.usize(..2));
        }
        done.store(true, Ordering::Relaxed);
    });
    wait(|| net.is_balanced());
    let arrived = net.arrived(1).len() + slow.received().len();
    // One that has no room for too long is dropped to, wherever it is.
    let lost = net.dropped(DropReason::RxFull) + net.dropped(DropReason::HeadOfLine);
    assert_eq!(arrived as u64, sent as u64 - lost);
    assert_eq!(net.dropped(DropReason::PortDown), 0);
}

/// All flows to one queue.
#[derive(Debug)]
struct To(u16);

impl QueueSelector for To {
    fn queue(&self, _: &Headers, _: &[u8]) -> u16 {
        self.0
    }
}

#[test]
fn a_guest_that_says_which_queue_is_obeyed_wherever_the_queue_is() {
    let net = Net::new(3, &[2, 3]);
    net.fabric.set_selector(net.ports[1], Some(Arc::new(To(2))));
    net.send(0, 1, 4, 0..1000);
    move_about(&net, 3, 11, || net.peers[0].iter().map(Peer::completed).sum::<usize>() == 8001);
    wait(|| net.is_balanced());
    let arrived = net.arrived(1);
    assert_eq!(arrived.len(), 8000);
    assert!(arrived.iter().all(|(queue, _, _)| *queue == 2));
    assert_in_order(&arrived);
}

#[test]
fn a_broken_pair_moves_and_stays_broken() {
    let fabric = Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap();
    let (port, errors) = port(&fabric, PortRule::default());
    let peer = Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX);
    peer.misbehave();
    wait(|| !errors.lock().is_empty());
    let to = 1 - fabric.placement(port)[0].1;
    move_eventually(&fabric, peer.id, to);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(errors.lock().len(), 1, "it was called again");
    assert!(fabric.detach(peer.id).is_some());
}

#[test]
fn a_loaded_worker_gives_a_pair_to_an_idle_one() {
    let net = Net::new(2, &[2, 1]);
    let place = |queue: usize| net.fabric.placement(net.ports[0])[queue].1;
    // All pairs are on one worker. The other worker has nothing to do, not even a copy, so loads
    // differ as much as they can however many threads share the machine's processors.
    for pair in [&net.peers[0][1], &net.peers[1][0]] {
        net.fabric.move_queue(pair.id, place(0));
    }
    let before = net.fabric.moves();
    // The loaded worker never runs out of frames, however slow this thread is.
    net.peers[1][0].discard();
    for peer in &net.peers[0] {
        peer.repeat(true);
        peer.send((0..128).map(|number| udp(1, 0, number as u16 % 8, number, 60)));
    }
    let mut balancer = Balancer::default();
    let start = Instant::now();
    while net.fabric.moves() == before {
        assert!(start.elapsed() < Duration::from_secs(60), "loads were {:?}", balancer.loads());
        std::thread::sleep(Duration::from_millis(10));
        if let Some(advice) = net.fabric.advice(&mut balancer) {
            net.fabric.move_queue(advice.queue, advice.to);
        }
    }
    net.peers[0].iter().for_each(|peer| peer.repeat(false));
    assert_eq!(net.fabric.moves(), before + 1);
    assert_ne!(place(0), place(1));
    wait(|| net.is_balanced());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    /// Any number of workers and queues, moved in any order.
    #[test]
    fn random_moves_change_nothing_for_the_guests(
        workers in 2..5usize, here in 1..5u16, there in 1..5u16, seed in any::<u64>(),
    ) {
        exchange_while_moving(workers, [here, there], seed, 15);
    }
}
