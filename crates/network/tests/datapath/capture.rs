//! Captures of ports, under traffic.

use std::sync::Arc;

use crate::peer::{Peer, port, udp, wait};
use frame::bpf::{Filter, Instruction};
use frame::{Accepts, GsoKind, VNET_LEN};
use network::capture::{
    Capture, CaptureCounts, CaptureError, CaptureSpec, Direction, MAX_CAPTURES,
};
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use network::poll::PollingPolicy;
use switch::{PortId, PortRule, Vlan};

/// A record that outlives its ring.
#[derive(Clone, Debug, PartialEq)]
struct Frame {
    interface: u16,
    direction: Direction,
    len: u32,
    dropped: Option<DropReason>,
    bytes: Vec<u8>,
    time: u64,
    segments: Option<(GsoKind, u16)>,
    partial_checksum: bool,
    cut_into: u32,
}

fn fabric(workers: usize) -> Arc<Fabric> {
    let workers =
        Workers { count: workers, policy: PollingPolicy::default(), ..Workers::default() };
    Arc::new(Fabric::start(&workers).unwrap())
}

fn spec(ports: &[PortId]) -> CaptureSpec {
    CaptureSpec { ports: ports.to_vec(), snaplen: 262_144, filter: None }
}

/// Adds what there is to `frames`.
fn read(capture: &mut Capture, frames: &mut Vec<Frame>) -> usize {
    capture.read(|record| {
        frames.push(Frame {
            interface: record.interface,
            direction: record.direction,
            len: record.len,
            dropped: record.dropped,
            bytes: record.bytes.to_vec(),
            time: record.time,
            segments: record.segments,
            partial_checksum: record.partial_checksum,
            cut_into: record.cut_into,
        });
    })
}

/// Reads until there are `n` frames, and no more.
fn expect(capture: &mut Capture, n: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    wait(|| {
        read(capture, &mut frames);
        frames.len() >= n
    });
    read(capture, &mut frames);
    assert_eq!(frames.len(), n);
    frames
}

/// Frames of one interface in one direction.
fn of(frames: &[Frame], interface: u16, direction: Direction) -> Vec<Vec<u8>> {
    let is = |frame: &&Frame| (frame.interface, frame.direction) == (interface, direction);
    frames.iter().filter(is).map(|frame| frame.bytes.clone()).collect()
}

/// Two ports whose addresses are known: stations 0 and 1.
fn pair(fabric: &Fabric, room: usize) -> ([PortId; 2], [Peer; 2]) {
    let ports = [0, 1].map(|_| port(fabric, PortRule::default()).0);
    let peers = ports.map(|port| Peer::attach(fabric, port, 0, Accepts::ALL, usize::MAX));
    peers[0].send([udp(9, 0, 0, 0, 60)]);
    peers[1].expect(1);
    peers[1].send([udp(9, 1, 0, 0, 60)]);
    peers[0].expect(1);
    wait(|| peers.iter().all(|peer| peer.completed() == 1));
    peers[1].limit(room);
    (ports, peers)
}

#[test]
fn both_directions_are_captured_on_whatever_worker() {
    for workers in [1, 2, 3] {
        let fabric = fabric(workers);
        let (ports, [a, b]) = pair(&fabric, usize::MAX);
        let mut capture = fabric.capture(&spec(&ports)).unwrap();
        let sent: Vec<Vec<u8>> =
            (0..300).map(|n| udp(1, 0, n as u16 % 7, n, 60 + 13 * n as usize)).collect();
        a.send(sent.clone());
        assert_eq!(b.expect(300).len(), 300);
        let answers: Vec<Vec<u8>> = (0..50).map(|n| udp(0, 1, 0, n, 100)).collect();
        b.send(answers.clone());
        a.expect(50);
        let frames = expect(&mut capture, 700);
        assert_eq!(of(&frames, 0, Direction::Outbound), sent, "{workers} workers");
        assert_eq!(of(&frames, 1, Direction::Inbound), sent, "{workers} workers");
        assert_eq!(of(&frames, 1, Direction::Outbound), answers);
        assert_eq!(of(&frames, 0, Direction::Inbound), answers);
        assert!(frames.iter().all(|frame| frame.dropped.is_none()));
        assert!(frames.iter().all(|frame| frame.len as usize == frame.bytes.len()));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let latest = frames.iter().map(|frame| frame.time).max().unwrap();
        assert!(now.as_nanos() as u64 - latest < 60_000_000_000, "the time of day");
        let counts = CaptureCounts { seen: 350, accepted: 350, lost: 0 };
        assert_eq!(capture.counts(), [counts; 2]);
    }
}

