//! Senders of packets that are longer than their receiver's MTU.

use std::sync::Arc;

use crate::peer::{Peer, port, udp, wait};
use frame::Accepts;
use network::capture::{CaptureSpec, Direction};
use network::count::DropReason;
use network::fabric::{Fabric, NewPort, Workers};
use network::restrictions::Restrictions;
use switch::{PortId, PortRule};

/// The MTU of the third port.
const MTU: u16 = 500;

/// Two guests, and a port with an MTU.
struct Site {
    fabric: Arc<Fabric>,
    ports: [PortId; 3],
    peers: [Peer; 3],
}

impl Site {
    fn new(workers: usize) -> Site {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let [a, b] = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
        let short = NewPort {
            name: "short".into(),
            rule: PortRule::default(),
            mtu: Some(MTU),
            on_error: Arc::new(|_, _| {}),
            coalescing: None,
            policy: None,
            restrictions: Restrictions::default(),
        };
        let ports = [a, b, fabric.add_port(short).unwrap()];
        let peers = ports.map(|port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX));
        let site = Site { fabric: Arc::new(fabric), ports, peers };
        // All know where station 2 is: behind the third port.
        site.peers[2].send([udp(0xff, 2, 0, 0, 60)]);
        site.peers[0].expect(1);
        site.peers[1].expect(1);
        site
    }

    fn too_long(&self) -> u64 {
        let all = self.ports.iter().flat_map(|&port| self.fabric.counters(port));
        all.map(|queue| queue.dropped(DropReason::OverMtu)).sum()
    }

    /// Once nothing moves, every frame is accounted for.
    fn settle(&self) {
        wait(|| {
            let queues = || self.ports.iter().flat_map(|&port| self.fabric.counters(port));
            let went_in: u64 = queues().map(|it| it.tx.frames.get() + it.copies.get()).sum();
            let came_out: u64 = queues().map(|it| it.rx.frames.get() + it.dropped_total()).sum();
            went_in == came_out
        });
    }
}

/// Whether the frame tells station `of` that a packet to station 2 was longer than [`MTU`].
fn is_report(frame: &[u8], of: u8, packet: &[u8]) -> bool {
    let ethernet = [&[2, 0, 0, 0, 0, of][..], &[2, 0, 0, 0, 0, 2], &[8, 0]].concat();
    let to = [10, 0, 0, 2, 10, 0, 0, of];
    let mtu = MTU.to_be_bytes();
    frame.len() == 14 + 28 + 28
        && frame[..14] == ethernet
        && frame[26..34] == to
        && frame[34..36] == [3, 4]
        && frame[40..42] == mtu
        && frame[42..] == packet[14..42]
}

#[test]
fn the_sender_is_told_and_the_frames_around_go_on() {
    for workers in [1, 2, 3] {
        let site = Site::new(workers);
        let long = udp(2, 0, 0, 2, 1000);
        site.peers[0].send([udp(2, 0, 0, 1, 60), long.clone(), udp(2, 0, 0, 3, 514)]);
        let arrived = site.peers[2].expect(2);
        assert_eq!(arrived, [udp(2, 0, 0, 1, 60), udp(2, 0, 0, 3, 514)]);
        let told = site.peers[0].expect(1);
        assert!(is_report(&told[0], 0, &long), "{workers}: {told:?}");
        wait(|| site.too_long() == 1);
        site.settle();
        assert_eq!(site.peers[1].received().len(), 0);
    }
}

#[test]
fn packets_that_follow_each_other_are_reported_together() {
    let site = Site::new(1);
    site.peers[0].send((0..20).map(|n| udp(2, 0, 0, n, 1000)));
    wait(|| site.too_long() == 20);
    site.settle();
    let told = site.peers[0].received().len();
    assert!((1..=20).contains(&told), "{told}");
    // One of another length between them gets through.
    site.peers[0].send([udp(2, 0, 0, 1, 1000), udp(2, 0, 0, 2, 60), udp(2, 0, 0, 3, 1000)]);
    site.peers[2].expect(1);
    site.peers[0].expect(2);
    site.settle();
}

#[test]
fn floods_and_frames_of_others_are_not_reported() {
    let site = Site::new(1);
    site.peers[0].send([udp(0xff, 0, 0, 1, 1000)]);
    site.peers[1].expect(1);
    wait(|| site.too_long() == 1);
    site.settle();
    assert_eq!(site.peers[0].received().len(), 0);
}

#[test]
fn a_capture_has_the_packet_and_the_report() {
    let site = Site::new(1);
    let spec = CaptureSpec { ports: vec![site.ports[0]], snaplen: 262_144, filter: None };
    let mut capture = site.fabric.capture(&spec).unwrap();
    let long = udp(2, 0, 0, 2, 1000);
    site.peers[0].send([long.clone()]);
    site.peers[0].expect(1);
    let mut seen = Vec::new();
    wait(|| {
        capture.read(|record| seen.push((record.direction, record.bytes.to_vec())));
        seen.len() >= 2
    });
    assert_eq!(seen[0], (Direction::Outbound, long.clone()));
    assert!(seen[1].0 == Direction::Inbound && is_report(&seen[1].1, 0, &long));
}
