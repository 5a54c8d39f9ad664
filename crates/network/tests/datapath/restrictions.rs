//! Ports that may send and receive only so much, and only from their own addresses.

use std::sync::Arc;

use crate::peer::{Peer, port, udp, wait};
use frame::Accepts;
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use network::restrictions::{Limits, Restrictions};
use network::token_bucket::{Rate, TokenBucket, Unit};
use switch::{PortId, PortRule, SourceGuard};

/// A burst, and then so little that nothing more is earned while a test lasts: a frame of these
/// tests in minutes.
fn bucket(unit: Unit, burst: u64) -> Arc<TokenBucket> {
    Arc::new(TokenBucket::new(unit, Rate { per_second: 1, burst }))
}

fn transmit(buckets: Vec<Arc<TokenBucket>>) -> Restrictions {
    Restrictions { transmit: Limits(buckets), ..Restrictions::default() }
}

fn receive(buckets: Vec<Arc<TokenBucket>>) -> Restrictions {
    Restrictions { receive: Limits(buckets), ..Restrictions::default() }
}

fn dropped(fabric: &Fabric, port: PortId, reason: DropReason) -> u64 {
    fabric.counters(port).iter().map(|queue| queue.dropped(reason)).sum()
}

struct Site {
    fabric: Fabric,
    ports: [PortId; 3],
    /// The queues of each port: one for each worker.
    peers: Vec<Vec<Peer>>,
}

impl Site {
    fn new(workers: usize) -> Site {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let ports = [0, 1, 2].map(|_| port(&fabric, PortRule::default()).0);
        let attach = |port| {
            let queue = |index| Peer::attach(&fabric, port, index, Accepts::ALL, usize::MAX);
            (0..workers as u16).map(queue).collect()
        };
        let peers = ports.iter().map(|port| attach(*port)).collect();
        Site { fabric, ports, peers }
    }

    /// `n` frames on each queue of port 0 for port 1, each of 1000 bytes.
    fn send(&self, n: u32) {
        for (flow, queue) in (0..).zip(&self.peers[0]) {
            queue.send((0..n).map(|number| udp(1, 0, flow, number, 1000)));
        }
    }

    fn received(&self, port: usize) -> usize {
        let counters = self.fabric.counters(self.ports[port]);
        counters.iter().map(|queue| queue.rx.frames.get() as usize).sum()
    }

    /// Port 2 and port 1 exchange frames: all that was sent before has been looked at since.
    fn others_go_on(&self) {
        for number in 0..3 {
            let before = self.received(1);
            self.peers[2].iter().for_each(|queue| queue.send([udp(1, 2, 9, number, 100)]));
            wait(|| self.received(1) >= before + self.peers[2].len());
        }
    }

    fn limited(&self) -> u64 {
        let counters = self.fabric.counters(self.ports[0]);
        counters.iter().map(|queue| queue.tx_limited.get()).sum()
    }
}

#[test]
fn a_sender_over_its_rate_waits_and_loses_nothing() {
    for workers in [1, 2] {
        for bucket in [bucket(Unit::Bytes, 4500), bucket(Unit::Items, 4)] {
            let site = Site::new(workers);
            site.fabric.set_restrictions(site.ports[0], transmit(vec![bucket]));
            site.send(20);
            wait(|| site.received(1) >= 4 && site.limited() > 0);
            site.others_go_on();
            // What the others sent came, too.
            assert_eq!(site.received(1), 4 + 3 * workers, "{workers} workers");
            // Without a limit, all that waited goes.
            site.fabric.set_restrictions(site.ports[0], Restrictions::default());
            wait(|| site.received(1) == 20 * workers + 3 * workers);
            assert_eq!(dropped(&site.fabric, site.ports[1], DropReason::RxRate), 0);
        }
    }
}

#[test]
fn ports_that_share_a_budget_share_its_rate() {
    let site = Site::new(1);
    let budget = bucket(Unit::Items, 6);
    for port in [0, 2] {
        let restrictions = transmit(vec![Arc::clone(&budget), bucket(Unit::Items, 100)]);
        site.fabric.set_restrictions(site.ports[port], restrictions);
    }
    site.send(4);
    wait(|| site.received(1) == 4);
    site.peers[2][0].send((0..9).map(|number| udp(1, 2, 1, number, 100)));
    wait(|| site.received(1) == 6);
    // A port without the budget is not concerned.
    site.peers[1][0].send((0..50).map(|number| udp(0, 1, 1, number, 100)));
    wait(|| site.received(0) >= 50);
    assert_eq!(site.received(1), 6);
}

