//! Three hosts on one wire, each with FRR and a guest: two with a daemon of ours, and one whose
//! VXLAN device and bridge are the kernel's.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::daemon::Daemon;
use lab::folders;
use lab::frr::{Frr, Programs};
use lab::guest::{Deadline, Namespace};
use serde_json::Value as Json;

const BINARY: &str = env!("CARGO_BIN_EXE_ringmain");

/// The host whose VXLAN is the kernel's.
pub const KERNEL: usize = 2;
/// The addresses of guests.
pub const MACS: [&str; 3] = ["02:00:00:00:00:11", "02:00:00:00:00:12", "02:00:00:00:00:13"];

/// What carries the datagrams of our hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Underlay {
    Sockets,
    /// A TAP device, to which addresses of its own are routed.
    Tap,
    /// Queues of the interface.
    Card,
}

impl Underlay {
    /// The keys of an overlay.
    fn keys(self) -> &'static str {
        match self {
            Underlay::Sockets => "",
            Underlay::Tap => "underlay = \"tap\"\ndevice = \"rm-net\"\n",
            Underlay::Card => "underlay = \"xdp\"\ndevice = \"e0\"\n",
        }
    }
}

/// The addresses of hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    /// FRR of Debian testing announces them.
    V6,
}

impl Family {
    fn hosts(self) -> [&'static str; 3] {
        match self {
            Family::V4 => ["10.9.0.1", "10.9.0.2", "10.9.0.3"],
            Family::V6 => ["fd09::1", "fd09::2", "fd09::3"],
        }
    }

    /// The addresses that our hosts route to a TAP device, where they have one.
    fn routed(self) -> [&'static str; KERNEL] {
        match self {
            Family::V4 => ["10.9.1.1", "10.9.1.2"],
            Family::V6 => ["fd09:1::1", "fd09:1::2"],
        }
    }

    /// What guests are told.
    fn mtu(self) -> u16 {
        match self {
            Family::V4 => 1450,
            Family::V6 => 1430,
        }
    }

    /// The switch of the kernel that lets a host forward.
    fn forwarding(self) -> &'static str {
        match self {
            Family::V4 => "net.ipv4.ip_forward=1",
            Family::V6 => "net.ipv6.conf.all.forwarding=1",
        }
    }

    fn frr(self) -> Programs {
        match self {
            Family::V4 => Programs::installed(),
            Family::V6 => Programs::testing(&folders::cache(env!("CARGO_MANIFEST_DIR"))),
        }
        .unwrap()
    }
}

pub struct Site {
    /// The addresses between which datagrams go.
    vteps: [&'static str; 3],
    pub daemons: Vec<Daemon>,
    pub frr: Vec<Frr>,
    pub hosts: [Namespace; 3],
    pub guests: [Namespace; 3],
    _wire: Namespace,
}

/// The address of a guest.
pub fn guest(host: usize, v6: bool) -> String {
    match v6 {
        true => format!("fd20::{}", host + 1),
        false => format!("10.20.0.{}", host + 1),
    }
}

impl Site {
    /// The sources of the second host's guest are locked to its addresses. `keys`: more keys of our
    /// overlays.
    pub fn start(underlay: Underlay, family: Family, keys: &str) -> Site {
        let [hosts, guests] = [(); 2].map(|()| [(); 3].map(|()| Namespace::new().unwrap()));
        let on_wire: Vec<_> = hosts.iter().zip(family.hosts()).collect();
        let wire = Namespace::wire(on_wire.iter().copied()).unwrap();
        let (mut vteps, mut daemons) = (family.hosts(), Vec::new());
        if underlay == Underlay::Tap {
            vteps[..KERNEL].copy_from_slice(&family.routed());
            route_vteps(&hosts, family);
        }
        for n in 0..KERNEL {
            daemons.push(start_daemon(
                &hosts[n],
                n,
                vteps[n],
                &(underlay.keys().to_owned() + keys),
            ));
            hosts[n].ip(&format!("link set rm-vm netns {}", guests[n].id())).unwrap();
        }
        make_kernels(&hosts[KERNEL], vteps[KERNEL], &guests[KERNEL]);
        for (n, guest) in guests.iter().enumerate() {
            guest.ip(&format!("link set rm-vm address {} mtu {}", MACS[n], family.mtu())).unwrap();
            with_address(guest, "rm-vm", &self::guest(n, false), 24);
            with_address(guest, "rm-vm", &self::guest(n, true), 64);
        }
        let frr = Frr::mesh(&family.frr(), &on_wire).unwrap();
        Site { vteps, daemons, frr, hosts, guests, _wire: wire }
    }

    pub fn address(&self, host: usize) -> &'static str {
        self.vteps[host]
    }

