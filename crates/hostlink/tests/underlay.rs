//! Two to three hosts in one process, each with a fabric of its own, over the loopback interface.

#[path = "../../network/tests/peer/mod.rs"]
mod peer;

mod mesh;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use frame::vxlan::VXLAN_LEN;
use frame::{Accepts, Gso, GsoKind, Mac, Offload, PartialCsum, Sum, vnet};
use hostlink::underlay::{PeerSpec, Transport, Underlay, UnderlayError};
use mesh::{Host, address, free_port, mesh, mesh_of, vni};
use network::count::DropReason;
use network::fabric::{Fabric, Workers};
use peer::{flow_and_number, udp, wait};
use switch::{PinKind, Station, Tunnel};

const LEARNING: Tunnel = Tunnel { group: 1, learns: true, floods: true };

fn broadcast(src: u8, number: u32) -> Vec<u8> {
    let mut frame = udp(0, src, 1, number, 60);
    frame[..6].fill(0xff);
    frame
}

#[test]
fn frames_go_to_the_host_where_their_station_is() {
    for workers in [1, 2] {
        let hosts = mesh(3, workers, LEARNING);
        let [a, b, c] = &hosts[..] else { unreachable!() };
        // Each other host gets one copy, and sends it on to no third one.
        a.guest.send([broadcast(1, 0)]);
        assert_eq!(b.guest.expect(1), [broadcast(1, 0)]);
        assert_eq!(c.guest.expect(1), [broadcast(1, 0)]);
        b.guest.send([broadcast(2, 0)]);
        assert_eq!(a.guest.expect(1), [broadcast(2, 0)]);
        assert_eq!(c.guest.expect(1), [broadcast(2, 0)]);
        // Both are learned now.
        let frames: Vec<_> = (0..2000).map(|n| udp(2, 1, n as u16 % 40, n, 900)).collect();
        for burst in frames.chunks(20) {
            let before = b.fabric.counters(b.guest_port)[0].rx.frames.get();
            a.guest.send(burst.to_vec());
            wait(|| b.fabric.counters(b.guest_port)[0].rx.frames.get() >= before + 20);
        }
        let got = b.guest.expect(2000);
        assert!(got.iter().all(|frame| frames.contains(frame)));
        // Within a flow, none overtakes another.
        for flow in 0..40 {
            let of_flow = got.iter().map(|frame| flow_and_number(frame));
            let numbers: Vec<u32> =
                of_flow.filter(|((_, own), _)| *own == flow).map(|(_, n)| n).collect();
            assert!(numbers.len() == 50 && numbers.is_sorted(), "flow {flow}: {numbers:?}");
        }
        b.guest.send([udp(1, 2, 7, 9, 60)]);
        assert_eq!(a.guest.expect(1), [udp(1, 2, 7, 9, 60)]);
        assert!(c.guest.received().is_empty());
        let counts = a.underlay.counts();
        assert_eq!(counts.sent, 2 + 2000);
        assert!(counts.send_calls < counts.sent, "{counts:?}");
        hosts.iter().for_each(Host::check);
    }
}

/// Full bursts of short frames may wait for the next burst, but not when there is none.
#[test]
fn short_frames_arrive_also_when_no_others_follow() {
    for workers in [1, 2] {
        let hosts = mesh(2, workers, LEARNING);
        let [a, b] = &hosts[..] else { unreachable!() };
        b.guest.send([broadcast(2, 0)]);
        assert_eq!(a.guest.expect(1), [broadcast(2, 0)]);
        for count in [64, 128, 192, 256, 320, 1, 64] {
            a.guest.send((0..count).map(|n| udp(2, 1, n as u16 % 20, n, 60)));
            assert_eq!(b.guest.expect(count as usize).len(), count as usize);
        }
        hosts.iter().for_each(Host::check);
    }
}

