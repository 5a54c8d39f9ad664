//! Guests that migrate between two hosts, each with a daemon of its own. The hosts share a bridge in
//! a network namespace, as they would share a network.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

use lab::daemon::Daemon;
use lab::guest::{ChildProcess, Guest, Namespace, Shell};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use super::lab::{Attach, Lab, socket};
use super::traffic::{LIMIT, address, address_it, eventually, listens};

const HOST: &str = "10.77.0.100";

/// How often the guest goes to the other host under the stream.
const MIGRATIONS: usize = 4;

#[test]
#[ignore = "boots guests"]
fn a_stream_outlives_migrations_over_split_rings() {
    a_stream_outlives_migrations(&[]);
}

/// The guest does not announce itself, so the daemon does on request of QEMU.
#[test]
#[ignore = "boots guests"]
fn a_stream_outlives_migrations_over_packed_rings() {
    a_stream_outlives_migrations(&["packed=on", "guest_announce=off"]);
}

/// The daemon of one host: a port for the guest, and a TAP on the bridge.
fn config(dir: &Path, device: &str) -> String {
    format!(
        "[[port]]\nname = \"guest-0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 4\n\
         [[port]]\nname = \"uplink\"\nkind = \"tap\"\ndevice = \"{device}\"\n",
        socket(dir, 0).display()
    )
}

/// The host and a guest send each other noise while the guest migrates there and back. What the host
/// gets back must be what it sent.
fn a_stream_outlives_migrations(options: &[&str]) {
    let lab = Lab::start(Some(Namespace::new().unwrap()), |dir| config(dir, "rm0"));
    let network = lab.namespace.as_ref().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
    let second = Daemon::start(binary, |dir| config(dir, "rm1"), Some(network)).unwrap();
    network
        .ip(&format!(
            "link add br0 type bridge\nlink set br0 up\naddr add {HOST}/24 dev br0\n\
             link set rm0 master br0\nlink set rm0 up\n\
             link set rm1 master br0\nlink set rm1 up"
        ))
        .unwrap();
    let attach = Attach { queues: 2, options, ..Attach::default() };
    let mut guest = lab.begin_at(socket(lab.daemon.dir(), 0), 0, attach, None);
    guest.ready(LIMIT).unwrap();
    address_it(&guest, "eth0", 0);
    guest.spawn("nc -ll -p 5000 -e cat").unwrap();
    listens(&guest, "netstat -ltn", 5000);

    let stream = Echo::start(network);
    let daemons = [&lab.daemon, &second];
    for round in 1..=MIGRATIONS {
        carries_on(daemons[(round + 1) % 2]);
        guest = migrate(&lab, guest, daemons[round % 2], attach);
        carries_on(daemons[round % 2]);
    }
    stream.finish();

    // The guest is silent now, and is found where it goes all the same.
    let announcements = reverse_arp(network);
    let at = (MIGRATIONS + 1) % 2;
    let _guest = migrate(&lab, guest, daemons[at], attach);
    eventually("the bridge to learn where the guest is", || {
        let table = network.run("bridge", ["fdb", "show", "br", "br0"]).unwrap();
        table.lines().any(|line| {
            line.starts_with("52:54:00:77:00:01") && line.contains(&format!("dev rm{at} "))
        })
    });
    if options.contains(&"guest_announce=off") {
        eventually("an announcement", || {
            let mut frame = [0; 60];
            recv(&announcements, &mut frame, RecvFlags::DONTWAIT)
                .is_ok_and(|_| frame[6..12] == [0x52, 0x54, 0, 0x77, 0, 1])
        });
    }
}

/// A socket for all frames of reverse ARP in a network.
fn reverse_arp(network: &Namespace) -> OwnedFd {
    const ETH_P_RARP: u16 = 0x8035;
    let open = || {
        let namespace = File::open(format!("/proc/{}/ns/net", network.id())).unwrap();
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), network).unwrap();
        let protocol = NonZeroU32::new(ETH_P_RARP.to_be().into()).map(Protocol::from_raw);
        rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol).unwrap()
    };
    // Only this thread moves.
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

/// Moves the guest to a new QEMU at another daemon.
fn migrate(lab: &Lab, source: Guest, to: &Daemon, attach: Attach<'_>) -> Guest {
    let incoming = to.dir().join("incoming.sock");
    let target = lab.begin_at(socket(to.dir(), 0), 0, attach, Some(incoming.clone()));
    // QEMU answers once it listens.
    target.monitor("query-status", json!({})).unwrap();
    // As fast as it goes: the guest writes memory all the time.
    let fast = json!({ "max-bandwidth": 1u64 << 33, "downtime-limit": 5000 });
    source.monitor("migrate-set-parameters", fast).unwrap();
    let uri = json!({ "uri": format!("unix:{}", incoming.display()) });
    source.monitor("migrate", uri).unwrap();
    eventually("the migration to complete", || {
        let state = source.monitor("query-migrate", json!({})).unwrap();
        assert_ne!(state["status"], "failed", "{state}\n{}", target.console());
        state["status"] == "completed"
    });
    drop(source);
    eventually("the guest to run on", || {
        target.monitor("query-status", json!({})).unwrap()["running"] == true
    });
    let _ = std::fs::remove_file(&incoming);
    target
}

/// Waits until a daemon has carried 2 MiB more to its guest.
fn carries_on(daemon: &Daemon) {
    let carried = || {
        let stats = daemon.stats().unwrap();
        stats.ports.iter().map(|port| port.total.rx_bytes).min().unwrap_or(0)
    };
    let before = carried();
    eventually("2 MiB more", || carried() >= before + (2 << 20));
}

/// Noise from the host to the guest's echo, and the sums of both directions.
struct Echo {
    client: ChildProcess,
    dir: tempfile::TempDir,
}

impl Echo {
    fn start(network: &Namespace) -> Echo {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {} && head -c 1m /dev/urandom >noise && mkfifo sent && md5sum <sent >forth &
            cd {} && until [ -p sent ]; do sleep 0.01; done
            until [ -e stop ]; do cat noise; done | tee sent | busybox nc {} 5000 | md5sum >back
            wait",
            dir.path().display(),
            dir.path().display(),
            address(0)
        );
        let mut command = network.command("sh");
        command.args(["-c", &script]).stdin(Stdio::null());
        Echo { client: ChildProcess::start(&mut command).unwrap(), dir }
    }

    /// Ends the noise, and waits for the rest of it.
    fn finish(mut self) {
        std::fs::write(self.dir.path().join("stop"), "").unwrap();
        eventually("the end of the stream", || self.client.ended().is_some());
        let sum = |name: &str| std::fs::read_to_string(self.dir.path().join(name)).unwrap();
        assert!(!sum("forth").is_empty());
        assert_eq!(sum("back"), sum("forth"));
    }
}
