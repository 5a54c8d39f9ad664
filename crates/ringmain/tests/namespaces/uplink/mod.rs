//! A guest with a receive queue of a veth of its own. The veth and the switch's TAP are in one
//! bridge; its other end, in another namespace, is the wire. Needs root.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use serde_json::Value;

use super::{ChildGuard, PART, Site, ready, succeeds, wait};

/// Moves the calling thread, and what it starts, into a network namespace of its own.
pub(super) fn leave_host() {
    // SAFETY: a network namespace is the thread's own affair; no memory or descriptor table is
    // unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("needs root");
}

pub(super) fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).stdout(Stdio::null()).status();
    assert!(status.expect("is installed").success(), "{line}");
}

/// A part of this program, where the calling thread is.
fn part(part: &str) -> ChildGuard {
    let mut part_of = Command::new(std::env::current_exe().unwrap());
    part_of.args(["--exact", "part", "--nocapture"]).env(PART, part).stdout(Stdio::piped());
    ChildGuard(part_of.spawn().unwrap())
}

/// The host at the other end of the wire: runs one part after another.
struct Far {
    parts: Option<mpsc::Sender<(String, mpsc::Sender<ChildGuard>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Far {
    /// Makes the wire, whose near end is `up0` in the caller's namespace.
    fn new() -> Far {
        leave_host();
        run("ip link add up0 type veth peer name far0");
        run("ip link add br0 type bridge");
        run("ip link set up0 master br0 up");
        run("ip link set br0 up");
        let (parts, jobs) = mpsc::channel::<(String, mpsc::Sender<ChildGuard>)>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            leave_host();
            tell.send(gettid().as_raw_nonzero()).unwrap();
            for (n, (line, started)) in jobs.into_iter().enumerate() {
                if n == 0 {
                    run("ip addr add 10.9.0.9/16 dev far0");
                    // The device can't say that a checksum is still to be made.
                    run("ethtool -K far0 tx off");
                    run("ip link set far0 up");
                }
                started.send(part(&line)).unwrap();
            }
        });
        run(&format!("ip link set far0 netns {}", told.recv().unwrap()));
        Far { parts: Some(parts), thread: Some(thread) }
    }

    fn start(&self, part: &str) -> ChildGuard {
        let (started, kept) = mpsc::channel();
        self.parts.as_ref().unwrap().send((part.to_owned(), started)).unwrap();
        kept.recv().unwrap()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.parts = None;
        let _ = self.thread.take().unwrap().join();
    }
}

/// A daemon whose guests can have queues of `up0`.
fn site() -> Site {
    let site = Site::with(
        "device-queue = \"up0\"\n[[port]]\nname = \"up\"\nkind = \"tap\"\ndevice = \"rm-up\"\n",
    );
    plug();
    site
}

/// Plugs the switch into the bridge.
fn plug() {
    run("ip link set rm-up master br0 up");
}

fn guest(site: &Site, name: &str, address: &str, part: &str) -> ChildGuard {
    let mut guest = site.command(name, address, 1);
    guest.args(["--device-queue", "--"]);
    site.launch(guest, part)
}

fn shown(site: &Site, name: &str) -> Value {
    serde_json::from_str(&site.ask(&["port", "show", &format!("guests/{name}"), "--json"]).unwrap())
        .unwrap()
}

/// Where a guest's device queue is, or why it has none.
fn place(site: &Site, name: &str) -> String {
    shown(site, name)["device_queue"].as_str().unwrap_or_default().to_owned()
}

/// Frames that a guest received through the switch, and bytes that came straight from the device.
fn received(site: &Site, name: &str) -> (u64, u64) {
    let total = &shown(site, name)["total"];
    (total["rx_frames"].as_u64().unwrap(), total["direct_bytes"].as_u64().unwrap())
}

fn has_program() -> bool {
    let shown = Command::new("ip").args(["-details", "link", "show", "up0"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap().contains("prog/xdp")
}

#[test]
#[ignore = "needs root"]
fn a_device_delivers_to_its_guest_and_the_switch_does_the_rest() {
    let far = Far::new();
    let site = site();
    let mut server = guest(&site, "server", "10.9.0.1", "serve 10.9.0.1");
    ready(&mut server);
    wait(|| place(&site, "server").starts_with("up0 queue 0, XDP in the driver; "));
    // 4 MiB a stream, compared at both ends.
    succeeds(far.start("send 10.9.0.1 2 64"));
    let (frames, bytes) = received(&site, "server");
    assert!(bytes > 8 << 20, "{bytes}");
    // Address resolution, and nothing of the streams.
    assert!(frames < 100, "{frames}");
    // A profile has the device's frames, too.
    let before = received(&site, "server").1;
    let streams = far.start("send 10.9.0.1 2 2048");
    wait(|| received(&site, "server").1 > before + (1 << 20));
    let told: Value = serde_json::from_str(
        &site.ask(&["profile", "guests/server", "--seconds", "1", "--json"]).unwrap(),
    )
    .unwrap();
    succeeds(streams);
    assert!(told["ports"][0]["frames"].as_u64().unwrap() > 1000, "{told}");
    let bytes = received(&site, "server").1;
    // What another guest sends is the switch's business, and so is what comes for that one.
    let other = guest(&site, "other", "10.9.0.2", "send 10.9.0.1 2 16");
    succeeds(other);
    let (after, direct) = received(&site, "server");
    assert!(after > frames + 32 && direct < bytes + 10_000, "{frames} {after}, {bytes} {direct}");
    let mut second = guest(&site, "second", "10.9.0.3", "serve 10.9.0.3");
    ready(&mut second);
    wait(|| {
        place(&site, "second") == "none: up0 has 1 receive queue, and each is a guest's already"
    });
    succeeds(far.start("send 10.9.0.3 2 16"));
    assert_eq!(received(&site, "second").1, 0);
    let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
    assert!(shown.contains("1 in use, 4 at most") && shown.contains(" device "), "{shown}");
}

#[test]
#[ignore = "needs root"]
fn a_guest_with_a_device_queue_that_is_killed_under_traffic() {
    let far = Far::new();
    let site = site();
    for round in 0..5 {
        let mut server = guest(&site, "server", "10.9.0.1", "serve 10.9.0.1");
        ready(&mut server);
        let place = place(&site, "server");
        assert!(place.starts_with("up0 queue 0, "), "{place}");
        let mut flood = far.start("flood 10.9.0.1");
        ready(&mut flood);
        wait(|| received(&site, "server").1 > 1 << 20);
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/server"));
        drop(flood);
        assert!(has_program(), "round {round}");
    }
}

#[test]
#[ignore = "needs root"]
fn the_program_is_gone_with_a_daemon_that_is_killed() {
    let far = Far::new();
    let mut site = site();
    let mut server = guest(&site, "server", "10.9.0.1", "serve 10.9.0.1");
    ready(&mut server);
    for _ in 0..2 {
        succeeds(far.start("send 10.9.0.1 1 16"));
        assert!(received(&site, "server").1 > 1 << 20);
        assert!(has_program());
        site.daemon = None;
        wait(|| !has_program());
        site.serve();
        plug();
        wait(|| site.connected("server") && place(&site, "server").starts_with("up0 queue 0"));
    }
}
