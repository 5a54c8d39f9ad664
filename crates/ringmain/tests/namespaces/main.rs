//! Processes as guests of a daemon, with the kernel's own TCP in them. Needs root, or user
//! namespaces for everybody.
//!
//! The guests run this executable itself, in a part that a variable of its environment names.

mod capture;
mod dashboard;
mod mirror;
mod parts;
mod restrictions;
mod streams;
mod tap;
mod uplink;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::guest::Deadline;
use parts::{drip, flood, pry, send, serve};

const PART: &str = "RINGMAIN_TEST_PART";
const LONG: Duration = Duration::from_secs(60);
const BLOCK: usize = 1 << 16;

/// The part that runs in guests. As a test of its own it does nothing.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["serve", address] => serve(address),
        ["send", address, streams, blocks] => {
            send(address, streams.parse().unwrap(), blocks.parse().unwrap())
        }
        ["drip", address] => drip(address),
        ["flood", address] => flood(address),
        ["pry", ref ids @ ..] => ids.iter().for_each(|id| pry(id)),
        ["mix", address] => capture::mix(address),
        ["wait"] => std::thread::sleep(LONG),
        _ => panic!("{part}"),
    }
}

/// A process that is killed when it goes.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Site {
    dir: tempfile::TempDir,
    daemon: Option<ChildGuard>,
    /// As whom everything runs, if not as we do.
    user: Option<u32>,
}

/// An ordinary user, who has nothing.
const NOBODY: u32 = 65_534;

impl Site {
    fn start() -> Site {
        Site::start_as(None, "")
    }

    /// One whose port for guests has these keys, too.
    fn with(keys: &str) -> Site {
        Site::start_as(None, keys)
    }

    fn start_as(user: Option<u32>, keys: &str) -> Site {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), user, user).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "[workers]\ncount = 2\n[control]\nsocket = {:?}\n[[port]]\nname = \"guests\"\nkind = \"embedded\"\n\
             socket = {:?}\nqueues = 4\n{keys}\n",
            at("control.sock"),
            at("guests.sock")
        );
        std::fs::write(dir.path().join("ringmain.toml"), config).unwrap();
        let mut site = Site { dir, daemon: None, user };
        if user.is_some() {
            // Where they are built, others may not look.
            std::fs::copy(env!("CARGO_BIN_EXE_ringmain"), site.path("ringmain")).unwrap();
            std::fs::copy(std::env::current_exe().unwrap(), site.path("part")).unwrap();
        }
        site.serve();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, as whoever is to run it.
    fn ringmain(&self) -> Command {
        let Some(user) = self.user else { return Command::new(env!("CARGO_BIN_EXE_ringmain")) };
        let user = user.to_string();
        // The tun driver is open to everybody, as udev makes it: here it may be without udev, and
        // root's alone.
        let open =
            "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", open, "sh", "setpriv", "--clear-groups"]);
        command.args(["--reuid", &user, "--regid", &user, "--"]).arg(self.path("ringmain"));
        command
    }

    fn serve(&mut self) {
        self.daemon = None;
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut daemon = self.ringmain();
        daemon.arg("serve").arg("--config").arg(self.path("ringmain.toml")).stderr(log);
        self.daemon = Some(ChildGuard(daemon.spawn().unwrap()));
        wait(|| self.ask(&["port", "list"]).is_some());
    }

    /// The daemon's answer, if there is one.
    fn ask(&self, args: &[&str]) -> Option<String> {
        let done = self
            .ringmain()
            .arg("--control")
            .arg(self.path("control.sock"))
            .args(args)
            .output()
            .unwrap();
        done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
    }

    fn connected(&self, name: &str) -> bool {
        let list = self.ask(&["port", "list"]).unwrap_or_default();
        list.lines()
            .any(|line| line.starts_with(&format!("guests/{name} ")) && line.contains("connected"))
    }

    fn guest(&self, name: &str, address: &str, queues: u32, part: &str) -> ChildGuard {
        let mut guest = self.command(name, address, queues);
        guest.arg("--");
        self.launch(guest, part)
    }

    /// The guest `server` at 10.9.0.1, which serves already.
    fn server(&self, queues: u32) -> ChildGuard {
        let mut server = self.guest("server", "10.9.0.1", queues, "serve 10.9.0.1");
        ready(&mut server);
        server
    }

    /// Becomes a guest: without what runs in it.
    fn command(&self, name: &str, address: &str, queues: u32) -> Command {
        let mut guest = self.ringmain();
        guest.arg("--control").arg(self.path("control.sock")).args([
            "guest",
            "--name",
            name,
            "--address",
        ]);
        guest.arg(format!("{address}/16")).args(["--queues", &queues.to_string()]);
        guest
    }

    fn launch(&self, mut guest: Command, part: &str) -> ChildGuard {
        let own = self.user.map_or_else(|| std::env::current_exe().unwrap(), |_| self.path("part"));
        guest.arg(own).args(["--exact", "part", "--nocapture"]);
        guest.env(PART, part).stdin(Stdio::piped()).stdout(Stdio::piped());
        ChildGuard(guest.spawn().unwrap())
    }
}

