//! Requests for addresses of stations on other hosts, answered here.

use std::net::IpAddr;
use std::sync::Arc;

use crate::peer::{Peer, port, udp, wait};
use frame::{Accepts, Mac, Owner};
use network::capture::{CaptureSpec, Direction};
use network::fabric::{Fabric, Workers};
use switch::{Mirrors, Network, PinKind, PortId, PortRule, Station, Tunnel};

const NOTHING: Vec<Vec<u8>> = Vec::new();
const OWNER: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// A request of station 0 for 10.0.0.`address`.
fn request(address: u8) -> Vec<u8> {
    let ethernet = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0], &[8, 6]].concat();
    let asks = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &[2, 0, 0, 0, 0, 0], &[10, 0, 0, 1]].concat();
    [&ethernet[..], &asks, &[0; 6], &[10, 0, 0, address], &[0; 18]].concat()
}

/// What station 7 answers to the request for its address.
fn answer() -> Vec<u8> {
    let ethernet = [&[2, 0, 0, 0, 0, 0][..], &OWNER, &[8, 6]].concat();
    let says = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &OWNER, &[10, 0, 0, 7]].concat();
    [&ethernet[..], &says, &[2, 0, 0, 0, 0, 0], &[10, 0, 0, 1]].concat()
}

/// Two guests, and the end of a tunnel behind which station 7 is, with the address 10.0.0.7.
struct Site {
    fabric: Arc<Fabric>,
    ports: [PortId; 3],
    peers: [Vec<Peer>; 3],
}

impl Site {
    fn new(workers: usize, queues: u16) -> Site {
        let fabric = Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap();
        let ports = [0, 1, 2].map(|_| port(&fabric, PortRule::default()).0);
        let attach = |port, index| Peer::attach(&fabric, port, index, Accepts::ALL, usize::MAX);
        let peers = ports.map(|port| (0..queues).map(|index| attach(port, index)).collect());
        fabric.set_tunnel(ports[2], Tunnel { group: 1, learns: false, floods: true });
        let station = Station { network: Network::UNTAGGED, mac: Mac(OWNER) };
        fabric.pin(station, ports[2], PinKind::Learned).unwrap();
        let site = Site { fabric: Arc::new(fabric), ports, peers };
        site.set_owner(Some(Owner::host(Mac(OWNER))));
        site
    }

    fn set_owner(&self, owner: Option<Owner>) {
        self.fabric.set_neighbour(Network::UNTAGGED, IpAddr::from([10, 0, 0, 7]), owner);
    }

    /// What each port has received, once nothing moves.
    fn received(&self) -> [Vec<Vec<u8>>; 3] {
        wait(|| self.is_balanced());
        self.peers.each_ref().map(|peers| peers.iter().flat_map(Peer::received).collect())
    }

    /// The requests of each port that were answered.
    fn answered(&self) -> [u64; 3] {
        self.ports.map(|port| {
            let queues = self.fabric.counters(port);
            queues.iter().map(|queue| queue.answered_requests.get()).sum()
        })
    }

    fn is_balanced(&self) -> bool {
        let sent: usize = self.peers.iter().flatten().map(Peer::completed).sum();
        let queues = || self.ports.iter().flat_map(|&port| self.fabric.counters(port));
        let went_in: u64 = queues().map(|queue| queue.tx.frames.get() + queue.copies.get()).sum();
        let came_out: u64 =
            queues().map(|queue| queue.rx.frames.get() + queue.dropped_total()).sum();
        sent > 0 && went_in == came_out
    }
}

#[test]
fn whoever_asks_is_answered_and_nobody_else_hears_of_it() {
    for (workers, queues) in [(1, 1), (2, 2), (3, 2)] {
        let site = Site::new(workers, queues);
        let asks = &site.peers[0][0];
        asks.send((0..100).map(|_| request(7)));
        wait(|| asks.completed() == 100);
        let [own, others @ ..] = site.received();
        assert_eq!(own, vec![answer(); 100], "{workers} workers");
        assert_eq!(others, [NOTHING, NOTHING]);
        assert_eq!(site.answered(), [100, 0, 0]);
    }
}

#[test]
fn answers_do_not_change_the_frames_around_them() {
    let site = Site::new(1, 1);
    let (asks, other) = (&site.peers[0][0], &site.peers[1][0]);
    // 10.0.0.9 is nobody's, and 10.0.0.7 is.
    asks.send([udp(0xff, 0, 0, 1, 60), request(7), request(9), udp(0xff, 0, 0, 2, 1514)]);
    let expected = vec![udp(0xff, 0, 0, 1, 60), request(9), udp(0xff, 0, 0, 2, 1514)];
    assert_eq!(other.expect(3), expected);
    let [own, _, tunnel] = site.received();
    assert_eq!((own, tunnel), (vec![answer()], expected));
    assert_eq!(site.answered(), [1, 0, 0]);
}

#[test]
fn a_sender_without_room_for_answers_loses_them_and_nothing_waits() {
    let site = Site::new(1, 1);
    let (asks, other) = (&site.peers[0][0], &site.peers[1][0]);
    asks.limit(2);
    asks.send((0..10).map(|_| request(7)).chain([udp(0xff, 0, 0, 1, 60)]));
    other.expect(1);
    assert_eq!(site.received()[0].len(), 2);
}

#[test]
fn requests_of_a_mirrored_port_go_to_the_owners_host() {
    let site = Site::new(1, 1);
    let [of, to, _] = site.ports;
    site.fabric.set_mirrors(Mirrors { of: [(of, to)].into_iter().collect(), ports: [to].into() });
    site.peers[0][0].send([request(7)]);
    assert_eq!(site.peers[2][0].expect(1), [request(7)]);
    let [own, mirror, _] = site.received();
    assert_eq!((own, mirror), (NOTHING, vec![request(7)]));
    assert_eq!(site.answered(), [0, 0, 0]);
}

#[test]
fn what_nobody_is_known_to_have_is_asked_for_everywhere() {
    let site = Site::new(1, 1);
    site.set_owner(None);
    site.peers[0][0].send([request(7)]);
    assert_eq!(site.peers[2][0].expect(1), [request(7)]);
    assert_eq!(site.received()[0], NOTHING);
    assert_eq!(site.answered(), [0, 0, 0]);
}

#[test]
fn a_capture_has_the_request_and_the_answer() {
    let site = Site::new(1, 1);
    let spec = CaptureSpec { ports: vec![site.ports[0]], snaplen: 262_144, filter: None };
    let mut capture = site.fabric.capture(&spec).unwrap();
    site.peers[0][0].send([request(7), udp(0xff, 0, 0, 1, 60)]);
    let mut frames = Vec::new();
    wait(|| {
        capture.read(|record| frames.push((record.direction, record.bytes.to_vec())));
        frames.len() >= 3
    });
    let of = |direction| {
        let frames = frames.iter().filter(|frame| frame.0 == direction);
        frames.map(|frame| frame.1.clone()).collect::<Vec<_>>()
    };
    assert_eq!(of(Direction::Outbound), [request(7), udp(0xff, 0, 0, 1, 60)]);
    assert_eq!(of(Direction::Inbound), [answer()]);
}