#[test]
fn what_is_no_frame_of_a_peer_is_refused_under_a_name() {
    let hosts = mesh(2, 1, LEARNING);
    let b = &hosts[1];
    let to = b.underlay.local();
    let peer = UdpSocket::bind((address(1, false), 0)).unwrap();
    let stranger = UdpSocket::bind((address(9, false), 0)).unwrap();
    let inner = broadcast(1, 3);
    let datagram = |number: u32| [&vni(number).header()[..], &inner].concat();
    stranger.send_to(&datagram(100), to).unwrap();
    peer.send_to(&datagram(101), to).unwrap();
    peer.send_to(&datagram(100)[..VXLAN_LEN + 13], to).unwrap();
    peer.send_to(&[], to).unwrap();
    peer.send_to(&[&[0; VXLAN_LEN][..], &inner].concat(), to).unwrap();
    peer.send_to(&datagram(100), to).unwrap();
    assert_eq!(b.guest.expect(1), [inner]);
    for (name, count) in [("unknown_vtep", 1), ("unknown_vni", 1), ("malformed", 2), ("no_vni", 1)]
    {
        wait(|| b.refused(name) == count);
    }
    let counts = b.underlay.counts();
    assert_eq!((counts.received, b.guest.received().len()), (6, 0));
    b.check();
}

/// A stranger sends the same as a peer, each time right after it, so that both are in one burst.
#[test]
fn a_stranger_is_refused_between_datagrams_of_a_peer() {
    const COUNT: u32 = 200;
    let hosts = mesh(2, 1, LEARNING);
    let b = &hosts[1];
    let [peer, stranger] = [1, 9].map(|host| UdpSocket::bind((address(host, false), 0)).unwrap());
    for number in 0..COUNT {
        let datagram = [&vni(100).header()[..], &broadcast(1, number)].concat();
        for socket in [&peer, &stranger] {
            socket.send_to(&datagram, b.underlay.local()).unwrap();
        }
    }
    assert_eq!(b.guest.expect(COUNT as usize).len(), COUNT as usize);
    wait(|| b.underlay.counts().received == u64::from(2 * COUNT));
    assert_eq!((b.refused("unknown_vtep"), b.guest.received().len()), (COUNT.into(), 0));
    b.check();
}

#[test]
fn a_locked_address_is_not_taken_over_the_underlay() {
    let hosts = mesh(2, 1, LEARNING);
    let [a, b] = &hosts[..] else { unreachable!() };
    b.fabric.lock_source(b.guest_port, Mac([2, 0, 0, 0, 0, 2])).unwrap();
    a.guest.send([broadcast(2, 0), broadcast(1, 1)]);
    assert_eq!(b.guest.expect(1), [broadcast(1, 1)]);
    // Frames of different flows leave through different sockets, and may overtake each other.
    wait(|| b.dropped(b.underlay.port(), DropReason::SourceTaken) == 1);
    b.check();
}

/// 40000 bytes.
fn noise() -> Vec<u8> {
    (0..40_000u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// Headers of `payload` bytes of TCP from one guest to another. The field of the TCP checksum has
/// the pseudo header's sum.
fn tcp(to: u8, from: u8, sequence: u32, payload: usize) -> Vec<u8> {
    let mut frame = udp(to, from, 5, 0, 54);
    let l4_len = 20 + payload as u16;
    frame[16..18].copy_from_slice(&(20 + l4_len).to_be_bytes());
    frame[20..22].copy_from_slice(&0x4000u16.to_be_bytes());
    frame[23] = 6;
    let csum = Sum::of(&[&frame[14..24], &frame[26..34]].concat()).checksum();
    frame[24..26].copy_from_slice(&csum.to_be_bytes());
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    (frame[46], frame[47]) = (5 << 4, 0x10);
    let mut sum = Sum::new();
    sum.add_pseudo_v4([10, 0, 0, from], [10, 0, 0, to], 6, l4_len.into());
    frame[50..52].copy_from_slice(&sum.fold().to_be_bytes());
    frame
}

/// TCP from guest 1 to guest 2, to be cut into segments of 1400 bytes: an offload header and a
/// frame.
fn stream(payload: &[u8]) -> ([u8; frame::VNET_LEN], Vec<u8>) {
    let frame = [&tcp(2, 1, 0, payload.len()), payload].concat();
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1400, ecn: false });
    let csum = Some(PartialCsum { start: 34, offset: 16 });
    (vnet::encode(&Offload { csum, gso, ..Offload::default() }, 54), frame)
}

