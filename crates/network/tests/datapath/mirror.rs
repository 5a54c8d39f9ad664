//! Copies for mirrors, between guests made of lists.

use std::collections::HashMap;
use std::sync::Arc;

use crate::peer::{Peer, flow_and_number, port, udp, wait};
use frame::Accepts;
use network::count::DropReason;
use network::fabric::{Fabric, NewPort, Workers};
use network::restrictions::Restrictions;
use switch::{Mirrors, PortId, PortRule};

/// Frames by which all stations but the mirror become known, before those of a test.
const GREETINGS: u64 = 3;

/// Ports 0 to 3 with stations of these numbers, of which the last is the mirror of the first.
struct Ports {
    fabric: Fabric,
    ports: [PortId; 4],
    peers: [Vec<Peer>; 4],
}

impl Ports {
    fn new(workers: usize, queues: u16) -> Ports {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let ports: [PortId; 4] = std::array::from_fn(|_| port(&fabric, PortRule::default()).0);
        let attach = |port, index| Peer::attach(&fabric, port, index, Accepts::ALL, usize::MAX);
        let peers = ports.map(|port| (0..queues).map(|index| attach(port, index)).collect());
        let all = Ports { fabric, ports, peers };
        for station in 0..3 {
            all.peers[station][0].send([udp(0xff, station as u8, 0, 0, 60)]);
            wait(|| all.fabric.table().len() > station);
        }
        all.mirror(true);
        wait(|| all.sums().fetched >= GREETINGS && all.sums().is_balanced());
        all.peers.iter().flatten().for_each(|peer| drop(peer.received()));
        all
    }

    fn mirror(&self, on: bool) {
        let of = on.then_some((self.ports[0], self.ports[3])).into_iter().collect();
        self.fabric.set_mirrors(Mirrors { of, ports: [self.ports[3]].into() });
    }

    fn sums(&self) -> Sums {
        let queues = self.ports.iter().flat_map(|&port| self.fabric.counters(port));
        queues.fold(Sums::default(), |sum, queue| Sums {
            fetched: sum.fetched + queue.tx.frames.get(),
            copies: sum.copies + queue.copies.get(),
            delivered: sum.delivered + queue.rx.frames.get(),
            dropped: sum.dropped + queue.dropped_total(),
        })
    }

    fn dropped(&self, station: usize, reason: DropReason) -> u64 {
        let queues = self.fabric.counters(self.ports[station]);
        queues.iter().map(|queue| queue.dropped(reason)).sum()
    }

    /// Frames that this station has, from all queues.
    fn received(&self, station: usize) -> Vec<Vec<u8>> {
        self.peers[station].iter().flat_map(Peer::received).collect()
    }
}

#[derive(Default, Debug)]
struct Sums {
    fetched: u64,
    copies: u64,
    delivered: u64,
    dropped: u64,
}

impl Sums {
    fn is_balanced(&self) -> bool {
        self.fetched + self.copies == self.delivered + self.dropped
    }
}

fn frames(dst: u8, src: u8, count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |n| udp(dst, src, (n % 16) as u16, n, 60 + (n as usize * 37) % 1400))
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

#[test]
fn both_directions_are_copied_whole_and_in_order_of_their_flows() {
    for (workers, queues) in [(1, 1), (2, 1), (2, 2), (4, 4)] {
        let all = Ports::new(workers, queues);
        let count = 2000;
        all.peers[0][0].send(frames(1, 0, count));
        all.peers[1][0].send(frames(0, 1, count));
        all.peers[2][0].send(frames(1, 2, count));
        let sent = GREETINGS + u64::from(3 * count);
        wait(|| all.sums().fetched >= sent && all.sums().is_balanced());
        let copies = all.received(3);
        let lost = all.dropped(0, DropReason::MirrorFull) + all.dropped(1, DropReason::MirrorFull);
        // The mirror always has room, but ways to another worker are bounded.
        assert_eq!(copies.len() as u64 + lost, u64::from(2 * count), "{workers} {queues}");
        assert!(workers > 1 || lost == 0, "{lost} lost on one worker");
        if lost == 0 {
            let sent = frames(1, 0, count).chain(frames(0, 1, count)).collect();
            assert_eq!(sorted(copies.clone()), sorted(sent), "{workers} {queues}");
        }
        let mut last = HashMap::new();
        for (flow, number) in copies.iter().map(|copy| flow_and_number(copy)) {
            let before = last.insert(flow, number);
            assert!(before < Some(number), "{flow:?}: {number} behind {before:?}");
        }
        // Copies are no reason for which their own frames are lost.
        let (one, zero) = (all.received(1).len(), all.received(0).len());
        let full = |station| all.dropped(station, DropReason::HandoffFull);
        assert_eq!((one, zero), (2 * count as usize, count as usize), "{}", full(0) + full(1));
    }
}

