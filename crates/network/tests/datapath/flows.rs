//! Flows and the queues that they go to, on workers that the test drives: what is measured is their
//! time.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use crate::peer::{Peer, flow_and_number, port, udp};
use frame::Accepts;
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use network::topology::QueueId;
use switch::{PortId, PortRule};

/// From round to round.
const STEP: Duration = Duration::from_micros(50);

/// How often workers rebalance flows.
const INTERVAL: Duration = Duration::from_millis(100);

/// So many equal flows of one queue are worth being distributed to two: each is more than an
/// eighth.
const FEW: usize = 7;

/// A station that nobody knows: frames for it are flooded.
const NOBODY: u8 = 200;

struct Net {
    fabric: Fabric,
    workers: Vec<ManualWorker>,
    now: Instant,
    ports: Vec<PortId>,
}

impl Net {
    fn new(count: usize) -> Self {
        let (fabric, workers) = Fabric::manual(&Workers { count, ..Workers::default() }).unwrap();
        Net { fabric, workers, now: Instant::now(), ports: Vec::new() }
    }

    /// All workers make a round.
    fn round(&mut self) {
        self.now += STEP;
        for worker in &mut self.workers {
            worker.run_once(self.now);
        }
    }

    fn pass(&mut self, time: Duration) {
        (0..time.as_micros() / STEP.as_micros()).for_each(|_| self.round());
    }

    /// Makes rounds until something is so, which takes `most` at most. Returns how long it took.
    fn until(&mut self, most: Duration, mut there: impl FnMut() -> bool) -> Duration {
        let start = self.now;
        while !there() {
            assert!(self.now - start < most, "not within {most:?}");
            self.round();
        }
        self.now - start
    }

    /// Asks something of the fabric, and makes rounds meanwhile; `before` each round.
    fn ask<T: Send>(
        &mut self,
        ask: impl FnOnce(&Fabric) -> T + Send,
        mut before: impl FnMut(),
    ) -> T {
        let Net { fabric, workers, now, .. } = self;
        thread::scope(|scope| {
            let asked = scope.spawn(|| ask(fabric));
            while !asked.is_finished() {
                before();
                *now += STEP;
                for worker in workers.iter_mut() {
                    worker.run_once(*now);
                }
                thread::sleep(Duration::from_micros(20));
            }
            asked.join().unwrap()
        })
    }

    fn move_queue(&mut self, queue: QueueId, to: usize) -> bool {
        self.ask(|fabric| fabric.move_queue(queue, to), || {})
    }

    /// One more port, with a queue on each of these workers. Its station has the port's number, and
    /// is known.
    fn port(&mut self, workers: &[usize]) -> Vec<Peer> {
        self.port_with(usize::MAX, workers)
    }

    /// The same, whose queues have room for so many frames each.
    fn port_with(&mut self, room: usize, workers: &[usize]) -> Vec<Peer> {
        let (port, _) = port(&self.fabric, PortRule::default());
        let attach = |(index, &to): (u16, &usize)| {
            let peer =
                self.ask(|fabric| Peer::attach(fabric, port, index, Accepts::ALL, room), || {});
            self.move_queue(peer.id, to);
            peer
        };
        let peers: Vec<Peer> = (0..).zip(workers).map(attach).collect();
        peers[0].send([udp(NOBODY, self.ports.len() as u8, 0, 0, 60)]);
        self.until(INTERVAL, || peers[0].completed() == 1);
        self.ports.push(port);
        peers
    }

    /// A few flows between two stations that go to the first of the receiver's queues.
    fn flows_to_the_first(&mut self, from: &Peer, to: &[Peer], [src, dst]: [u8; 2]) -> Vec<u16> {
        let before = from.completed();
        to.iter().for_each(|peer| drop(peer.received()));
        from.send((0..32).map(|flow| udp(dst, src, flow, 0, 60)));
        self.until(INTERVAL, || from.completed() == before + 32);
        to[1..].iter().for_each(|peer| assert!(!peer.received().is_empty()));
        to[0].received().iter().map(|frame| flow_and_number(frame).0.1).take(FEW).collect()
    }

    fn rebalanced(&self) -> u64 {
        self.fabric.worker_counters().iter().map(|worker| worker.rebalanced.get()).sum()
    }
}

