//! Two network namespaces of one host, joined by two TAP ports: the kernel's own TCP at both ends.
//!
//! Needs root. Everything happens in namespaces that the test makes, and that end with its threads.

mod uplink;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hostlink::route_socket::{LinkKind, TapAccess, link_kind};
use hostlink::tap::{Tap, TapConfig, TapError};
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use switch::PortRule;

/// Moves the calling thread into a network namespace of its own.
fn leave_host() {
    // SAFETY: a network namespace is the thread's own affair; no memory or descriptor table is
    // unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("needs root");
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {args}");
}

fn tap(fabric: &Arc<Fabric>, device: &str, queues: u16, mtu: u16) -> Result<Tap, TapError> {
    let config = TapConfig {
        device: device.into(),
        queues,
        rule: PortRule::default(),
        mtu: Some(mtu),
        policy: None,
        restrictions: network::restrictions::Restrictions::default(),
    };
    Tap::start(Arc::clone(fabric), config)
}

/// Bytes that a shifted or repeated piece would not match.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// Has the kernel send `bytes` as datagrams of `size`, in one frame with offload (UDP_SEGMENT).
fn send_many_as_one(udp: &UdpSocket, bytes: &[u8], size: libc::c_int) {
    udp.connect("10.9.0.2:7000").unwrap();
    // SAFETY: the option's value is a C int, and lives through the call.
    let set = unsafe {
        let value = (&raw const size).cast();
        libc::setsockopt(
            udp.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            value,
            size_of_val(&size) as u32,
        )
    };
    assert_eq!(set, 0, "UDP_SEGMENT");
    assert_eq!(udp.send(bytes).unwrap(), bytes.len());
}

#[test]
#[ignore = "needs root"]
fn the_kernels_tcp_goes_through_unharmed() {
    for (workers, mtu) in [(1, 1500), (2, 9000)] {
        leave_host();
        let fabric =
            Arc::new(Fabric::start(&Workers { count: workers, ..Workers::default() }).unwrap());
        let near = tap(&fabric, "rm-near", 2, mtu).unwrap();
        let far = tap(&fabric, "rm-far", 2, mtu).unwrap();
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let server = thread::spawn(move || {
            leave_host();
            tell.send(gettid()).unwrap();
            gone.recv().unwrap();
            ip("addr add 10.9.0.2/24 dev rm-far");
            ip("link set rm-far up");
            let listener = TcpListener::bind("10.9.0.2:7000").unwrap();
            let udp = UdpSocket::bind("10.9.0.2:7000").unwrap();
            tell.send(gettid()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
            drop(stream);
            let mut datagram = [0; 2000];
            let (len, from) = udp.recv_from(&mut datagram).unwrap();
            udp.send_to(&datagram[..len], from).unwrap();
            for piece in pattern(20_000).chunks(1000).take(10) {
                let len = udp.recv(&mut datagram).unwrap();
                assert!(
                    &datagram[..len] == piece,
                    "a datagram of {len} bytes is not the one that was sent"
                );
            }
        });
        ip(&format!("link set rm-far netns {}", told.recv().unwrap().as_raw_nonzero()));
        ip("addr add 10.9.0.1/24 dev rm-near");
        go.send(()).unwrap();
        told.recv().unwrap();
        let sent = pattern(20_000_000);
        let mut stream = TcpStream::connect("10.9.0.2:7000").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} bytes came back, of {}", back.len(), sent.len());
        let udp = UdpSocket::bind("10.9.0.1:0").unwrap();
        udp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        udp.send_to(&sent[..1400], "10.9.0.2:7000").unwrap();
        let mut datagram = [0; 2000];
        assert_eq!(udp.recv(&mut datagram).unwrap(), 1400);
        assert_eq!(datagram[..1400], sent[..1400]);
        send_many_as_one(&udp, &sent[..10 * 1000], 1000);
        server.join().unwrap();
        assert!(near.stopped().is_none() && far.stopped().is_none());
        let bytes = |tap: &Tap| {
            fabric.counters(tap.port()).iter().map(|queue| queue.tx.bytes.get()).sum::<u64>()
        };
        assert!(bytes(&near) > 20_000_000 && bytes(&far) > 20_000_000);
        let frames: u64 =
            fabric.counters(near.port()).iter().map(|queue| queue.tx.frames.get()).sum();
        assert!(bytes(&near) / frames > u64::from(mtu), "segments were not sent as one frame");
    }
}

