//! Workers that the test drives, with ports of one queue each.

use std::time::{Duration, Instant};

use frame::Accepts;
use network::count::DropReason;
use network::fabric::{Fabric, InFlight, Kept, Workers};
use network::manual::ManualWorker;
use switch::{PortId, PortRule};

use super::{Peer, port, udp};

/// Time of a round.
pub const ROUND: Duration = Duration::from_micros(10);
/// Rounds in a millisecond.
pub const MS: usize = 100;

/// Workers and ports of one queue each, port `n` of which is station `n`.
pub struct Host {
    pub fabric: Fabric,
    workers: Vec<ManualWorker>,
    pub ports: Vec<PortId>,
    pub now: Instant,
}

impl Host {
    pub fn new(workers: usize) -> Host {
        let config = Workers { count: workers, ..Workers::default() };
        let (fabric, workers) = Fabric::manual(&config).unwrap();
        Host { fabric, workers, ports: Vec::new(), now: Instant::now() }
    }

    /// Does `work` while all workers are driven.
    pub fn run_while<T: Send>(&mut self, work: impl FnOnce(&Fabric) -> T + Send) -> T {
        fn nested<T: Send>(workers: &mut [ManualWorker], work: impl FnOnce() -> T + Send) -> T {
            match workers {
                [] => work(),
                [one] => one.run_while(work),
                [one, rest @ ..] => one.run_while(|| nested(rest, work)),
            }
        }
        let fabric = &self.fabric;
        let done = nested(&mut self.workers, || work(fabric));
        self.now = self.now.max(Instant::now());
        done
    }

    /// A port, whose queue is on worker `ports before it` modulo workers, with room for so many.
    pub fn add(&mut self, room: usize) -> Peer {
        let id = port(&self.fabric, PortRule::default()).0;
        self.ports.push(id);
        self.run_while(|fabric| Peer::attach(fabric, id, 0, Accepts::ALL, room))
    }

    pub fn round(&mut self) {
        self.now += ROUND;
        for worker in &mut self.workers {
            worker.run_once(self.now);
        }
    }

    pub fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.round());
    }

    /// Takes all queues from the workers. These are driven meanwhile, and no time passes for them.
    /// Calls `meanwhile` after each round, with the number of rounds.
    pub fn withdraw(
        &mut self,
        in_flight: InFlight,
        mut meanwhile: impl FnMut(usize),
    ) -> Result<(), Kept> {
        let Host { fabric, workers, now, .. } = self;
        std::thread::scope(|scope| {
            let withdrawal = scope.spawn(|| fabric.withdraw(in_flight));
            for round in 1.. {
                for worker in workers.iter_mut() {
                    worker.run_once(*now);
                }
                meanwhile(round);
                if withdrawal.is_finished() {
                    break;
                }
                std::thread::yield_now();
            }
            withdrawal.join().unwrap()
        })
    }

    /// Takes a peer's queue from its port, whose only one it is, and drives all workers until it is
    /// gone. They are told of it before their time goes on: a thread that starts late changes
    /// nothing.
    pub fn detach(&mut self, port: PortId, peer: &Peer) {
        let Host { fabric, workers, now, .. } = self;
        std::thread::scope(|scope| {
            let leaving = scope.spawn(|| fabric.detach(peer.id));
            while !fabric.placement(port).is_empty() {
                std::thread::yield_now();
            }
            while !leaving.is_finished() {
                *now += ROUND;
                for worker in workers.iter_mut() {
                    worker.run_once(*now);
                }
                std::thread::yield_now();
            }
            assert!(leaving.join().unwrap().is_some());
        });
    }

    /// Has station `station` be learnt on its port.
    pub fn learn(&mut self, station: usize, peer: &Peer) {
        let before = peer.completed();
        peer.send([udp(99, station as u8, 1, 0, 60)]);
        while peer.completed() == before {
            self.rounds(10);
        }
    }

    pub fn dropped(&self, port: usize, reason: DropReason) -> u64 {
        self.fabric.counters(self.ports[port]).iter().map(|queue| queue.dropped(reason)).sum()
    }

    pub fn waited(&self, port: usize) -> Duration {
        let queues = self.fabric.counters(self.ports[port]);
        Duration::from_nanos(queues.iter().map(|queue| queue.waits.sum()).sum())
    }
}
