//! Guests that speak for others, and guests that are limited: network namespaces behind TAP ports,
//! whose kernels send what they are made to. Needs root.

mod groups;

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use lab::guest::Deadline;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, netdevice, sendto, socket};
use rustix::thread::gettid;
use serde_json::Value;

use super::uplink::{leave_host, run};
use super::{LONG, Site, wait};

/// Where the peer answers each datagram, and where it counts them.
const ECHO: u16 = 7;
const COUNT: u16 = 9;

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a namespace of its own, which does what it is told.
struct Guest {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    id: i32,
}

impl Guest {
    fn new() -> Guest {
        let (jobs, work) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            leave_host();
            tell.send(gettid().as_raw_nonzero().get()).unwrap();
            work.into_iter().for_each(|job| job());
        });
        Guest { jobs: Some(jobs), thread: Some(thread), id: told.recv().unwrap() }
    }

    /// Does something in the namespace.
    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = mpsc::channel();
        let job = Box::new(move || drop(done.send(work())));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        outcome.recv().expect("the work succeeds")
    }

    /// Takes a TAP over, as the station of this number.
    fn take(&self, device: &'static str, number: u8) {
        run(&format!("ip link set {device} netns {}", self.id));
        self.run(move || {
            run("ip link set lo up");
            run(&format!("ip link set {device} address 02:00:00:00:00:0{number}"));
            run(&format!("ip addr add 10.9.0.{number}/16 dev {device}"));
            run(&format!("ip link set {device} up"));
            run(&format!("ip -6 addr add 2001:db8::{number}/64 dev {device} nodad"));
        });
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A daemon with two TAP ports, and a namespace behind each.
struct Scene {
    site: Site,
    /// Behind the port "vm", as 10.9.0.2 and 2001:db8::2.
    vm: Guest,
    /// Behind the port "peer", as 10.9.0.1 and 2001:db8::1.
    peer: Guest,
    /// Senders of the datagrams that the peer counted.
    counted: mpsc::Receiver<SocketAddr>,
}

impl Scene {
    /// The port "vm" has these keys, too.
    fn new(keys: &str) -> Scene {
        leave_host();
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "[workers]\ncount = 2\n[control]\nsocket = {:?}\n\
             [[port]]\nname = \"peer\"\nkind = \"tap\"\ndevice = \"rm-peer\"\n\
             [[port]]\nname = \"vm\"\nkind = \"tap\"\ndevice = \"rm-vm\"\n{keys}\n",
            dir.path().join("control.sock")
        );
        std::fs::write(dir.path().join("ringmain.toml"), config).unwrap();
        let mut site = Site { dir, daemon: None, user: None };
        site.serve();
        let (vm, peer) = (Guest::new(), Guest::new());
        vm.take("rm-vm", 2);
        peer.take("rm-peer", 1);
        let (count, counted) = mpsc::channel();
        peer.run(move || serve(count));
        Scene { site, vm, peer, counted }
    }

    fn counters(&self, port: &str) -> Value {
        let json = self.site.ask(&["port", "show", port, "--json"]).unwrap();
        serde_json::from_str::<Value>(&json).unwrap()["total"].take()
    }

    fn dropped(&self, port: &str, reason: &str) -> u64 {
        self.counters(port)["drops"][reason].as_u64().unwrap()
    }

    fn set(&self, words: &[&str]) {
        assert!(self.site.ask(words).is_some(), "{words:?}");
    }

    /// The vm gets answers, with both protocols.
    fn speaks(&self) {
        for (own, peer) in [("10.9.0.2:0", "10.9.0.1:7"), ("[2001:db8::2]:0", "[2001:db8::1]:7")] {
            self.vm.run(move || {
                let socket = UdpSocket::bind(own).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let mut deadline = Deadline::new(LONG);
                loop {
                    socket.send_to(b"hello", peer).unwrap();
                    if socket.recv_from(&mut [0; 64]).is_ok() {
                        return;
                    }
                    assert!(!deadline.is_over(), "{peer} does not answer");
                }
            });
        }
    }

    /// The vm does something, and it is dropped under this name.
    fn refuses(&self, reason: &str, work: impl FnOnce() + Send + 'static) {
        let before = self.dropped("vm", reason);
        self.vm.run(work);
        wait(|| self.dropped("vm", reason) > before);
    }

    /// Sends so many datagrams of 1000 bytes to where the peer counts them.
    fn send(&self, number: usize) {
        self.vm.run(move || {
            let socket = UdpSocket::bind("10.9.0.2:0").unwrap();
            for _ in 0..number {
                socket.send_to(&[7; 1000], ("10.9.0.1", COUNT)).unwrap();
            }
        });
    }

    /// Waits until the peer has counted so many datagrams more.
    fn arrive(&self, number: usize) {
        for _ in 0..number {
            self.counted.recv_timeout(LONG).expect("they arrive");
        }
    }

    /// How often frames of the vm waited for its rate.
    fn limited(&self) -> u64 {
        self.counters("vm")["tx_limited"].as_u64().unwrap()
    }
}