/// Bytes over which the shares of two queues are compared, and their rate. A thread that has no CPU
/// for a tenth of a second changes little then.
const COMPARED: usize = 100_000;
const SHARED: Rate = Rate { per_second: 250_000, burst: 4000 };

#[test]
fn queues_that_share_a_rate_take_turns_whatever_they_send() {
    for workers in [1, 2] {
        for lens in [[1000, 1000], [100, 1400], [1400, 100], [100, 9000]] {
            let site = Site::new(workers);
            let queue =
                |index| Peer::attach(&site.fabric, site.ports[2], index, Accepts::ALL, usize::MAX);
            // Two queues beside those that each worker has.
            let queues = [10, 11].map(queue);
            let bucket = Arc::new(TokenBucket::new(Unit::Bytes, SHARED));
            site.fabric.set_restrictions(site.ports[2], transmit(vec![bucket]));
            for ((flow, queue), len) in (0..).zip(&queues).zip(lens) {
                let frames = 3 * COMPARED / len;
                queue.send((0..frames as u32).map(|number| udp(1, 2, flow, number, len)));
            }
            let completed = || queues.each_ref().map(Peer::completed);
            // The first queue may send alone until the second has its frames and a worker's turn.
            wait(|| completed().iter().all(|frames| *frames >= 2));
            let before = completed();
            let sent = || [0, 1].map(|queue| completed()[queue] - before[queue]);
            wait(|| sent()[0] * lens[0] + sent()[1] * lens[1] >= COMPARED);
            // A queue has its share of the frames or of the bytes: workers that come late find room
            // for a burst, and the turns of a queue of short frames are longer then.
            let sent = sent();
            let bytes = |queue: usize| sent[queue] * lens[queue];
            for (own, other) in [(0, 1), (1, 0)] {
                let has_share = sent[own] * 7 >= sent[other] || bytes(own) * 3 >= bytes(other);
                assert!(has_share, "{sent:?} of {lens:?}");
            }
        }
    }
}

#[test]
fn what_exceeds_the_rate_of_a_receiver_is_dropped_there_and_holds_up_nobody() {
    for workers in [1, 2] {
        let site = Site::new(workers);
        // Its address is learned.
        site.peers[1][0].send([udp(0, 1, 1, 0, 60)]);
        wait(|| site.received(0) >= 1);
        let restrictions = receive(vec![bucket(Unit::Bytes, 5000)]);
        site.fabric.set_restrictions(site.ports[1], restrictions);
        site.send(20);
        wait(|| site.peers[0].iter().all(|queue| queue.completed() == 20));
        let lost = || dropped(&site.fabric, site.ports[1], DropReason::RxRate) as usize;
        wait(|| lost() + site.received(1) == 20 * workers);
        assert!((5..=5 * workers).contains(&site.received(1)), "{}", site.received(1));
        assert_eq!(dropped(&site.fabric, site.ports[1], DropReason::RxFull), 0);
    }
}

#[test]
fn frames_from_other_addresses_are_dropped_under_their_names() {
    let site = Site::new(1);
    let guard = SourceGuard::new(vec!["10.0.0.0".parse().unwrap()]);
    let restrictions = Restrictions { guard: Some(Arc::new(guard)), ..Restrictions::default() };
    site.fabric.set_restrictions(site.ports[0], restrictions);
    // Station 0 has the address 10.0.0.0.
    let mut spoofed = udp(1, 0, 1, 7, 100);
    spoofed[29] = 77;
    let mut announced = udp(1, 0, 1, 8, 60);
    announced[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut server = udp(1, 0, 67, 9, 100);
    server[36..38].copy_from_slice(&68u16.to_be_bytes());
    let mut foreign = udp(1, 0, 1, 10, 100);
    foreign[12..14].copy_from_slice(&[0x88, 0x47]);
    site.peers[0][0].send([spoofed, announced, server, foreign, udp(1, 0, 1, 11, 100)]);
    wait(|| site.peers[0][0].completed() == 5);
    assert_eq!(site.peers[1][0].expect(1), [udp(1, 0, 1, 11, 100)]);
    for reason in [
        DropReason::IpSpoofed,
        DropReason::Unverifiable,
        DropReason::DhcpServer,
        DropReason::OtherProtocol,
    ] {
        assert_eq!(dropped(&site.fabric, site.ports[0], reason), 1, "{}", reason.name());
    }
    // Others may use any.
    site.peers[2][0].send([udp(1, 2, 1, 12, 100)]);
    wait(|| site.received(1) == 2);
}