    /// What one of our daemons answers to a command.
    pub fn ask(&self, host: usize, args: &[&str]) -> String {
        let control = self.daemons[host].dir().join("control.sock");
        let done = Command::new(BINARY).arg("--control").arg(control).args(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    fn json(&self, host: usize, args: &[&str]) -> Json {
        serde_json::from_str(&self.ask(host, args)).unwrap()
    }

    /// What one of our daemons says of its overlay.
    pub fn overlay(&self, host: usize) -> Json {
        self.json(host, &["overlay", "show", "--json"])["overlays"][0].clone()
    }

    /// What one of our daemons says of the port of its guest.
    pub fn port(&self, host: usize) -> Json {
        self.json(host, &["port", "show", "vm", "--json"])
    }

    /// What one of our daemons says of another host; null: it knows none there.
    pub fn peer(&self, host: usize, other: usize) -> Json {
        let answer = self.json(host, &["overlay", "peers", "--json"]);
        let mut peers = answer["peers"].as_array().unwrap().iter();
        peers.find(|peer| peer["vtep"] == self.address(other)).cloned().unwrap_or_default()
    }

    /// The row that one of our daemons has for a guest, if any.
    pub fn row(&self, host: usize, mac: &str) -> Option<String> {
        let rows = self.ask(host, &["overlay", "macs"]);
        rows.lines().find(|row| row.contains(mac)).map(str::to_owned)
    }

    /// Whether one of our daemons has a guest at another host, as the control plane says.
    pub fn has(&self, host: usize, mac: &str, other: usize) -> bool {
        let row = self.row(host, mac);
        row.is_some_and(|row| row.contains(self.address(other)) && row.contains("evpn"))
    }

    /// What FRR of a host knows of a guest.
    pub fn known(&self, host: usize, mac: &str) -> Json {
        self.frr[host].show("show evpn mac vni 100")["macs"][mac].clone()
    }

    /// The guest that has an IP address, as FRR of a host knows it.
    pub fn owner(&self, host: usize, address: &str) -> Json {
        self.frr[host].show("show evpn arp-cache vni 100")[address].clone()
    }

    /// Whether FRR of a host believes nobody else who claims a guest's address.
    pub fn is_sticky(&self, host: usize, mac: &str) -> bool {
        let shown = self.frr[host].show(&format!("show evpn mac vni 100 mac {mac}")).to_string();
        assert!(shown.contains("remote"), "{shown}");
        shown.contains("\"stickyMac\":true")
    }

    /// Whether a guest reaches another one.
    pub fn ping(&self, from: usize, to: usize, v6: bool, payload: u16) -> bool {
        let mut ping = self.guests[from].command("ping");
        ping.args(["-n", "-M", "do", "-c", "1", "-W", "2", "-s", &payload.to_string()]);
        ping.arg(guest(to, v6)).output().unwrap().status.success()
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&Site) -> bool) {
        let mut deadline = Deadline::new(Duration::from_secs(90));
        while !is_so(self) {
            if deadline.is_over() {
                panic!("not so after all: {what}\n{}", self.state());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// All that is known everywhere, for the reader of a failure.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for n in 0..KERNEL {
            text += &self.daemons[n].log();
            text += &self.ask(n, &["overlay", "peers"]);
            text += &self.ask(n, &["overlay", "macs"]);
        }
        for n in 0..3 {
            text += &self.hosts[n].run("bridge", ["fdb", "show"]).unwrap_or_default();
            text += &format!("{}\n", self.frr[n].show("show evpn mac vni 100"));
            text += &format!("{}\n", self.frr[n].show("show bgp l2vpn evpn summary"));
        }
        text
    }
}

/// Makes all hosts know where the addresses are that our hosts route to their devices, as an
/// administrator or a routing protocol would.
fn route_vteps(hosts: &[Namespace; 3], family: Family) {
    for (n, vtep) in family.routed().iter().enumerate() {
        hosts[n].run("sysctl", ["-qw", family.forwarding()]).unwrap();
        for (_, other) in hosts.iter().enumerate().filter(|(other, _)| *other != n) {
            other.ip(&format!("route add {vtep} via {}", family.hosts()[n])).unwrap();
        }
    }
}

fn start_daemon(host: &Namespace, n: usize, vtep: &str, keys: &str) -> Daemon {
    let addresses = [false, true].map(|v6| guest(n, v6));
    let locked = match n {
        1 => format!("mac = \"{}\"\naddresses = {addresses:?}\n", MACS[n]),
        _ => String::new(),
    };
    let config = |_: &Path| {
        format!(
            "[workers]\ncount = 2\n[[port]]\nname = \"vm\"\nkind = \"tap\"\ndevice = \"rm-vm\"\n\
             queues = 2\n{locked}[[overlay]]\nname = \"net\"\nvni = 100\nlocal = \"{vtep}\"\n\
             control = \"evpn\"\n{keys}"
        )
    };
    Daemon::start(Path::new(BINARY), config, Some(host)).unwrap()
}

/// The devices of the kernel, as administrators make them for FRR.
///
/// The bridge learns nothing at the VXLAN device. If it did, the first frame of a guest that moved
/// away would remove the guest's row before FRR hears of the move; FRR would withdraw the guest and
/// forget its sequence number.
fn make_kernels(host: &Namespace, local: &str, guest: &Namespace) {
    host.ip(&format!(
        "link add br100 type bridge\nlink set br100 addrgenmode none\nlink set br100 up\n\
         link add vx100 type vxlan id 100 dstport 4789 local {local} nolearning\n\
         link set vx100 addrgenmode none\nlink set vx100 master br100 up\n\
         link set vx100 type bridge_slave learning off\n\
         link add vm type veth peer name rm-vm netns {}\n\
         link set vm addrgenmode none\nlink set vm master br100 up",
        guest.id()
    ))
    .unwrap();
}

fn with_address(namespace: &Namespace, device: &str, address: &str, length: u8) {
    // Only one of the two has duplicates that are looked for.
    let more = if address.contains(':') { "nodad" } else { "" };
    let add = format!("address add {address}/{length} dev {device} {more}");
    namespace.ip(&format!("{add}\nlink set {device} up")).unwrap();
}
