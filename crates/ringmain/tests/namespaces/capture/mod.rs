//! Captures of live traffic, read by tshark and tcpdump.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{BLOCK, ChildGuard, Site, ready, send, succeeds, wait};

/// Sends over TCP, and datagrams that nobody takes: the other kernel answers those by ICMP.
pub fn mix(address: &str) {
    send(address, 2, 4);
    let socket = UdpSocket::bind("0.0.0.0:5000").unwrap();
    socket.connect((address, 9)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for length in [10, 100, 1000, 4000, 20] {
        // The answer to the datagram before is an error of this one, or of the next read.
        let refused = socket.send(&vec![1; length]).is_err();
        assert!(refused || socket.recv(&mut [0; 10]).is_err());
    }
}

impl Site {
    /// A capture that runs, with what it says on standard error.
    pub fn capture(&self, args: &[&str], stdout: Stdio) -> Capture {
        let mut command = self.ringmain();
        command.arg("--control").arg(self.path("control.sock")).arg("capture").args(args);
        let before = self.captures();
        let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let capture = Capture(ChildGuard(child));
        wait(|| self.captures() > before);
        capture
    }

    /// How many captures have started.
    fn captures(&self) -> usize {
        let log = std::fs::read_to_string(self.path("log")).unwrap();
        log.lines().filter(|line| line.contains("capture started")).count()
    }
}

/// A `ringmain capture` that runs.
pub struct Capture(ChildGuard);

impl Capture {
    fn child(&mut self) -> &mut Child {
        &mut self.0.0
    }

    pub fn interrupt(&mut self) {
        let id = Pid::from_child(self.child());
        kill_process(id, Signal::INT).unwrap();
    }

    /// Waits until it ends by itself. Returns the numbers of its last line: captured, lost.
    pub fn end(mut self) -> [u64; 2] {
        let mut said = String::new();
        self.child().stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child().wait().unwrap().success(), "{said}");
        let number = |text: &str| text.split(' ').next().and_then(|word| word.parse().ok());
        let (captured, rest) = said
            .strip_prefix("ringmain: ")
            .and_then(|line| line.split_once(" captured, "))
            .unwrap_or_else(|| panic!("{said}"));
        [number(captured).unwrap(), number(rest).unwrap_or(0)]
    }
}

pub fn run(program: &str, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/deps embedded installs it"));
    assert!(status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

pub fn tshark(file: &str, args: &[&str]) -> String {
    run("tshark", &[&["-n", "-r", file], args].concat())
}

/// How many frames of a file an expression matches, as libpcap finds.
fn matches(file: &str, expression: &str) -> usize {
    run("tcpdump", &["-n", "-t", "-q", "-r", file, "--", expression]).lines().count()
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |file| file.len())
}

#[test]
#[ignore = "needs namespaces, tshark and tcpdump"]
fn a_capture_of_live_traffic_is_read_by_others() {
    let site = Site::start();
    let _server = site.server(2);
    let mut client = site.guest("client", "10.9.0.2", 2, "flood 10.9.0.1");
    ready(&mut client);
    let path = site.path("both.pcapng");
    let file = path.to_str().unwrap();
    let mut capture = site.capture(&["guests/client", "guests/server", "-w", file], Stdio::null());
    // The longest frames have 64 KiB: these are more than a hundred.
    wait(|| size(&path) > 7 << 20);
    capture.interrupt();
    let [captured, _] = capture.end();
    assert!(captured > 100, "{captured}");

    assert_eq!(tshark(file, &["-Y", "_ws.malformed || _ws.short"]), "");
    let fields = ["-T", "fields", "-E", "separator=|", "-e", "frame.interface_name"];
    let more = ["-e", "frame.packet_flags_direction", "-e", "ip.src", "-e", "frame.comment"];
    let lines = tshark(file, &[&fields[..], &more].concat());
    assert_eq!(lines.lines().count() as u64, captured);
    assert_eq!(matches(file, "ether[0] >= 0") as u64, captured, "tcpdump reads it, too");
    let mut kinds = std::collections::BTreeSet::new();
    for line in lines.lines() {
        let [name, direction, source, comment] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        // Outbound is what the port's guest sent.
        let own = if name == "guests/server" { "10.9.0.1" } else { "10.9.0.2" };
        // An error of ICMP has the addresses of another packet, too.
        let sender = source.split(',').next().unwrap_or_default();
        if ["10.9.0.1", "10.9.0.2"].contains(&sender) {
            assert_eq!(sender == own, direction.ends_with('2'), "{line}");
        }
        if comment.contains("offload: stands for several TCP segments") {
            assert!(comment.contains("checksum to be completed"), "{line}");
            kinds.insert((name.to_owned(), source.to_owned()));
        }
    }
    assert!(kinds.contains(&("guests/client".to_owned(), "10.9.0.2".to_owned())), "{kinds:?}");
    assert!(kinds.contains(&("guests/server".to_owned(), "10.9.0.2".to_owned())), "{kinds:?}");
    let shown = run("capinfos", &[file]);
    assert!(shown.contains("Name = guests/client"), "{shown}");
    assert!(shown.contains("Time precision = nanoseconds (9)"), "{shown}");
}

/// The oracle is libpcap, which filters a capture of everything.
#[test]
#[ignore = "needs namespaces and tcpdump"]
fn filters_pick_what_tcpdump_picks() {
    const EXPRESSIONS: [&str; 7] = [
        "icmp",
        "arp and host 10.9.0.2",
        "host 10.9.0.2 and not tcp",
        "tcp port 7 and tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "udp[4:2] > 100 and dst 10.9.0.1",
        "ip and src 10.9.0.1 and less 100",
        "tcp and host 10.9.0.2 and ip[6:2] & 0x1fff = 0 and len > 1000",
    ];
    let site = Site::start();
    let _server = site.server(2);
    let file = |name: &str| site.path(name).to_str().unwrap().to_owned();
    let start = |name: &str, args: &[&str]| {
        let file = file(name);
        site.capture(&[&["guests/server", "-w", &file], args].concat(), Stdio::null())
    };
    let mut captures = vec![start("all", &[])];
    for (at, expression) in EXPRESSIONS.iter().enumerate() {
        captures.push(start(&at.to_string(), &["--filter", expression]));
    }
    succeeds(site.guest("client", "10.9.0.2", 2, "mix 10.9.0.1"));
    captures.iter_mut().for_each(Capture::interrupt);
    let counts: Vec<_> = captures.into_iter().map(Capture::end).collect();
    assert!(counts.iter().all(|[_, lost]| *lost == 0), "{counts:?}");
    for (at, expression) in EXPRESSIONS.iter().enumerate() {
        let want = matches(&file("all"), expression);
        assert_eq!(counts[at + 1][0] as usize, want, "{expression}");
        assert!(want > 0, "{expression}");
        assert_eq!(matches(&file(&at.to_string()), "ether[0] >= 0"), want, "{expression}");
    }
    let refused = |args: &[&str], says: &str| {
        let mut command = site.ringmain();
        command.arg("--control").arg(site.path("control.sock")).arg("capture").args(args);
        let said = command.output().unwrap();
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && error.contains(says), "{error}");
    };
    refused(&["guests/server", "--filter", "no such thing"], "--filter: ");
    refused(&["guests/nobody"], "there is no port \"guests/nobody\"");
    refused(&["guests"], "stands for others");
    refused(&["guests/server", "guests/server"], "named twice");
}