#[track_caller]
fn wait(mut there: impl FnMut() -> bool) {
    let mut deadline = Deadline::new(LONG);
    while !there() {
        assert!(!deadline.is_over(), "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a guest's part has said that it is ready.
fn ready(guest: &mut ChildGuard) {
    let out = guest.0.stdout.as_mut().unwrap();
    let (mut said, mut byte) = (String::new(), [0]);
    while !said.contains("ready\n") {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{said}");
        said.push(byte[0].into());
    }
}

fn succeeds(mut guest: ChildGuard) {
    assert!(guest.0.wait().unwrap().success());
}

#[test]
#[ignore = "needs namespaces"]
fn a_guest_that_is_killed_under_traffic() {
    for keys in ["", "cache = 0", "copy = \"guest\""] {
        killed_under_traffic(&Site::with(keys));
    }
}

fn killed_under_traffic(site: &Site) {
    let _server = site.server(2);
    for _ in 0..5 {
        let mut evil = site.guest("evil", "10.9.0.3", 2, "flood 10.9.0.1");
        ready(&mut evil);
        let good = site.guest("good", "10.9.0.2", 1, "send 10.9.0.1 2 64");
        wait(|| site.connected("good"));
        let program = children(evil.0.id());
        drop(evil);
        succeeds(good);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/evil"));
        wait(|| program.iter().all(|id| !Path::new(&format!("/proc/{id}/exe")).exists()));
    }
    assert!(site.connected("server"));
}

fn children(id: u32) -> Vec<u32> {
    let text =
        std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

#[test]
#[ignore = "needs namespaces"]
fn forty_guests_at_once() {
    let site = Site::start();
    let _server = site.server(4);
    let guests: Vec<ChildGuard> = (1..=40)
        .map(|n| site.guest(&format!("g{n}"), &format!("10.9.1.{n}"), 1, "send 10.9.0.1 1 16"))
        .collect();
    guests.into_iter().for_each(succeeds);
}

#[test]
#[ignore = "needs namespaces"]
fn guests_outlive_their_daemon() {
    let mut site = Site::start();
    let _server = site.server(2);
    for _ in 0..2 {
        succeeds(site.guest("client", "10.9.0.2", 2, "send 10.9.0.1 2 16"));
        site.serve();
        wait(|| site.connected("server"));
    }
    succeeds(site.guest("client", "10.9.0.2", 2, "send 10.9.0.1 2 16"));
}

/// Killed, not ended: whatever is under way is lost, and TCP sends it again through the next
/// daemon.
#[test]
#[ignore = "needs namespaces"]
fn a_stream_outlives_the_daemon() {
    let mut site = Site::start();
    let _server = site.server(2);
    let mut client = site.guest("client", "10.9.0.2", 1, "drip 10.9.0.1");
    ready(&mut client);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(300));
        assert!(client.0.try_wait().unwrap().is_none(), "the stream is still there");
        site.serve();
        wait(|| site.connected("server") && site.connected("client"));
    }
    succeeds(client);
}

#[test]
#[ignore = "needs namespaces"]
fn an_ordinary_users_guests() {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let site = Site::start_as(root.then_some(NOBODY), "");
    let server = site.server(2);
    succeeds(site.guest("client", "10.9.0.2", 2, "send 10.9.0.1 4 32"));
    // Neither its neighbour nor the daemon is open to a guest, though all are one user's.
    let daemon = site.daemon.as_ref().unwrap().0.id();
    succeeds(site.guest("evil", "10.9.0.3", 1, &format!("pry {daemon} {}", server.0.id())));
    assert!(site.connected("server"));
}

#[test]
#[ignore = "needs namespaces"]
fn where_the_time_goes_is_told() {
    let site = Site::start();
    let _server = site.server(2);
    let mut client = site.guest("client", "10.9.0.2", 2, "flood 10.9.0.1");
    ready(&mut client);
    let mut told = serde_json::Value::Null;
    wait(|| {
        let json = site.ask(&["profile", "guests/server", "--seconds", "1", "--json"]).unwrap();
        told = serde_json::from_str(&json).unwrap();
        // A busy machine's guest may answer late.
        told["ports"][0]["guest"].is_object()
    });
    let port = &told["ports"][0];
    assert_eq!(
        (port["name"].as_str(), told["ports"].as_array().unwrap().len()),
        (Some("guests/server"), 1)
    );
    let number =
        |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {told}"));
    let (frames, length) = (number(&port["frames"]), number(&told["duration_ns"]));
    assert!(frames > 100 && number(&port["bursts"]) <= frames, "{told}");
    // It saw the same frames, but for those that were under way at the beginning and at the end.
    assert!(number(&port["guest"]["frames"]).abs_diff(frames) < frames / 2 + 1000, "{told}");
    for category in port["categories"].as_array().unwrap() {
        match category["name"].as_str().unwrap() {
            "copy to user" => assert!(category["time_ns"].is_null(), "{told}"),
            // Two workers, two virtual CPUs.
            _ => assert!(
                (1..=2 * length).contains(&number(&category["time_ns"])),
                "{category} in {told}"
            ),
        }
    }
    for worker in told["workers"].as_array().unwrap() {
        let sum: u64 = worker["steps_ns"].as_object().unwrap().values().map(number).sum();
        assert!(sum.abs_diff(length) < length / 2, "its steps are all of its time: {told}");
    }
    let shown = site.ask(&["profile", "--seconds", "1"]).unwrap();
    assert!(
        shown.contains("port guests/server: ") && shown.contains("hypervisor for the guest"),
        "{shown}"
    );
}

#[test]
#[ignore = "needs namespaces"]
fn what_went_wrong_is_said() {
    let site = Site::start();
    let fails = |args: &[&str], code: i32, says: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_ringmain"))
            .arg("--control")
            .arg(site.path("control.sock"))
            .args([&["guest", "--name"], args].concat())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(said.contains(says), "{said}");
    };
    fails(&["a b", "--", "true"], 1, "a guest can't be called \"a b\"");
    fails(&["a", "--", "/no/such/program"], 127, "/no/such/program");
    fails(&["a", "--", "sh", "-c", "exit 7"], 7, "");
    fails(&["a", "--", "sh", "-c", "kill -9 $$"], 137, "");
    fails(&["a", "--socket", "/no/such/socket", "--", "true"], 1, "/no/such/socket");
    let socket = site.path("guests.sock").display().to_string();
    let fewer = "the port allows 4 queue pairs for a guest, so \"a\" does not get 8";
    fails(&["a", "--socket", &socket, "--queues", "8", "--", "true"], 0, fewer);
    let _other = site.guest("a", "10.9.0.1", 1, "wait");
    wait(|| site.connected("a"));
    fails(&["a", "--", "true"], 1, "a guest \"a\" is there already");
}