#[test]
fn a_flow_that_changes_queues_waits_for_nothing_that_was_sent_later() {
    let mut net = Net::new(2);
    let other = net.port(&[0]).remove(0);
    let one = net.port(&[0]).remove(0);
    let to = net.port(&[1, 1]);
    let beside = net.flows_to_the_first(&other, &to, [0, 2])[0];
    let flows = net.flows_to_the_first(&one, &to, [1, 2]);
    net.pass(INTERVAL);
    let (mut sent, mut longest) = (one.completed(), Duration::ZERO);
    // More than the first queue's share. And the other guest has something under way to that queue
    // at any time.
    for _ in 0..600 {
        // It is served first.
        other.send([udp(2, 0, beside, 0, 60)]);
        one.send((0..64).map(|at| udp(2, 1, flows[at % flows.len()], 0, 60)));
        sent += 64;
        let took = net.until(2 * INTERVAL, || {
            other.send([udp(2, 0, beside, 0, 60)]);
            one.completed() == sent
        });
        longest = longest.max(took);
        net.pass(Duration::from_millis(1));
    }
    assert!(longest < Duration::from_millis(25), "{longest:?}");
    let arrived = |peer: &Peer| {
        peer.received().iter().map(|frame| flow_and_number(frame).0).collect::<HashSet<_>>()
    };
    let moved = arrived(&to[1]).iter().filter(|(station, _)| *station == 1).count();
    assert!(moved >= 3, "{moved} have changed queues");
}

/// A guest without a CPU: a flow's next frame would overtake those that lie in the old queue's
/// ring. The ring is the sender's worker's own, or another one's.
#[test]
fn a_flow_stays_with_its_queue_until_the_guest_takes_its_frames() {
    for worker in [0, 1] {
        let mut net = Net::new(2);
        let one = net.port(&[0]).remove(0);
        let to = net.port(&[worker; 2]);
        let flows = net.flows_to_the_first(&one, &to, [0, 1]);
        let mut run = |rounds: usize| {
            for _ in 0..rounds {
                let sent = one.completed() + 64;
                one.send((0..64).map(|at| udp(1, 0, flows[at % flows.len()], 0, 60)));
                let took = net.until(2 * INTERVAL, || one.completed() == sent);
                assert!(took < Duration::from_millis(25), "{took:?}");
                net.pass(Duration::from_millis(1));
            }
            (net.rebalanced(), to[1].received().len())
        };
        to.iter().for_each(|peer| peer.take(false));
        let (tried, arrived) = run(600);
        assert!(tried > 0 && arrived == 0, "worker {worker}: {tried} tried, {arrived} arrived");
        to.iter().for_each(|peer| peer.take(true));
        let (_, arrived) = run(2000);
        assert!(arrived > 0, "worker {worker}");
    }
}

/// Where its frames go afterwards may be another queue of the same guest, and of that one's ring
/// its worker knows nothing.
#[test]
fn a_pair_that_moves_rests_for_rings_of_other_workers_too() {
    let mut net = Net::new(3);
    let from = net.port(&[0]).remove(0);
    let to = net.port(&[1, 2]);
    let flows = net.flows_to_the_first(&from, &to, [0, 1]);
    from.send([udp(1, 0, flows[0], 1, 60)]);
    net.until(INTERVAL, || from.completed() == 34);
    let start = net.now;
    assert!(net.move_queue(from.id, 2));
    assert!(net.now - start >= Duration::from_millis(10), "{:?}", net.now - start);
    from.send([udp(1, 0, flows[0], 2, 60)]);
    net.until(INTERVAL, || from.completed() == 35);
    assert_eq!(
        [0, 1].map(|queue: usize| to[queue].received().len()),
        [1, 1],
        "it has changed queues"
    );
}

/// The thread that moves the pair may be slow to begin, so the sender's ring stays full until the
/// outcome is known: whenever the move begins, what is under way takes longer to deliver than a
/// move may take.
#[test]
fn a_pair_that_cannot_leave_in_time_stays() {
    let mut net = Net::new(2);
    let from = net.port(&[0]).remove(0);
    let to = net.port_with(0, &[1]).remove(0);
    let sent = Cell::new(0);
    let send = || {
        from.send([udp(1, 0, 0, sent.get(), 60_000)]);
        sent.set(sent.get() + 1);
    };
    (0..64).for_each(|_| send());
    net.pass(STEP * 10);
    // As slowly as it may: none of them is dropped.
    let mut rounds = 0u32;
    let mut take = || {
        rounds += 1;
        to.post(usize::from(rounds.is_multiple_of(20)));
    };
    let moved = net.ask(
        |fabric| fabric.move_queue(from.id, 1),
        || {
            take();
            // One frame of those completed so far was sent when the port was made.
            (sent.get() as usize..from.completed() + 127).for_each(|_| send());
        },
    );
    assert!(!moved);
    net.until(INTERVAL * 10, || {
        take();
        from.completed() == sent.get() as usize + 1
    });
    let numbers: Vec<u32> = to.received().iter().map(|frame| flow_and_number(frame).1).collect();
    assert_eq!(numbers, (0..sent.get()).collect::<Vec<_>>());
    assert!(net.move_queue(from.id, 1), "and later it can");
}