#[test]
#[ignore = "needs namespaces and tshark"]
fn a_capture_ends_when_its_reader_does() {
    let site = Site::start();
    let _server = site.server(2);
    let mut capture = site.capture(&["guests/server", "--filter", "icmp"], Stdio::piped());
    let live = capture.child().stdout.take().unwrap();
    let mut command = Command::new("tshark");
    command.args(["-n", "-l", "-r", "-", "-c", "3"]).stdin(live).stdout(Stdio::piped());
    let mut reader = ChildGuard(command.stderr(Stdio::null()).spawn().unwrap());
    // It has the read end of the pipe.
    drop(command);
    succeeds(site.guest("client", "10.9.0.2", 2, "mix 10.9.0.1"));
    let lines = BufReader::new(reader.0.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.contains("ICMP")), "{lines:?}");
    assert!(reader.0.wait().unwrap().success());
    // Nothing more comes for it, and it ends all the same.
    wait(|| capture.child().try_wait().unwrap().is_some_and(|status| status.success()));
}

#[test]
#[ignore = "needs namespaces"]
fn a_reader_that_stops_stops_nobody_else() {
    const BYTES: u64 = 4 * 256 * BLOCK as u64;
    let site = Site::start();
    let _server = site.server(2);
    let mut capture = site.capture(&["guests/server"], Stdio::piped());
    succeeds(site.guest("client", "10.9.0.2", 2, "send 10.9.0.1 4 256"));
    capture.interrupt();
    let mut rest = Vec::new();
    capture.child().stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    let [captured, lost] = capture.end();
    assert!(captured > 0 && lost > 0, "{captured} captured, {lost} lost");
    assert!((rest.len() as u64) < BYTES, "{} bytes", rest.len());
}

#[test]
#[ignore = "needs namespaces"]
fn captures_end_with_their_ports_and_clients() {
    let site = Site::start();
    let server = site.server(2);
    let other = site.guest("other", "10.9.0.2", 1, "wait");
    wait(|| site.connected("other"));
    let start = |port: &str| site.capture(&[port], Stdio::null());
    let mut captures: Vec<Capture> = (0..8).map(|_| start("guests/server")).collect();
    let too_many = || {
        let mut command = site.ringmain();
        command.arg("--control").arg(site.path("control.sock")).args(["capture", "guests/other"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        !child.wait().unwrap().success() && said.contains("8 captures are running already")
    };
    assert!(too_many());
    // A client that is killed leaves its place to the next one.
    captures.pop().unwrap().child().kill().unwrap();
    let ended = || {
        let log = std::fs::read_to_string(site.path("log")).unwrap();
        log.lines().filter(|line| line.contains("capture ended")).count()
    };
    wait(|| ended() == 1);
    let mut last = start("guests/other");
    assert!(too_many());
    // A port that goes ends its captures, and no others.
    drop(server);
    captures.into_iter().for_each(|capture| _ = capture.end());
    assert!(last.child().try_wait().unwrap().is_none());
    drop(other);
    last.end();
    wait(|| ended() == 9);
}
