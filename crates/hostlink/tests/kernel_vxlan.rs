//! Three hosts on one wire: two of ours, and one with the kernel's own VXLAN device and bridge.
//!
//! Needs root. Each host is a network namespace of a thread; the wire is a bridge in another one.
//! The guests of our hosts are TAPs, so that the kernel's TCP, ARP and ND are at all ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use frame::Vni;
use hostlink::tap::{Tap, TapConfig};
use hostlink::underlay::{PeerSpec, Transport, Underlay, path_mtu};
use network::fabric::{Fabric, Workers};
use network::restrictions::Restrictions;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use switch::{PortRule, Tunnel};
use tempfile::NamedTempFile;

const PORT: u16 = 4789;
const HOSTS: [u8; 3] = [1, 2, 3];
/// The host whose VXLAN is the kernel's.
const KERNEL: u8 = 3;
/// Bytes of each TCP stream.
const STREAM: usize = 4_000_000;

fn leave_host() {
    // SAFETY: a network namespace is the thread's own affair; no memory or descriptor table is
    // unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("needs root");
}

fn run(command: &str) -> bool {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let done = command.args(words).output().expect("iproute2 is installed");
    done.status.success()
}

fn must(command: &str) {
    assert!(run(command), "{command}");
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..STREAM as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8 ^ seed).collect()
}

/// The address of a host on the wire.
fn outer(host: u8, v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, host.into()).into(),
        false => Ipv4Addr::new(10, 9, 0, host).into(),
    }
}

/// The addresses of a guest.
fn inner(host: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0xfd20, 0, 0, 0, 0, 0, 0, host.into());
    [Ipv4Addr::new(10, 20, 0, host).into(), v6.into()]
}

fn addresses(device: &str, [v4, v6]: [IpAddr; 2]) {
    must(&format!("ip addr add {v4}/24 dev {device}"));
    must(&format!("ip addr add {v6}/64 dev {device} nodad"));
    must(&format!("ip link set {device} up"));
}

/// Has the kernel complete checksums, and cut segments, before frames go into `device`. A veth pair
/// hands them over unfinished, as no wire does; the inner ones of a tunnel stay so for ever then,
/// where a program receives the datagrams.
fn finish_frames(device: &str) {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let mut value = [ETHTOOL_STXCSUM, 0];
    // SAFETY: all bytes zero is a request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // SAFETY: the request names an interface and a value, which both live through the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    assert_eq!(done, 0, "{:?}", std::io::Error::last_os_error());
}

/// What keeps a host's network alive.
enum Network {
    Ours { fabric: Arc<Fabric>, underlay: Box<Underlay>, tap: Tap },
    Kernel,
}

impl Network {
    fn start(host: u8, v6: bool) -> Network {
        let overhead = if v6 { 70 } else { 50 };
        let others = HOSTS.into_iter().filter(|other| *other != host);
        if host == KERNEL {
            let local = outer(host, v6);
            must("ip link add br100 type bridge");
            must(&format!("ip link add vx100 type vxlan id 100 dstport {PORT} local {local}"));
            must("ip link set vx100 master br100 up");
            must(&format!("ip link set br100 mtu {}", 1500 - overhead));
            for other in others {
                let dst = outer(other, v6);
                must(&format!("bridge fdb append 00:00:00:00:00:00 dev vx100 dst {dst}"));
            }
            addresses("br100", inner(host));
            return Network::Kernel;
        }
        let fabric = Arc::new(Fabric::start(&Workers { count: 2, ..Workers::default() }).unwrap());
        let local = SocketAddr::new(outer(host, v6), PORT);
        let underlay =
            Underlay::start(Arc::clone(&fabric), "net", local, &Transport::Sockets).unwrap();
        let vni = Vni::new(100).unwrap();
        let tunnel = Tunnel { group: 0, learns: true, floods: true };
        let mut least = u16::MAX;
        for other in others {
            let vtep = outer(other, v6);
            let mtu = path_mtu(local.ip(), SocketAddr::new(vtep, PORT)).unwrap() - overhead;
            underlay.add_peer(&PeerSpec { vni, vtep, vlan: None, mtu, tunnel }).unwrap();
            least = least.min(mtu);
        }
        assert_eq!(least, 1500 - overhead);
        let tap = TapConfig {
            device: "rm0".into(),
            queues: 2,
            rule: PortRule::default(),
            mtu: Some(least),
            policy: None,
            restrictions: Restrictions::default(),
        };
        let tap = Tap::start(Arc::clone(&fabric), tap).unwrap();
        addresses("rm0", inner(host));
        Network::Ours { fabric, underlay: Box::new(underlay), tap }
    }