#[test]
fn segments_of_a_stream_arrive_as_one_frame() {
    let hosts = mesh_of(2, 1, LEARNING, Accepts::ALL);
    let [a, b] = &hosts[..] else { unreachable!() };
    b.guest.send([broadcast(2, 0)]);
    a.guest.expect(1);
    let payload = noise();
    let (vnet, frame) = stream(&payload);
    a.guest.send_with(vnet, &frame);
    let mut got = Vec::new();
    wait(|| {
        got.extend(b.guest.received());
        got.iter().map(|frame| frame.len() - 54).sum::<usize>() == payload.len()
    });
    let whole: Vec<u8> = got.iter().flat_map(|frame| frame[54..].to_vec()).collect();
    assert!(whole == payload);
    assert_eq!(b.guest.left_to_do().len(), got.len());
    // The kernel keeps datagrams together that were sent together.
    assert!(got.len() < 5, "{} frames", got.len());
    a.check();
    b.check();

    // What is not TCP is as it was, and so is a segment with a wrong checksum.
    let datagrams: Vec<_> = (0..20).map(|number| udp(2, 1, 5, number, 200)).collect();
    a.guest.send(datagrams.clone());
    assert_eq!(b.guest.expect(20), datagrams);
    let wrong = [&tcp(2, 1, 0, 1000), &payload[..1000]].concat();
    a.guest.send(vec![wrong.clone(); 10]);
    assert_eq!(b.guest.expect(10), vec![wrong; 10]);
}

/// Segment number `n` of 1000 bytes of a stream from guest 2 to guest 1, with these bytes.
fn segment(n: u32, byte: u8) -> Vec<u8> {
    let mut frame = [tcp(1, 2, n * 1000, 1000), vec![byte; 1000]].concat();
    let csum = Sum::of(&frame[34..]).checksum();
    frame[50..52].copy_from_slice(&csum.to_be_bytes());
    frame
}

/// Between two segments that follow each other lies a datagram of a network that does not exist.
/// None of its bytes may reach a guest.
#[test]
fn what_is_refused_between_two_segments_is_not_delivered() {
    let hosts = mesh_of(1, 1, LEARNING, Accepts::ALL);
    let host = &hosts[0];
    host.join(2, LEARNING);
    let socket = UdpSocket::bind((address(2, false), 0)).unwrap();
    let datagram = |number: u32, frame: Vec<u8>| [&vni(number).header()[..], &frame].concat();
    let datagrams = [
        datagram(100, segment(0, 1)),
        datagram(100, segment(1, 2)),
        datagram(999, segment(2, 0xee)),
        datagram(100, segment(2, 3)),
        datagram(100, segment(3, 4)),
    ];
    send_together(&socket, host.underlay.local(), &datagrams);
    let mut got = Vec::new();
    wait(|| {
        got.extend(host.guest.received());
        got.iter().map(|frame| frame.len() - 54).sum::<usize>() == 4000
    });
    assert_eq!(host.refused("unknown_vni"), 1);
    let payloads: Vec<u8> = got.iter().flat_map(|frame| frame[54..].to_vec()).collect();
    let expected: Vec<u8> = (1..=4).flat_map(|byte| [byte; 1000]).collect();
    assert!(payloads == expected);
    assert_eq!(got.len(), 2, "the kernel keeps datagrams together that were sent together");
}

