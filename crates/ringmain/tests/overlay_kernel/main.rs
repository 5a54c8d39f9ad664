//! A daemon with an overlay, and another host whose VXLAN device and bridge are the kernel's. Needs
//! root, iperf, ping, ethtool and tshark.
//!
//! Two hosts, and the guest of ours behind a TAP, are a network namespace each.

mod recording;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use lab::fixture::{Amount, Ends, Flow, carry};
use lab::guest::{GuestError, Namespace};
use recording::{found, record};
use serde_json::Value as Json;

const BINARY: &str = env!("CARGO_BIN_EXE_ringmain");

/// The address of the other host's bridge, at which its guest is.
const BRIDGE: &str = "02:00:00:00:00:22";

/// The addresses of an IP version.
struct Family {
    /// What `ping` calls it.
    option: &'static str,
    /// Our host, and the other one.
    outer: [&'static str; 2],
    /// What our host routes to its TAP device, where it has one.
    routed: &'static str,
    /// Our guest, and the one of the other host.
    inner: [&'static str; 2],
    length: u8,
    /// Bytes of headers that a packet between guests gets.
    overhead: u16,
    /// Bytes of a packet of `ping` before its payload.
    headers: u16,
}

const V4: Family = Family {
    option: "-4",
    outer: ["10.9.0.1", "10.9.0.2"],
    routed: "10.9.1.1",
    inner: ["10.20.0.1", "10.20.0.2"],
    length: 24,
    overhead: 50,
    headers: 28,
};
const V6: Family = Family {
    option: "-6",
    outer: ["fd09::1", "fd09::2"],
    routed: "fd09:1::1",
    inner: ["fd20::1", "fd20::2"],
    length: 64,
    overhead: 70,
    headers: 48,
};

/// What carries the datagrams of our host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Underlay {
    Sockets,
    /// A TAP device.
    Tap,
    /// Queues of the interface.
    Card,
}

/// What the wire does with long frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// As on a cable, no checksum and no segment is left to the receiver.
    Cable,
    /// As between virtual machines, both are.
    Virtual,
}

impl Family {
    /// Bits of a whole address.
    fn bits(&self) -> u8 {
        if self.option == "-6" { 128 } else { 32 }
    }
}

struct Site {
    ours: Namespace,
    theirs: Namespace,
    guest: Namespace,
    daemon: Daemon,
    mtu: u16,
    /// The address of our VTEP.
    vtep: &'static str,
}

/// Whether the kernel segments frames of tunnels for a TAP device. If it does not, a daemon says
/// so.
fn segments_tunnels() -> bool {
    let host = Namespace::new().unwrap();
    let config = |_: &Path| {
        "[[overlay]]\nname = \"net\"\nvni = 100\nlocal = \"10.9.1.1\"\nunderlay = \"tap\"\n\
         device = \"rm-net\"\n"
            .to_owned()
    };
    let daemon = Daemon::start(Path::new(BINARY), config, Some(&host)).unwrap();
    let shown = ask(&daemon, &["overlay", "show"]);
    let is_missing = shown.contains("can't find tunnel offloads (Linux 6.17) in \"rm-net\"");
    assert!(is_missing != shown.contains("connected"), "{shown}");
    !is_missing
}