/// A device whose queue in the kernel has run full while all of our buffers were under way does not
/// signal any more.
#[test]
#[ignore = "needs root"]
fn what_came_while_everything_was_under_way_is_not_left_lying() {
    leave_host();
    let (fabric, workers) = Fabric::manual(&Workers { count: 2, ..Workers::default() }).unwrap();
    let fabric = Arc::new(fabric);
    let [mut one, mut other] = <[ManualWorker; 2]>::try_from(workers).ok().unwrap();
    let [near, far] = ["rm-near", "rm-far"].map(|device| {
        let make = || tap(&fabric, device, 1, 1500).unwrap();
        one.run_while(|| other.run_while(make))
    });
    ip("addr add 10.9.0.1/24 dev rm-near");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev rm-near");
    let udp = UdpSocket::bind("10.9.0.1:0").unwrap();
    let send = |count| (0..count).for_each(|_| drop(udp.send_to(b"hello", "10.9.0.2:9")));
    let mut now = Instant::now();
    let mut tick = || {
        now += Duration::from_millis(1);
        now
    };
    let received =
        || fabric.counters(far.port()).iter().map(|queue| queue.rx.frames.get()).sum::<u64>();
    // The kernel may have sent a frame of its own while the ports came.
    let at_first = received();
    // Long enough for any worker to stop polling. More is sent than the kernel keeps.
    for _ in 0..100 {
        send(30);
        one.run_once(tick());
    }
    let before = received();
    for _ in 0..1000 {
        one.run_once(tick());
        other.run_once(tick());
    }
    let after = received();
    // Their ports leave in turns of both workers.
    one.run_while(|| other.run_while(|| drop([near, far])));
    assert_eq!(before, at_first, "the other worker was not served");
    assert!(after - before > 500, "{after} frames arrived, and the rest was left lying");
}

#[test]
#[ignore = "needs root"]
fn a_device_that_is_deleted_stops_its_port_only() {
    leave_host();
    let fabric = Arc::new(Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap());
    let gone = tap(&fabric, "rm-gone", 1, 1500).unwrap();
    let stays = tap(&fabric, "rm-stays", 1, 1500).unwrap();
    ip("link del rm-gone");
    // Whatever the kernel says on its interface (router solicitations, say) is sent towards the one
    // that is gone.
    ip("addr add 10.9.0.1/24 dev rm-stays");
    let udp = UdpSocket::bind("10.9.0.1:0").unwrap();
    udp.set_broadcast(true).unwrap();
    let start = Instant::now();
    while gone.stopped().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60));
        let _ = udp.send_to(b"hello", "10.9.0.255:9");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(stays.stopped().is_none());
}

/// The system's `/sys/class/net` is that of the host, not of the namespace.
#[test]
#[ignore = "needs root"]
fn interfaces_are_looked_up_in_the_threads_own_namespace() {
    leave_host();
    let fabric = Arc::new(Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap());
    assert_eq!(link_kind("rm-own").unwrap(), None);
    let _tap = tap(&fabric, "rm-own", 1, 1500).unwrap();
    let everyones = LinkKind::MultiQueueTap(TapAccess::default());
    assert_eq!(link_kind("rm-own").unwrap(), Some(everyones));
    ip("tuntap add mode tap multi_queue user 1000 group 2000 name rm-users");
    let users = TapAccess { user: Some(1000), group: Some(2000) };
    assert_eq!(link_kind("rm-users").unwrap(), Some(LinkKind::MultiQueueTap(users)));
    ip("tuntap add mode tap name rm-single");
    assert_eq!(link_kind("rm-single").unwrap(), Some(LinkKind::Other));
    ip("tuntap add mode tun multi_queue name rm-tun");
    assert_eq!(link_kind("rm-tun").unwrap(), Some(LinkKind::Other));
}

#[test]
#[ignore = "needs root"]
fn a_device_that_cannot_be_had_is_named() {
    leave_host();
    let fabric = Arc::new(Fabric::start(&Workers { count: 1, ..Workers::default() }).unwrap());
    ip("tuntap add dev rm-single mode tap");
    let error = tap(&fabric, "rm-single", 1, 1500)
        .err()
        .expect("a single-queue device is refused")
        .to_string();
    assert!(error.contains("rm-single") && error.contains("no multi-queue TAP"), "{error}");
    assert!(tap(&fabric, "no/name", 1, 1500).is_err());
}