#[test]
fn a_full_mirror_costs_only_its_copies() {
    for workers in [1, 2] {
        let all = Ports::new(workers, 1);
        all.peers[3][0].limit(100);
        all.peers[0][0].send(frames(1, 0, 1000));
        wait(|| all.peers[0][0].completed() == 1001 && all.sums().is_balanced());
        assert_eq!(all.received(1).len(), 1000);
        assert_eq!(all.received(3).len(), 100);
        let lost = |station| all.dropped(station, DropReason::MirrorFull);
        assert_eq!(lost(3) + lost(0), 900, "{workers} workers");
        // No sender has waited for it.
        let waits: u64 = all.fabric.counters(all.ports[3]).iter().map(|q| q.waits.sum()).sum();
        assert_eq!(waits, 0);
    }
}

#[test]
fn a_full_receiver_is_waited_for_as_without_a_mirror() {
    let all = Ports::new(1, 1);
    all.peers[1][0].limit(10);
    all.peers[0][0].send(frames(1, 0, 40));
    wait(|| all.fabric.counters(all.ports[0])[0].blocked.get() > 0);
    all.peers[1][0].post(usize::MAX / 2);
    wait(|| all.peers[0][0].completed() == 41 && all.sums().is_balanced());
    let dropped = all.dropped(1, DropReason::RxFull) + all.dropped(1, DropReason::HeadOfLine);
    assert_eq!(all.received(1).len() as u64 + dropped, 40);
    assert_eq!(all.received(3).len(), 40, "once, however often a frame waited");
}

#[test]
fn a_mirror_comes_and_goes_and_sends_nothing() {
    let all = Ports::new(1, 1);
    all.peers[3][0].send(frames(0, 3, 5));
    wait(|| all.dropped(3, DropReason::MirrorPort) == 5);
    all.mirror(false);
    all.peers[0][0].send(frames(1, 0, 10));
    all.peers[1][0].expect(10);
    // Without a peer, it gets no copies, and there are no drops.
    all.mirror(true);
    all.fabric.detach(all.peers[3][0].id).unwrap();
    all.peers[0][0].send(frames(1, 0, 10));
    all.peers[1][0].expect(10);
    wait(|| all.sums().is_balanced());
    assert_eq!(all.received(3).len(), 0);
    assert_eq!(all.dropped(0, DropReason::MirrorFull), 0);
    assert_eq!(all.dropped(0, DropReason::PortDown), 0);
}

#[test]
fn copies_are_charged_to_the_sender() {
    let all = Ports::new(1, 1);
    let copies = || all.fabric.counters(all.ports[1])[0].copies.get();
    let before = copies();
    all.peers[1][0].send(frames(0, 1, 100));
    all.peers[0][0].expect(100);
    wait(|| all.sums().is_balanced());
    assert_eq!(copies() - before, 100);
}

#[test]
fn a_copy_that_is_too_long_for_the_mirror_is_dropped_there() {
    let fabric = Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap();
    let [(a, _), (b, _)] = [0, 1].map(|_| port(&fabric, PortRule::default()));
    let mirror = fabric
        .add_port(NewPort {
            name: "mirror".into(),
            rule: PortRule::default(),
            mtu: Some(500),
            on_error: Arc::new(|_, _| {}),
            coalescing: None,
            policy: None,
            restrictions: Restrictions::default(),
        })
        .unwrap();
    let [one, other, copies] =
        [a, b, mirror].map(|port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX));
    other.send([udp(0xff, 1, 0, 0, 60)]);
    one.expect(1);
    fabric.set_mirrors(Mirrors { of: [(a, mirror)].into(), ports: [mirror].into() });
    one.send([udp(1, 0, 0, 1, 60), udp(1, 0, 0, 2, 1000), udp(1, 0, 0, 3, 60)]);
    other.expect(3);
    let got: Vec<u32> = copies.expect(2).iter().map(|copy| flow_and_number(copy).1).collect();
    assert_eq!(got.last(), Some(&3));
    wait(|| fabric.counters(mirror)[0].dropped(DropReason::OverMtu) == 1);
}