/// Answers and counts datagrams, in threads that end with the process.
fn serve(count: mpsc::Sender<SocketAddr>) {
    let echo = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, ECHO)).unwrap();
    std::thread::spawn(move || {
        while let Ok((_, from)) = echo.recv_from(&mut [0; 64]) {
            let _ = echo.send_to(b"hello", from);
        }
    });
    let counter = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, COUNT)).unwrap();
    std::thread::spawn(move || {
        while let Ok((_, from)) = counter.recv_from(&mut [0; 2048]) {
            let _ = count.send(from);
        }
    });
}

/// One datagram from an address of the namespace.
fn say(from: &str, to: &str) {
    let socket = UdpSocket::bind(from).unwrap();
    socket.send_to(b"hello", to).unwrap();
}

/// A router advertisement to all nodes, through a device.
fn advertise(device: &str) {
    let raw: OwnedFd =
        socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)).unwrap();
    let index = netdevice::name_to_index(&raw, device).unwrap();
    // Type, code, checksum (the kernel's), hop limit, flags, lifetime, reachable, retransmit.
    let message = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let all_nodes = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, index);
    sendto(&raw, &message, SendFlags::empty(), &all_nodes).unwrap();
}

#[test]
#[ignore = "needs root and namespaces"]
fn a_guest_that_speaks_for_others_is_not_heard() {
    let scene =
        Scene::new("mac = \"02:00:00:00:00:02\"\naddresses = [\"10.9.0.2\", \"2001:db8::2\"]");
    scene.speaks();
    scene.vm.run(|| {
        run("ip addr add 10.9.0.99/16 dev rm-vm");
        run("ip neigh replace 10.9.0.1 lladdr 02:00:00:00:00:01 nud permanent dev rm-vm");
    });
    scene.refuses("ip_spoofed", || say("10.9.0.99:0", "10.9.0.1:9"));
    // The kernel asks for a neighbour that it does not know, in the name of the packet's source.
    scene.refuses("arp_spoofed", || say("10.9.0.99:0", "10.9.0.50:9"));
    // Duplicate address detection.
    scene.refuses("nd_spoofed", || run("ip -6 addr add 2001:db8::99/64 dev rm-vm"));
    scene.refuses("dhcp_server", || say("10.9.0.2:67", "10.9.0.1:68"));
    scene.refuses("router_advertisement", || advertise("rm-vm"));
    scene.refuses("source_locked", || {
        run("ip link set rm-vm address 02:00:00:00:00:66");
        say("10.9.0.2:0", "10.9.0.1:9");
    });
    scene.vm.run(|| {
        run("ip link set rm-vm address 02:00:00:00:00:02");
        run("ip -6 addr replace 2001:db8::2/64 dev rm-vm nodad");
    });
    scene.speaks();
    assert!(scene.counted.try_recv().is_err(), "nothing spoofed came through");

    scene.set(&["port", "set", "vm", "addresses=10.9.0.2,10.9.0.99,2001:db8::/64"]);
    scene.vm.run(|| say("10.9.0.99:0", "10.9.0.1:9"));
    scene.arrive(1);
    scene.speaks();
    let shown = scene.site.ask(&["port", "show", "vm"]).unwrap();
    assert!(shown.contains("addresses    10.9.0.2 10.9.0.99 2001:db8::/64"), "{shown}");
    assert!(shown.contains("arp_spoofed"), "{shown}");
}

#[test]
#[ignore = "needs root and namespaces"]
fn limits_that_are_set_in_service_hold_and_are_counted() {
    let scene = Scene::new("");
    scene.speaks();
    scene.set(&["port", "set", "vm", "tx-rate=1kbit", "tx-burst=1514B"]);
    scene.send(30);
    wait(|| scene.limited() > 0);
    let shown = scene.site.ask(&["port", "show", "vm"]).unwrap();
    assert!(shown.contains("sends        1kbit/s (burst 1.514kB)"), "{shown}");
    assert!(shown.contains("tx limited"), "{shown}");
    // What waited goes when the limit does.
    scene.set(&["port", "set", "vm", "tx-rate=none"]);
    scene.arrive(30);

    let before = scene.limited();
    scene.set(&["budget", "add", "both", "tx-frames=1", "tx-frames-burst=1"]);
    scene.set(&["port", "set", "vm", "budget=both"]);
    scene.send(30);
    wait(|| scene.limited() > before);
    scene.set(&["budget", "set", "both", "tx-frames=none"]);
    scene.arrive(30);

    scene.set(&["port", "set", "peer", "rx-rate=1kbit", "rx-burst=1514B"]);
    scene.send(30);
    wait(|| scene.dropped("peer", "rx_rate") > 0);
    scene.set(&["port", "set", "peer", "rx-rate=none"]);
    scene.speaks();
    let stats = scene.site.ask(&["stats"]).unwrap();
    assert!(stats.contains("rx_rate") && stats.contains("TX LIMITED"), "{stats}");
}