#[test]
fn a_frame_is_seen_to_leave_before_it_arrives() {
    let fabric = fabric(1);
    let (ports, [a, b]) = pair(&fabric, usize::MAX);
    let mut capture = fabric.capture(&spec(&ports)).unwrap();
    a.send([udp(1, 0, 0, 7, 60)]);
    b.expect(1);
    let frames = expect(&mut capture, 2);
    let directions = [frames[0].direction, frames[1].direction];
    assert_eq!(directions, [Direction::Outbound, Direction::Inbound]);
    assert!(frames[0].time <= frames[1].time);
}

#[test]
fn drops_are_captured_with_their_reasons() {
    for workers in [1, 2] {
        let fabric = fabric(workers);
        let (ports, [a, b]) = pair(&fabric, 2);
        let mut capture = fabric.capture(&spec(&ports)).unwrap();
        // Addresses behind its own port, reserved ones, nothing that is a frame.
        a.send([
            udp(0, 0, 0, 0, 60),
            vec![1, 0x80, 0xc2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 8, 0],
            vec![5; 9],
        ]);
        a.send((0..4).map(|n| udp(1, 0, 0, n, 60)));
        wait(|| a.completed() == 8);
        let frames = expect(&mut capture, 11);
        let sent = |dropped: Option<DropReason>| {
            let is = |frame: &&Frame| {
                (frame.interface, frame.direction, frame.dropped)
                    == (0, Direction::Outbound, dropped)
            };
            frames.iter().filter(is).count()
        };
        assert_eq!(sent(Some(DropReason::Reflection)), 1);
        assert_eq!(sent(Some(DropReason::LinkLocal)), 1);
        assert_eq!(sent(Some(DropReason::Runt)), 1);
        assert_eq!(sent(None), 4, "what a receiver drops is its own");
        let received: Vec<_> =
            frames.iter().filter(|frame| frame.interface == 1).map(|frame| frame.dropped).collect();
        assert_eq!(received[..2], [None; 2]);
        let counters = fabric.counters(ports[1]);
        for reason in DropReason::ALL {
            let captured = received.iter().filter(|dropped| **dropped == Some(*reason)).count();
            assert_eq!(captured as u64, counters[0].dropped(*reason), "{}", reason.name());
        }
        assert_eq!(received.len(), 4);
        drop(b);
    }
}

#[test]
fn a_port_without_a_guest() {
    let fabric = fabric(1);
    let (ports, [a, b]) = pair(&fabric, usize::MAX);
    fabric.detach(b.id).unwrap();
    let mut capture = fabric.capture(&spec(&ports[..1])).unwrap();
    a.send([udp(1, 0, 0, 0, 60), udp(8, 0, 0, 1, 60)]);
    let frames = expect(&mut capture, 2);
    let dropped: Vec<_> = frames.iter().map(|frame| frame.dropped).collect();
    assert_eq!(dropped, [Some(DropReason::PortDown), Some(DropReason::NoReceiver)]);
}