#[test]
fn floods_stay_with_their_queue() {
    let mut net = Net::new(1);
    let from = net.port(&[0]).remove(0);
    let to = net.port(&[0, 0]);
    from.send((0..32).map(|flow| udp(NOBODY, 0, flow, 0, 60)));
    net.pass(STEP * 100);
    let flows: Vec<u16> =
        to[0].received().iter().map(|frame| flow_and_number(frame).0.1).take(FEW).collect();
    to[1].received();
    // For three intervals: each is worth spreading.
    for number in 1..=300 {
        from.send((0..64).map(|at| udp(NOBODY, 0, flows[at % flows.len()], number, 60)));
        net.pass(INTERVAL / 100);
    }
    assert!(net.rebalanced() > 0, "it was tried");
    assert_eq!(to[0].received().len(), 300 * 64);
    assert!(to[1].received().is_empty());
}

#[test]
fn waiting_is_no_load() {
    let mut net = Net::new(3);
    let from = [0, 1].map(|_| net.port(&[0]).remove(0));
    let to = net.port(&[1, 1]);
    let flows = [0u8, 1]
        .map(|station| net.flows_to_the_first(&from[usize::from(station)], &to, [station, 2])[0]);
    // One frame of each waits until their queue has moved, and is looked at again and again.
    let (first, mut rounds) = (to[0].id, 0);
    let send = || {
        rounds += 1;
        if rounds == 50 {
            (0..)
                .zip(&from)
                .for_each(|(at, from)| from.send([udp(2, at, flows[usize::from(at)], 0, 60_000)]));
        }
    };
    assert!(net.ask(|fabric| fabric.move_queue(first, 2), send));
    for _ in 0..3 {
        net.pass(INTERVAL);
        (0..)
            .zip(&from)
            .for_each(|(at, from)| from.send([udp(2, at, flows[usize::from(at)], 0, 60)]));
    }
    net.pass(INTERVAL);
    assert_eq!(net.rebalanced(), 0);
    assert_eq!(to[0].received().len(), 8);
}

/// 1024 flows begin while one queue of four is up.
fn spread_at_the_start(workers: usize, queues_on: usize) {
    const FLOWS: u32 = 1024;
    let mut net = Net::new(workers);
    let from = net.port(&[0]).remove(0);
    let mut to = net.port(&[queues_on]);
    let sent = Cell::new(0);
    let send = || {
        // No more than what is not fetched yet is worth a burst.
        if from.completed() + 128 > sent.get() as usize {
            let numbers = sent.get()..sent.get() + 64;
            from.send(numbers.map(|n| udp(1, 0, (n % FLOWS) as u16, n / FLOWS, 60)));
            sent.set(sent.get() + 64);
        }
    };
    let pass = |net: &mut Net, time: Duration| {
        for _ in 0..time.as_micros() / STEP.as_micros() {
            send();
            net.round();
        }
    };
    pass(&mut net, INTERVAL / 2);
    let port = net.ports[1];
    for index in 1..4 {
        let attach = |fabric: &Fabric| Peer::attach(fabric, port, index, Accepts::ALL, usize::MAX);
        let peer = net.ask(attach, send);
        let id = peer.id;
        net.ask(|fabric| fabric.move_queue(id, queues_on), send);
        to.push(peer);
    }
    let mut arrived: Vec<_> = to.iter().flat_map(Peer::arrived).collect();
    // At the end of an interval they begin to wait, and are dealt when they are at rest.
    pass(&mut net, INTERVAL * 5 / 2);
    arrived.extend(to.iter().flat_map(Peer::arrived));
    pass(&mut net, INTERVAL / 2);
    let last: Vec<_> = to.iter().map(Peer::arrived).collect();
    let counts: Vec<usize> = last.iter().map(Vec::len).collect();
    let all: usize = counts.iter().sum();
    assert!(all > 10_000 && counts.iter().all(|count| count * 6 > all), "{counts:?}");
    arrived.extend(last.into_iter().flatten());
    arrived.sort_by_key(|((stamp, _), _)| *stamp);
    let mut next = HashMap::new();
    for (_, frame) in arrived {
        let (flow, number) = flow_and_number(&frame);
        if let Some(before) = next.insert(flow, number) {
            assert_eq!(number, before + 1, "{flow:?}");
        }
    }
}

#[test]
fn flows_that_began_on_the_only_queue_are_spread_when_others_come_up() {
    spread_at_the_start(1, 0);
}

#[test]
fn so_are_flows_to_queues_of_another_worker() {
    spread_at_the_start(2, 1);
}