    /// Nothing was lost under a name that says that one of us was wrong.
    fn check(&self) {
        let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        assert_eq!(kernel_counter(&snmp, "Udp:", "InCsumErrors"), 0);
        assert_eq!(kernel_counter(&snmp, "Tcp:", "InCsumErrors"), 0);
        let Network::Ours { fabric, underlay, tap } = self else { return };
        let counts = underlay.counts();
        for (name, lost) in &counts.drops {
            // The network, or another host, may not be known yet when the first datagrams come.
            let early = name.starts_with("unknown_") && *lost < 100;
            assert!(*lost == 0 || early || *name == "socket_full", "{counts:?}");
        }
        assert!(counts.sent > 1000 && counts.send_calls < counts.sent, "{counts:?}");
        // The kernels' own multicast goes on meanwhile, so the counters are seldom at rest.
        let start = Instant::now();
        loop {
            let peers = underlay.peers().into_iter().map(|(.., port)| port);
            let ports = peers.chain([tap.port(), underlay.port()]);
            let mut sum = [0u64; 2];
            for queue in ports.flat_map(|port| fabric.counters(port)) {
                sum[0] += queue.tx.frames.get() + queue.copies.get();
                sum[1] += queue.rx.frames.get() + queue.dropped_total();
            }
            if sum[0] == sum[1] {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{sum:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn kernel_counter(snmp: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let found = names.split(' ').zip(values.split(' ')).find(|(own, _)| *own == name);
    found.unwrap().1.parse().unwrap()
}

/// Echoes datagrams, and one stream from each of the other hosts, on each of its addresses.
fn serve(host: u8) -> Vec<thread::JoinHandle<()>> {
    let each = inner(host).into_iter().flat_map(|own| {
        let listener = TcpListener::bind((own, 7000)).unwrap();
        let udp = UdpSocket::bind((own, 7000)).unwrap();
        let tcp = thread::spawn(move || {
            let streams = (1..HOSTS.len()).map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                thread::spawn(move || {
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).unwrap();
                    stream.write_all(&bytes).unwrap();
                })
            });
            streams.collect::<Vec<_>>().into_iter().for_each(|one| one.join().unwrap());
        });
        // It ends with the process: nobody knows which of the datagrams is the last.
        thread::spawn(move || {
            let mut bytes = [0; 2000];
            while let Ok((len, from)) = udp.recv_from(&mut bytes) {
                let _ = udp.send_to(&bytes[..len], from);
            }
        });
        [tcp]
    });
    each.collect()
}

/// Lets the kernel refuse what is longer than the MTU.
fn forbid_fragments(udp: &UdpSocket, v4: bool) {
    let (level, option, value) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
    };
    // SAFETY: the option's value is a C int, and lives through the call.
    let set = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(udp.as_raw_fd(), level, option, value, size_of::<libc::c_int>() as u32)
    };
    assert_eq!(set, 0);
}

/// Sends a datagram until it comes back.
fn echo(udp: &UdpSocket, len: usize) {
    udp.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (sent, mut bytes) = (vec![len as u8; len], [0; 2000]);
    let start = Instant::now();
    loop {
        let _ = udp.send(&sent);
        match udp.recv(&mut bytes) {
            Ok(got) if bytes[..got] == sent[..] => return,
            _ => assert!(start.elapsed() < Duration::from_secs(60), "{len} bytes: {udp:?}"),
        }
    }
}