/// What a daemon answers to a command.
fn ask(daemon: &Daemon, args: &[&str]) -> String {
    let control = daemon.dir().join("control.sock");
    let done = Command::new(BINARY).arg("--control").arg(control).args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn with_address(namespace: &Namespace, device: &str, address: &str, length: u8) {
    // Only one of the two has duplicates that are looked for.
    let more = if address.contains(':') { "nodad" } else { "" };
    let add = format!("address add {address}/{length} dev {device} {more}");
    namespace.ip(&format!("{add}\nlink set {device} up")).unwrap();
}

impl Site {
    fn start(outer: &Family, underlay: Underlay, wire: Wire) -> Site {
        let [ours, theirs, guest] = [(); 3].map(|()| Namespace::new().unwrap());
        // Two queues each, for cards.
        let queues = "numtxqueues 2 numrxqueues 2";
        let peer = format!("peer name e0 netns {} {queues}", theirs.id());
        ours.ip(&format!("link add e0 {queues} type veth {peer}")).unwrap();
        for (host, address) in [&ours, &theirs].into_iter().zip(outer.outer) {
            with_address(host, "e0", address, outer.length);
            if wire == Wire::Cable {
                host.run("ethtool", ["-K", "e0", "tx", "off"]).unwrap();
            }
        }
        let mtu = 1500 - outer.overhead;
        let [mut local, peer] = outer.outer;
        let mut device = "";
        if underlay == Underlay::Tap {
            theirs.ip(&format!("route add {}/{} via {local}", outer.routed, outer.bits())).unwrap();
            let forwarding = ["-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
            ours.run("sysctl", forwarding).unwrap();
            (local, device) = (outer.routed, "underlay = \"tap\"\ndevice = \"rm-net\"\n");
        }
        if underlay == Underlay::Card {
            device = "underlay = \"xdp\"\ndevice = \"e0\"\n";
        }
        let config = |_: &Path| {
            format!(
                "[workers]\ncount = 2\n[[port]]\nname = \"vm\"\nkind = \"tap\"\ndevice = \"rm-vm\"\n\
                 queues = 2\nmtu = {mtu}\n[[overlay]]\nname = \"net\"\nvni = 100\n\
                 local = \"{local}\"\npeers = [\"{peer}\"]\n{device}"
            )
        };
        let daemon = Daemon::start(Path::new(BINARY), config, Some(&ours)).unwrap();
        ours.ip(&format!("link set rm-vm netns {}", guest.id())).unwrap();
        theirs
            .ip(&format!(
                "link add br100 address {BRIDGE} type bridge\n\
                 link add vx100 type vxlan id 100 dstport 4789 local {peer}\n\
                 link set vx100 master br100 up\nlink set br100 mtu {mtu}"
            ))
            .unwrap();
        let flood = ["fdb", "append", "00:00:00:00:00:00", "dev", "vx100", "dst", local];
        theirs.run("bridge", flood).unwrap();
        for inner in [&V4, &V6] {
            with_address(&guest, "rm-vm", inner.inner[0], inner.length);
            with_address(&theirs, "br100", inner.inner[1], inner.length);
        }
        Site { ours, theirs, guest, daemon, mtu, vtep: local }
    }

    fn ask(&self, args: &[&str]) -> String {
        ask(&self.daemon, args)
    }

    fn json(&self, args: &[&str]) -> Json {
        serde_json::from_str(&self.ask(args)).unwrap()
    }

    /// Whether packets of this length, never cut, come back to our guest.
    fn ping(&self, family: &Family, packet: u16) -> bool {
        let size = (packet - family.headers).to_string();
        let mut ping = self.guest.command("ping");
        ping.args([
            family.option,
            "-n",
            "-M",
            "do",
            "-c",
            "3",
            "-i",
            "0.2",
            "-W",
            "2",
            "-s",
            &size,
        ]);
        let done = ping.arg(family.inner[1]).output().unwrap();
        String::from_utf8_lossy(&done.stdout).contains(" 0% packet loss")
    }

    fn until_it_pings(&self, family: &Family, packet: u16) {
        let start = Instant::now();
        while !self.ping(family, packet) {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", self.daemon.log());
        }
    }

    /// TCP streams with both kernels' segmentation, both ways.
    fn streams(&self, family: &Family) {
        let ends = [&self.guest, &self.theirs];
        for (to, from) in [(0, 1), (1, 0)] {
            let address = family.inner[to].into();
            let flow = Flow { from: ends[from], to: ends[to], address, streams: 2, batches: None };
            let carried = carry(&[flow], Amount::Bytes(4 << 20), |_| Ok::<_, GuestError>(()));
            let ends = carried.unwrap().ends;
            assert!(ends.iter().all(Ends::complete), "{}: {ends:?}", family.option);
        }
    }
}

fn one_network(outer: &Family, underlay: Underlay) {
    let site = Site::start(outer, underlay, Wire::Cable);
    let file = site.daemon.dir().join("wire.pcap").display().to_string();
    let recorder = record(&site.theirs, &file);
    for inner in [&V4, &V6] {
        site.until_it_pings(inner, inner.headers + 8);
        assert!(site.ping(inner, site.mtu), "the longest packet");
        site.streams(inner);
    }
    drop(recorder);
    let ours = format!("vxlan && {}.src == {}", ip(outer), site.vtep);
    assert!(found(&file, &format!("{ours} && tcp")).len() > 100);
    let right =
        "vxlan.vni == 100 && vxlan.flag_i == 1 && vxlan.reserved8 == 0 && udp.dstport == 4789";
    let none = |expression: &str| {
        assert_eq!(found(&file, &format!("{ours} && ({expression})")), [""; 0], "{expression}");
    };
    none(&format!("!({right})"));
    let broken = ["ip", "udp", "tcp"].map(|name| format!("{name}.checksum.status == 0"));
    none(&format!("_ws.malformed || {}", broken.join(" || ")));
    none("ip.flags.mf == 1");
    shows_what_it_did(&site, outer.outer[1]);
    tells_the_mtu(&site, outer.outer[1]);
}

/// A guest that does not know the MTU loses packets under a name, and is told.
fn tells_the_mtu(site: &Site, peer: &str) {
    site.guest.ip("link set rm-vm mtu 1500").unwrap();
    for inner in [&V4, &V6] {
        assert!(!site.ping(inner, site.mtu + 1));
        site.streams(inner);
        let words = ["route", "get", inner.inner[1]];
        let route = site.guest.run("ip", words).unwrap();
        assert!(route.contains(&format!("mtu {}", site.mtu)), "{route}");
    }
    // Where the peer's queue belongs to another worker, the guest's port counts.
    let over_mtu = |port: &str| {
        let shown = site.json(&["port", "show", port, "--json"]);
        shown["total"]["drops"]["over_mtu"].as_u64().unwrap()
    };
    assert!(over_mtu(&format!("net/100/{peer}")) + over_mtu("vm") >= 2);
}

fn ip(family: &Family) -> &'static str {
    if family.option == "-6" { "ipv6" } else { "ip" }
}

fn shows_what_it_did(site: &Site, peer: &str) {
    let local = site.vtep;
    let shown = site.json(&["overlay", "show", "net", "--json"]);
    let net = &shown["overlays"][0];
    assert_eq!((&net["state"], &net["local"]), (&"connected".into(), &local.into()), "{net:#}");
    assert_eq!(net["mtu"], site.mtu);
    let count = |key: &str| net[key].as_u64().unwrap();
    // A datagram to be segmented counts once.
    assert!(count("datagrams_received") > 400, "{net:#}");
    // Several datagrams go by one call.
    assert!(net["underlay"] == "tap" || count("datagrams_sent") > 2 * count("send_calls"));
    for (reason, lost) in net["drops"].as_object().unwrap() {
        // The other host's kernel reports the first datagrams, for which it has no device yet. The
        // next hop of a card's datagrams may not be known at first.
        let mut early = [("tap", "not_vxlan"), ("xdp", "unreachable")].into_iter();
        let is_early = early.any(|(kind, name)| net["underlay"] == kind && name == reason)
            && lost.as_u64().is_some_and(|count| count < 20);
        assert!(*lost == 0 || reason == "socket_full" || is_early, "{net:#}");
    }
    let peers = site.json(&["overlay", "peers", "--json"]);
    let first = &peers["peers"][0];
    assert_eq!((&first["vtep"], &first["flood"]), (&peer.into(), &true.into()), "{peers:#}");
    assert!(first["frames"].as_u64().unwrap() > 100, "{peers:#}");
    let macs = site.ask(&["overlay", "macs"]);
    let row = macs.lines().find(|line| line.contains(BRIDGE));
    assert!(row.is_some_and(|row| row.contains(peer) && row.contains("learned")), "{macs}");
    // The kernel has learned where our guest is.
    let fdb = site.theirs.run("bridge", ["fdb", "show", "dev", "vx100"]).unwrap();
    assert!(fdb.contains(&format!("dst {local} ")), "{fdb}");
    // All bytes came with right checksums.
    let snmp = site.theirs.run("cat", ["/proc/net/snmp"]).unwrap();
    for protocol in ["Udp:", "Tcp:"] {
        assert_eq!(counter(&snmp, protocol, "InCsumErrors"), 0, "{snmp}");
    }
    let addresses = site.ours.run("ip", ["-brief", "link"]).unwrap();
    assert!(!addresses.contains("vxlan"), "our host has no such device: {addresses}");
}

fn counter(snmp: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let found = names.split(' ').zip(values.split(' ')).find(|(own, _)| *own == name);
    found.unwrap().1.parse().unwrap()
}

#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn guests_of_a_kernels_vxlan_and_ours_are_neighbours_over_ipv4() {
    one_network(&V4, Underlay::Sockets);
}

