//! Guests that migrate between two hosts, each with a daemon of its own.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lab::daemon::Daemon;
use lab::guest::{ChildProcess, Guest, Namespace, Release, Shell};
use lab::migration::{Between, Echo, GUEST, Hosts, MAC, Machine, Paced};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv};

use super::forgetful::Forgetful;
use super::lab::machine;
use super::memory::{Differences, Sides};
use super::traffic::{LIMIT, eventually, listens};

/// How often the guest goes to the other host under the stream.
const MIGRATIONS: usize = 4;

/// How often pages are forgotten, at most. A page is copied all the same if the guest wrote it,
/// too, or if QEMU gets to it only after the last write.
const ATTEMPTS: usize = 40;

#[test]
#[ignore = "boots guests"]
fn a_stream_outlives_migrations_over_split_rings() {
    a_stream_outlives_migrations(&[], Release::Installed);
}

/// The guest does not announce itself, so the daemon does on request of QEMU.
#[test]
#[ignore = "boots guests"]
fn a_stream_outlives_migrations_over_packed_rings() {
    a_stream_outlives_migrations(&["packed=on", "guest_announce=off"], Release::Backports);
}

/// The memory of a guest that stopped under traffic is, page by page, what has arrived at the other
/// host. The older QEMU would lose pages of its own.
#[test]
#[ignore = "boots guests"]
fn all_pages_arrive_over_split_rings() {
    all_pages_arrive(&[]);
}

#[test]
#[ignore = "boots guests"]
fn all_pages_arrive_over_packed_rings() {
    all_pages_arrive(&["packed=on"]);
}

/// The same with a log that forgets pages: some of these differ, and no others.
#[test]
#[ignore = "boots guests"]
fn pages_that_the_log_forgets_do_not_arrive() {
    let hosts = hosts(&[], Release::Backports, Between::Bridge);
    let forgetful = Forgetful::start(hosts.daemon(0).dir(), hosts.socket(0));
    let guest = hosts.boot(forgetful.socket()).unwrap();
    let _stream = trickle(&hosts, &guest);
    let received = || hosts.daemon(0).stats().unwrap().ports[0].total.rx_bytes;
    let missing = (0..ATTEMPTS).any(|_| {
        let before = received();
        eventually("32 KiB more", || received() >= before + (32 << 10));
        let (target, _) = hosts.copy(&guest, 1, true).unwrap();
        let differences = Differences::between(Sides { source: &guest, target: &target });
        let forgotten = forgetful.forgotten();
        drop(target);
        guest.monitor("cont", serde_json::json!({})).unwrap();
        let is_forgotten = |page| forgotten.contains(page);
        assert!(differences.pages().iter().all(is_forgotten), "{differences:?}");
        !differences.pages().is_empty()
    });
    assert!(missing, "all pages arrived");
}

/// A trickle of noise to the guest, which discards it. A guest's kernel clears memory for receive
/// buffers, which marks it, too; here the buffers then wait for seconds until the daemon writes to
/// them, and QEMU has copied them in between. The guest also writes to the first page of a packet
/// when it receives that, so packets are longer than a page.
fn trickle(hosts: &Hosts, guest: &Guest) -> ChildProcess {
    guest.spawn("nc -ll -p 5000 -e sh -c 'cat >/dev/null'").unwrap();
    listens(guest, "netstat -ltn", 5000);
    let script = format!(
        "while head -c 8000 /dev/urandom; do sleep 0.05; done | busybox nc {GUEST} 5000 >/dev/null"
    );
    let mut command = hosts.network().command("sh");
    command.args(["-c", &script]).stdin(Stdio::null());
    ChildProcess::start(&mut command).unwrap()
}

fn all_pages_arrive(options: &[&str]) {
    let hosts = hosts(options, Release::Backports, Between::Bridge);
    let guest = hosts.boot(hosts.socket(0)).unwrap();
    let _stream = Echo::start(hosts.network(), &guest, Duration::ZERO).unwrap();
    carries_on(hosts.daemon(0));
    let (target, _) = hosts.copy(&guest, 1, true).unwrap();
    let differences = Differences::between(Sides { source: &guest, target: &target });
    assert_eq!(differences.pages(), [0; 0], "{differences:?}");
}