#[test]
fn a_reader_that_does_not_read_holds_nobody_up() {
    for workers in [1, 2] {
        const COUNT: usize = 20_000;
        let fabric = fabric(workers);
        let (ports, [a, b]) = pair(&fabric, usize::MAX);
        let mut capture = fabric.capture(&spec(&ports)).unwrap();
        for n in 0..COUNT / 1000 {
            a.send((0..1000).map(|m| udp(1, 0, 0, (1000 * n + m) as u32, 1514)));
            assert_eq!(b.expect(1000).len(), 1000);
        }
        wait(|| a.completed() == COUNT + 1);
        let mut frames = Vec::new();
        while read(&mut capture, &mut frames) > 0 {}
        let sum = capture.counts().iter().fold(CaptureCounts::default(), |sum, counts| {
            let (seen, accepted) = (sum.seen + counts.seen, sum.accepted + counts.accepted);
            CaptureCounts { seen, accepted, lost: sum.lost + counts.lost }
        });
        assert_eq!((sum.seen, sum.accepted), (2 * COUNT as u64, 2 * COUNT as u64));
        assert!(sum.lost > 0);
        assert_eq!(frames.len() as u64 + sum.lost, 2 * COUNT as u64);
        assert!(frames.iter().all(|frame| frame.bytes.len() == 1514));
        // There is room again.
        a.send([udp(1, 0, 0, 0, 60)]);
        b.expect(1);
        expect(&mut capture, 2);
    }
}

#[test]
fn a_filter_and_a_length() {
    let fabric = fabric(1);
    let (ports, [a, b]) = pair(&fabric, usize::MAX);
    let program = |offset, value| {
        let of = |code, jt, jf, k| Instruction { code, jt, jf, k };
        // The byte at this offset has this value.
        let steps = [
            of(0x30, 0, 0, offset),
            of(0x15, 0, 1, value),
            of(0x06, 0, 0, 262_144),
            of(0x06, 0, 0, 0),
        ];
        Filter::new(&steps).unwrap()
    };
    // In the head, behind it, in no frame.
    let cases = [(45, 7, 1), (900, 7, 1), (900, 8, 0), (2000, 7, 0)];
    for (offset, value, matches) in cases {
        let filter = Some(program(offset, value));
        let whole = CaptureSpec { filter: filter.clone(), ..spec(&ports[..1]) };
        let mut whole = fabric.capture(&whole).unwrap();
        let cut = CaptureSpec { filter, snaplen: 200, ..spec(&ports[1..]) };
        let mut cut = fabric.capture(&cut).unwrap();
        let frames = [udp(1, 0, 0, 6, 60), udp(1, 0, 0, 7, 1000)];
        a.send(frames.clone());
        b.expect(2);
        let counts = CaptureCounts { seen: 2, accepted: matches, lost: 0 };
        wait(|| whole.counts() == [counts] && cut.counts() == [counts]);
        // A frame is counted before it can be read.
        let [long, short] = [&mut whole, &mut cut].map(|capture| expect(capture, matches as usize));
        for (long, short) in long.iter().zip(&short) {
            assert_eq!((&long.bytes, long.len), (&frames[1], 1000));
            assert_eq!((&short.bytes[..], short.len), (&frames[1][..200], 1000));
        }
    }
}

#[test]
fn offloads_are_told() {
    let fabric = fabric(1);
    let ports = [0, 1].map(|_| port(&fabric, PortRule::default()).0);
    let plain = Accepts::default();
    let peers = ports.map(|port| Peer::attach(&fabric, port, 0, plain, usize::MAX));
    let mut capture = fabric.capture(&spec(&ports)).unwrap();
    // TCP of 54 bytes of headers and 3000 bytes of payload, in segments of 1000.
    let mut tcp = udp(1, 0, 0, 0, 54);
    tcp[16..18].copy_from_slice(&3040u16.to_be_bytes());
    tcp[23] = 6;
    tcp[46] = 0x50;
    tcp.resize(3054, 1);
    let mut vnet = [0; VNET_LEN];
    vnet[..10].copy_from_slice(&[1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0]);
    peers[0].send_with(vnet, &tcp);
    assert_eq!(peers[1].expect(3).len(), 3);
    for frame in expect(&mut capture, 2) {
        assert_eq!(frame.segments, Some((GsoKind::TcpV4, 1000)));
        assert!(frame.partial_checksum);
        let cut = if frame.direction == Direction::Inbound { 3 } else { 1 };
        assert_eq!((frame.cut_into, frame.bytes.len()), (cut, 3054));
    }
}