#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn guests_of_a_kernels_vxlan_and_ours_are_neighbours_over_ipv6() {
    one_network(&V6, Underlay::Sockets);
}

#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn a_tap_device_carries_datagrams_over_ipv4() {
    if segments_tunnels() {
        one_network(&V4, Underlay::Tap);
    }
}

#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn a_tap_device_carries_datagrams_over_ipv6() {
    if segments_tunnels() {
        one_network(&V6, Underlay::Tap);
    }
}

#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn a_cards_queues_carry_datagrams_over_ipv4() {
    one_network(&V4, Underlay::Card);
}

#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn a_cards_queues_carry_datagrams_over_ipv6() {
    one_network(&V6, Underlay::Card);
}

/// Where nothing on the way has to segment, long frames stay whole from guest to guest, in both
/// directions.
#[test]
#[ignore = "needs root, iperf, ping and tshark"]
fn long_frames_cross_a_virtual_wire_in_one_piece() {
    for outer in [&V4, &V6].into_iter().filter(|_| segments_tunnels()) {
        let site = Site::start(outer, Underlay::Tap, Wire::Virtual);
        let file = site.daemon.dir().join("wire.pcap").display().to_string();
        site.until_it_pings(&V4, 100);
        let recorder = record(&site.theirs, &file);
        for inner in [&V4, &V6] {
            site.until_it_pings(inner, inner.headers + 8);
            site.streams(inner);
        }
        drop(recorder);
        for end in [site.vtep, outer.outer[1]] {
            let long = format!("vxlan && {}.src == {end} && frame.len > 10000", ip(outer));
            assert!(!found(&file, &long).is_empty(), "{long}");
        }
        shows_what_it_did(&site, outer.outer[1]);
    }
}

/// The peers go on while a new process takes over.
#[test]
#[ignore = "needs root, iperf and ping"]
fn a_new_process_takes_over_with_its_overlays() {
    let underlays = [Underlay::Sockets, Underlay::Card, Underlay::Tap].into_iter();
    for underlay in underlays.filter(|one| *one != Underlay::Tap || segments_tunnels()) {
        let mut site = Site::start(&V4, underlay, Wire::Cable);
        site.until_it_pings(&V4, 100);
        site.daemon.take_over().unwrap();
        site.until_it_pings(&V4, 100);
        let shown = site.json(&["overlay", "show", "--json"]);
        assert_eq!(shown["overlays"][0]["state"], "connected", "{shown:#}");
    }
}