fn hosts(options: &[&str], release: Release, between: Between) -> Hosts {
    let (image, accel, emulator) = machine(release);
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
    Hosts::start(binary, Machine { image, accel, emulator, options }, between).unwrap()
}

/// The host and a guest send each other noise while the guest migrates there and back. What the
/// host gets back must be what it sent.
fn a_stream_outlives_migrations(options: &[&str], release: Release) {
    let hosts = hosts(options, release, Between::Bridge);
    let mut guest = hosts.boot(hosts.socket(0)).unwrap();
    let stream = Echo::start(hosts.network(), &guest, Duration::ZERO).unwrap();
    for round in 1..=MIGRATIONS {
        carries_on(hosts.daemon((round + 1) % 2));
        guest = migrate(&hosts, guest, round % 2);
        carries_on(hosts.daemon(round % 2));
    }
    assert!(stream.finish(LIMIT).unwrap(), "the stream was damaged");

    // The guest is silent now, and is found where it goes all the same.
    let announcements = reverse_arp(hosts.network());
    let at = (MIGRATIONS + 1) % 2;
    let _guest = migrate(&hosts, guest, at);
    eventually("the bridge to learn where the guest is", || {
        let table = hosts.network().run("bridge", ["fdb", "show", "br", "br0"]).unwrap();
        let (mac, device) = (MAC.to_string(), format!("dev rm{at} "));
        table.lines().any(|line| line.starts_with(&mac) && line.contains(&device))
    });
    if options.contains(&"guest_announce=off") {
        eventually("an announcement", || {
            let mut frame = [0; 60];
            recv(&announcements, &mut frame, RecvFlags::DONTWAIT)
                .is_ok_and(|_| frame[6..12] == MAC.0)
        });
    }
}

/// A third host, whose tunnels are the kernel's and follow FRR, and a guest that goes from one host
/// to the other and back. What the third host gets back must be what it sent, and no datagram of
/// the guest may come to it twice.
#[test]
#[ignore = "boots guests, and needs FRR"]
fn a_stream_outlives_migrations_across_an_overlay() {
    let hosts = hosts(&[], Release::Backports, Between::Evpn);
    let mut guest = hosts.boot(hosts.socket(0)).unwrap();
    let stream = Echo::start(hosts.network(), &guest, Duration::from_millis(200)).unwrap();
    let datagrams = Paced::start(hosts.network(), &guest).unwrap();
    for to in [1, 0] {
        eventually("datagrams", || datagrams.take().arrived > 0);
        guest = migrate(&hosts, guest, to);
        let mut since = datagrams.take();
        eventually("datagrams from the other host", || {
            since.add(datagrams.take());
            since.arrived > 100
        });
        assert_eq!(since.wrong, 0, "{since:?}");
        let place = ["dst 10.9.0.1", "dst 10.9.0.2"][to];
        eventually("FRR to know where the guest is", || {
            let rows = hosts.network().run("bridge", ["fdb", "show", "dev", "vx0"]).unwrap();
            let is_here = |row: &str| row.starts_with(&MAC.to_string()) && row.contains(place);
            rows.lines().any(is_here)
        });
    }
    assert!(stream.finish(LIMIT).unwrap(), "the stream was damaged");
}

/// A socket for all frames of reverse ARP in a network.
fn reverse_arp(network: &Namespace) -> OwnedFd {
    const ETH_P_RARP: u16 = 0x8035;
    let protocol = NonZeroU32::new(ETH_P_RARP.to_be().into()).map(Protocol::from_raw);
    let open = || Ok(rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol)?);
    network.open(open).unwrap()
}

fn migrate(hosts: &Hosts, guest: Guest, to: usize) -> Guest {
    hosts.migrate(guest, to).unwrap().0
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