/// Sends datagrams of one length by one system call, in one piece.
fn send_together(socket: &UdpSocket, to: SocketAddr, datagrams: &[Vec<u8>]) {
    let len = datagrams[0].len() as libc::c_int;
    // SAFETY: the kernel reads an int.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const len).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
    socket.send_to(&datagrams.concat(), to).unwrap();
}

#[test]
fn long_frames_are_cut_and_those_that_are_too_long_are_dropped() {
    let hosts = mesh(2, 1, LEARNING);
    let [a, b] = &hosts[..] else { unreachable!() };
    b.guest.send([broadcast(2, 0)]);
    a.guest.expect(1);
    let payload = noise();
    let (vnet, frame) = stream(&payload);
    a.guest.send_with(vnet, &frame);
    let got = b.guest.expect(29);
    let whole: Vec<u8> = got.iter().flat_map(|frame| frame[54..].to_vec()).collect();
    assert!(whole == payload, "{} bytes", whole.len());
    for frame in &got {
        let mut sum = Sum::new();
        sum.add_pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, frame.len() as u32 - 34);
        sum.append(Sum::of(&frame[34..]));
        assert_eq!(sum.fold(), 0xffff);
    }
    // The longest packet, and one byte more.
    a.guest.send([udp(2, 1, 5, 1, 14 + 1450), udp(2, 1, 5, 2, 14 + 1451), udp(2, 1, 5, 3, 60)]);
    assert_eq!(b.guest.expect(2).iter().map(Vec::len).collect::<Vec<_>>(), [1464, 60]);
    let (.., end) = a.underlay.peers()[0];
    assert_eq!(a.dropped(end, DropReason::OverMtu), 1);
    a.check();
}

#[test]
fn peers_come_and_go_under_traffic() {
    let hosts = mesh(2, 2, Tunnel { learns: false, ..LEARNING });
    let [a, b] = &hosts[..] else { unreachable!() };
    let station = Station { network: switch::Network::UNTAGGED, mac: Mac([2, 0, 0, 0, 0, 2]) };
    let (.., end) = a.underlay.peers()[0];
    a.fabric.pin(station, end, PinKind::Sticky).unwrap();
    a.guest.send([udp(2, 1, 1, 1, 60)]);
    assert_eq!(b.guest.expect(1), [udp(2, 1, 1, 1, 60)]);
    assert!(matches!(
        a.underlay.add_peer(&PeerSpec {
            vni: vni(100),
            vtep: address(2, false),
            vlan: None,
            mtu: 1450,
            tunnel: LEARNING
        }),
        Err(UnderlayError::Vtep(_))
    ));
    assert!(a.underlay.remove_peer(vni(100), address(2, false)));
    assert!(!a.underlay.remove_peer(vni(100), address(2, false)));
    a.guest.send([udp(2, 1, 1, 2, 60)]);
    wait(|| a.dropped(a.guest_port, DropReason::NoReceiver) == 1);
    b.guest.send([broadcast(2, 4)]);
    wait(|| a.refused("unknown_vtep") == 1);
    a.join(2, LEARNING);
    b.guest.send([broadcast(2, 5)]);
    assert_eq!(a.guest.expect(1), [broadcast(2, 5)]);
    a.guest.send([udp(2, 1, 1, 3, 60)]);
    assert_eq!(b.guest.expect(1), [udp(2, 1, 1, 3, 60)]);
}

#[test]
fn addresses_that_cannot_be_used_say_so() {
    let fabric = Arc::new(Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap());
    let start = |text: &str| {
        Underlay::start(Arc::clone(&fabric), "net", text.parse().unwrap(), &Transport::Sockets)
    };
    let error = start("192.0.2.1:4789").err().unwrap().to_string();
    assert!(error.contains("it must be an address of this host"), "{error}");
    let port = free_port();
    let _other = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let error = start(&format!("127.0.0.1:{port}")).err().unwrap().to_string();
    assert!(error.contains("a VXLAN device of the kernel, uses the port"), "{error}");
    assert_eq!(start(&format!("[::1]:{port}")).unwrap().local().ip(), address(1, true));
}