/// Reaches another guest by everything that there is.
fn visit(host: u8, other: u8, mtu: usize) {
    for address in inner(other) {
        // The longest packet is neither fragmented nor lost. The kernel sends none that is longer.
        let headers = if address.is_ipv4() { 28 } else { 48 };
        let own = inner(host)[usize::from(address.is_ipv6())];
        let udp = UdpSocket::bind((own, 0)).unwrap();
        udp.connect((address, 7000)).unwrap();
        forbid_fragments(&udp, address.is_ipv4());
        echo(&udp, 10);
        echo(&udp, mtu - headers);
        let error = udp.send(&vec![0; mtu - headers + 1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        let sent = pattern(host);
        let mut stream = TcpStream::connect((address, 7000)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{host} to {address}: {} bytes came back", back.len());
    }
}

/// One host from its beginning to its end. It tells its thread, and waits for its wire.
fn live(host: u8, v6: bool, tell: Sender<i32>, wired: Receiver<()>, step: Arc<Barrier>) {
    leave_host();
    must("ip link set lo up");
    tell.send(gettid().as_raw_nonzero().get()).unwrap();
    wired.recv().unwrap();
    let length = if v6 { "64 dev e0 nodad" } else { "24 dev e0" };
    must(&format!("ip addr add {}/{length}", outer(host, v6)));
    must("ip link set e0 up");
    finish_frames("e0");
    step.wait();
    let network = Network::start(host, v6);
    let servers = serve(host);
    step.wait();
    let mtu = if v6 { 1430 } else { 1450 };
    for other in HOSTS.into_iter().filter(|other| *other != host) {
        visit(host, other, mtu);
    }
    servers.into_iter().for_each(|server| server.join().unwrap());
    step.wait();
    network.check();
}

/// A capture of everything on the wire.
struct Capture {
    dumpcap: Child,
    file: NamedTempFile,
}

impl Capture {
    /// Captures from now on; `None`: there is no `tshark`.
    fn start() -> Option<Capture> {
        Command::new("tshark").arg("--version").output().ok()?;
        let file = NamedTempFile::new().unwrap();
        let mut dumpcap = Command::new("dumpcap")
            .args(["-q", "-i", "wire", "-s", "200", "-w"])
            .arg(file.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(dumpcap.stderr.take().unwrap()).lines();
        let mut said = said.map_while(Result::ok);
        assert!(said.any(|line| line.starts_with("File:")), "dumpcap captures nothing");
        thread::spawn(move || said.for_each(drop));
        Some(Capture { dumpcap, file })
    }

    /// What `tshark` finds in it, as fields of its own.
    fn dissect(mut self) -> String {
        kill_process(Pid::from_child(&self.dumpcap), Signal::INT).unwrap();
        self.dumpcap.wait().unwrap();
        let fields = "-T fields -e vxlan.vni -e vxlan.flags -e udp.srcport -E occurrence=f";
        let found = Command::new("tshark")
            .arg("-r")
            .arg(self.file.path())
            .args(["-Y", "vxlan"])
            .args(fields.split(' '))
            .output()
            .unwrap();
        String::from_utf8_lossy(&found.stdout).into_owned()
    }
}

fn wire(v6: bool) {
    leave_host();
    must("ip link add wire type bridge");
    must("ip link set wire up");
    let step = Arc::new(Barrier::new(HOSTS.len()));
    let hosts = HOSTS.map(|host| {
        let ((tell, told), (go, wired)) = (channel(), channel());
        let step = Arc::clone(&step);
        let thread = thread::spawn(move || live(host, v6, tell, wired, step));
        let id = told.recv().unwrap();
        must(&format!("ip link add v{host} type veth peer name e0 netns {id}"));
        must(&format!("ip link set v{host} master wire up"));
        (thread, go)
    });
    let capture = Capture::start();
    let threads = hosts.map(|(thread, go)| {
        go.send(()).unwrap();
        thread
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let Some(found) = capture.map(Capture::dissect) else { return };
    let mut ports = std::collections::BTreeSet::new();
    for line in found.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[..2], ["100", "0x0800"], "{line}");
        ports.insert(fields[2].to_owned());
    }
    assert!(
        found.lines().count() > 100 && ports.len() > 3,
        "{} frames of {ports:?}",
        found.lines().count()
    );
}

#[test]
#[ignore = "needs root"]
fn the_kernels_vxlan_and_ours_are_one_network_over_ipv4() {
    wire(false);
}

#[test]
#[ignore = "needs root"]
fn the_kernels_vxlan_and_ours_are_one_network_over_ipv6() {
    wire(true);
}