#[test]
fn tags_are_those_of_the_port() {
    let fabric = fabric(1);
    let rules = [Vlan::Access(10), Vlan::Trunk(vec![10])];
    let ports = rules.map(|vlan| port(&fabric, PortRule { vlan, ..PortRule::default() }).0);
    let peers = ports.map(|port| Peer::attach(&fabric, port, 0, Accepts::ALL, usize::MAX));
    let mut capture = fabric.capture(&spec(&ports)).unwrap();
    peers[0].send([udp(1, 0, 0, 5, 300)]);
    let received = peers[1].expect(1);
    let frames = expect(&mut capture, 2);
    assert_eq!(of(&frames, 0, Direction::Outbound), [udp(1, 0, 0, 5, 300)]);
    assert_eq!(of(&frames, 1, Direction::Inbound), received);
    assert_eq!(received[0].len(), 304);
}

#[test]
fn a_capture_follows_its_port_and_ends_with_it() {
    let fabric = fabric(2);
    let (ports, [a, b]) = pair(&fabric, usize::MAX);
    let mut capture = fabric.capture(&spec(&ports[..1])).unwrap();
    let mut other = fabric.capture(&spec(&ports)).unwrap();
    for to in [0, 1, 0, 1] {
        fabric.move_queue(a.id, to);
        a.send([udp(1, 0, 0, 5, 300)]);
        b.expect(1);
        assert_eq!(expect(&mut capture, 1)[0].direction, Direction::Outbound);
        assert_eq!(expect(&mut other, 2).len(), 2);
    }
    // Another queue of the port.
    let late = Peer::attach(&fabric, ports[0], 1, Accepts::ALL, usize::MAX);
    late.send([udp(1, 0, 0, 5, 300)]);
    assert_eq!(expect(&mut capture, 1)[0].len, 300);
    expect(&mut other, 2);

    fabric.remove_port(ports[0]);
    assert!(capture.has_ended() && !other.has_ended());
    // Its number is free for another port, which nobody captures.
    let (again, _) = port(&fabric, PortRule::default());
    assert_eq!(again, ports[0]);
    let stranger = Peer::attach(&fabric, again, 0, Accepts::ALL, usize::MAX);
    stranger.send([udp(1, 3, 0, 5, 300)]);
    b.expect(1);
    assert_eq!(expect(&mut other, 1)[0].direction, Direction::Inbound);
    expect(&mut capture, 0);
    fabric.remove_port(ports[1]);
    assert!(other.has_ended());
}

#[test]
fn captures_are_few_and_free_their_places() {
    let fabric = fabric(1);
    let (ports, [a, b]) = pair(&fabric, usize::MAX);
    let start = |ports: &[PortId]| fabric.capture(&spec(ports));
    assert_eq!(start(&[]).err(), Some(CaptureError::Ports));
    assert_eq!(start(&[PortId(77)]).err(), Some(CaptureError::Ports));
    for _ in 0..3 {
        let mut captures: Vec<Capture> =
            (0..MAX_CAPTURES).map(|_| start(&ports).unwrap()).collect();
        assert_eq!(start(&ports).err(), Some(CaptureError::TooMany));
        a.send([udp(1, 0, 0, 5, 300)]);
        b.expect(1);
        for capture in &mut captures {
            expect(capture, 2);
        }
        let mut last = captures.pop().unwrap();
        last.end();
        let _next = start(&ports).unwrap();
        // Ending twice does not end the one that has its place now.
        last.end();
        drop(last);
        assert_eq!(start(&ports).err(), Some(CaptureError::TooMany));
    }
    start(&ports).unwrap();
}
