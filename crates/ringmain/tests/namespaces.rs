//! Processes as guests of a daemon, with the kernel's own TCP in them. Needs root, or user
//! namespaces for everybody.
//!
//! The guests run this executable itself, in a part that a variable of its environment names.

mod capture;
mod dashboard;
mod restrictions;
mod uplink;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::guest::Deadline;

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

/// Takes connections, and answers each with how many bytes came and their sum.
fn serve(address: &str) {
    let listener = TcpListener::bind((address, 7)).unwrap();
    println!("ready");
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream = stream.unwrap();
            let (mut count, mut sum, mut bytes) = (0u64, 0u64, vec![0; BLOCK]);
            while let Ok(got @ 1..) = stream.read(&mut bytes) {
                for byte in &bytes[..got] {
                    count += 1;
                    sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
                }
            }
            let _ = stream.write_all(format!("{count} {sum}").as_bytes());
        });
    }
}

fn dial(address: &str) -> TcpStream {
    let mut deadline = Deadline::new(LONG);
    loop {
        match TcpStream::connect((address, 7)) {
            Ok(stream) => return stream,
            Err(error) => assert!(!deadline.is_over(), "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends so many blocks over each of so many streams, and compares sums.
fn send(address: &str, streams: u64, blocks: u64) {
    std::thread::scope(|scope| {
        for stream in 0..streams {
            scope.spawn(move || {
                let mut to = dial(address);
                let (mut sum, mut state) = (0u64, stream + 1);
                for _ in 0..blocks {
                    let next = |_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state as u8
                    };
                    let block: Vec<u8> = (0..BLOCK).map(next).collect();
                    sum = block
                        .iter()
                        .fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                    to.write_all(&block).unwrap();
                }
                to.shutdown(std::net::Shutdown::Write).unwrap();
                let mut answer = String::new();
                to.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, format!("{} {sum}", blocks * BLOCK as u64));
            });
        }
    });
    println!("sent");
}

/// Sends blocks over one stream, one every few milliseconds, until its standard input is closed,
/// and compares sums.
fn drip(address: &str) {
    let mut to = dial(address);
    println!("ready");
    let last = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()).unwrap());
    let (mut sum, mut count) = (0u64, 0usize);
    while !last.is_finished() {
        let block = [count as u8; 4096];
        sum =
            block.iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        to.write_all(&block).unwrap();
        count += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    to.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    to.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, format!("{} {sum}", count * 4096));
}

/// Tries to get at what another process has: its memory, and its descriptors, which may be others'
/// memory.
fn pry(id: &str) {
    let denied = |what: &str, outcome: std::io::Result<()>| {
        let error = outcome.expect_err(what);
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{what} of {id}: {error}");
    };
    let path = |file: &str| format!("/proc/{id}/{file}");
    denied("reading the memory", std::fs::File::open(path("mem")).map(drop));
    denied("writing the memory", std::fs::File::options().write(true).open(path("mem")).map(drop));
    // Their numbers may be seen by the same user, but not what they are.
    for entry in std::fs::read_dir(path("fd")).into_iter().flatten() {
        let descriptor = entry.unwrap().path();
        denied("a descriptor", std::fs::read_link(&descriptor).map(drop));
        denied("a descriptor's file", std::fs::File::open(&descriptor).map(drop));
    }
    let first =
        |mut entries: std::fs::ReadDir| entries.next().map_or(Ok(()), |entry| entry.map(drop));
    denied("the mapped files", std::fs::read_dir(path("map_files")).and_then(first));
    // Nothing that is not its own was left open for it, by those who run it.
    let own = |id: &str| -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        links.map(|link| link.display().to_string()).collect()
    };
    let memories = |links: Vec<String>| links.iter().filter(|link| link.contains("memfd:")).count();
    assert_eq!(memories(own("self")), 0);
    assert!(
        memories(own(&std::os::unix::process::parent_id().to_string())) <= 1,
        "a guest has no memory but its own"
    );
}

fn flood(address: &str) {
    let mut to = dial(address);
    println!("ready");
    while to.write_all(&[7; BLOCK]).is_ok() {}
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
fn streams_between_guests_with_one_two_and_four_queues() {
    let site = Site::start();
    for queues in [1, 2, 4] {
        let server = site.server(queues);
        assert!(site.connected("server"));
        let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
        assert!(shown.contains(&format!("{queues} in use, 4 at most")), "{shown}");
        succeeds(site.guest("client", "10.9.0.2", queues, "send 10.9.0.1 8 64"));
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/"));
    }
}

/// Receivers fetch what they get, out of what exactly is granted of it.
#[test]
#[ignore = "needs namespaces"]
fn streams_between_guests_that_copy_for_themselves() {
    let site = Site::with("copy = \"guest\"\ngrants = \"range\"");
    for queues in [1, 2, 4] {
        let server = site.server(queues);
        wait(|| site.connected("server"));
        let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
        assert!(shown.contains("range-grants") && shown.contains("guest-copy"), "{shown}");
        succeeds(site.guest("client", "10.9.0.2", queues, "send 10.9.0.1 8 64"));
        let shown = site.ask(&["port", "show", "guests/server"]).unwrap();
        let copied = shown
            .lines()
            .find_map(|line| line.strip_prefix("guest copies")?.split_whitespace().next());
        // What a guest on a busy processor fetches too late is dropped, and the backend copies for
        // it for a while.
        let least = if shown.contains("not_fetched") { 1 } else { 8 * 32 * BLOCK as u64 };
        assert!(copied.is_some_and(|bytes| bytes.parse::<u64>().unwrap() >= least), "{shown}");
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/"));
    }
}

/// The number before `word` in what `port show` says of mapped pages.
fn mapped_pages(shown: &str, word: &str) -> u64 {
    let line = shown
        .lines()
        .find_map(|line| line.strip_prefix("mapped pages"))
        .unwrap_or_else(|| panic!("{shown}"));
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let at =
        words.iter().position(|other| *other == word).unwrap_or_else(|| panic!("{word} in {line}"));
    words[at - 1].parse().unwrap_or_else(|_| panic!("{word} in {line}"))
}

#[test]
#[ignore = "needs namespaces"]
fn streams_between_guests_whose_pages_stay_mapped() {
    let site = Site::with("cache = 4096");
    for queues in [1, 2, 4] {
        let server = site.server(queues);
        let shown = || site.ask(&["port", "show", "guests/server"]).unwrap();
        // What is shown is up to date every other second.
        wait(|| mapped_pages(&shown(), "of") == u64::from(queues) * 768);
        succeeds(site.guest("client", "10.9.0.2", queues, "send 10.9.0.1 8 64"));
        wait(|| mapped_pages(&shown(), "hits") > 100);
        println!("{}", shown());
        assert_eq!(mapped_pages(&shown(), "misses"), 0);
        drop(server);
        wait(|| !site.ask(&["port", "list"]).unwrap().contains("guests/"));
    }
}

#[test]
#[ignore = "needs namespaces"]
fn a_guest_that_is_killed_under_traffic() {
    for keys in ["", "cache = 4096", "copy = \"guest\""] {
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
    let _other = site.guest("a", "10.9.0.1", 1, "wait");
    wait(|| site.connected("a"));
    fails(&["a", "--", "true"], 1, "a guest \"a\" is there already");
}
