//! DPDK's testpmd, over its driver's virtio-user: it sends and receives by itself on two ports, and
//! counts what the daemon counts.

use std::io::{Read, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;

use lab::daemon::is_balanced;
use lab::guest::{ChildProcess, Deadline};
use parking_lot::Mutex;

use super::{LIMIT, counts, daemon, port, wait};

const MACS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];

struct Testpmd {
    _process: ChildProcess,
    input: ChildStdin,
    output: Arc<Mutex<String>>,
}

impl Testpmd {
    /// Two ports at these sockets, with these queues and options of the device.
    fn start(sockets: [&std::path::Path; 2], queues: u16, options: &str) -> Testpmd {
        // Else it keeps what it says until it ends.
        let mut command = ChildProcess::command("stdbuf");
        command.args(["-oL", "dpdk-testpmd"]);
        // Memory that is a file all the same, to be shared.
        command.args(["--lcores", "0@0,1@0", "--no-huge", "-m", "128", "--no-pci"]);
        command.args(["--no-telemetry", &format!("--file-prefix=rm{}", sockets_id(sockets))]);
        for (number, (socket, mac)) in sockets.iter().zip(MACS).enumerate() {
            command.arg("--vdev").arg(format!(
                "net_virtio_user{number},path={},queues={queues},queue_size=256,mac={mac}{options}",
                socket.display()
            ));
        }
        command.args(["--", "-i", "--forward-mode=mac", "--no-mlockall", "--nb-cores=1"]);
        command.args(["--total-num-mbufs=16384", &format!("--rxq={queues}")]);
        command.arg(format!("--txq={queues}"));
        for (number, mac) in MACS.iter().rev().enumerate() {
            command.arg(format!("--eth-peer={number},{mac}"));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = ChildProcess::start(&mut command).unwrap();
        let child = process.child();
        let (input, mut read) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(got @ 1..) = read.read(&mut bytes) {
                kept.lock().push_str(&String::from_utf8_lossy(&bytes[..got]));
            }
        });
        Testpmd { _process: process, input, output }
    }

    fn said(&self) -> String {
        self.output.lock().clone()
    }

    /// Gives a command, and returns what is said up to a line with `last`.
    fn ask(&mut self, command: &str, last: &str) -> String {
        let before = self.said().len();
        writeln!(self.input, "{command}").unwrap();
        wait(command, || self.said()[before..].contains(last), || self.said());
        self.said()[before..].to_owned()
    }

    /// Frames received and sent, by port.
    fn counts(&mut self) -> [[u64; 2]; 2] {
        [0, 1].map(|port| {
            let shown = self.ask(&format!("show port stats {port}"), "Tx-pps");
            ["RX-packets:", "TX-packets:"].map(|what| {
                let rest = shown.split(what).nth(1).unwrap_or_else(|| panic!("{shown}"));
                rest.split_whitespace().next().unwrap().parse().unwrap()
            })
        })
    }
}

/// A name of its own for each, since DPDK keeps files under it.
fn sockets_id(sockets: [&std::path::Path; 2]) -> String {
    let folder = sockets[0].parent().and_then(|dir| dir.file_name()).unwrap();
    folder.to_string_lossy().replace(['.', '-'], "_")
}

/// It sends and forwards for a while, and stops: then both have counted the same.
fn counts_alike(queues: u16, options: &str) {
    let more = format!("queues = {queues}");
    let daemon = daemon(|dir| port(dir, "a", &more) + &port(dir, "b", &more), None);
    let (a, b) = (daemon.dir().join("a"), daemon.dir().join("b"));
    let mut testpmd = Testpmd::start([&a, &b], queues, options);
    wait("its prompt", || testpmd.said().contains("testpmd>"), || testpmd.said());
    testpmd.ask("start tx_first 4", "packet forwarding");
    let enough = |frames: u64| daemon.stats().is_ok_and(|s| counts(&s, "b").rx_frames > frames);
    wait("frames", || enough(20_000), || daemon.log());
    testpmd.ask("stop", "Done.");
    // What is still on its way to it, it only receives.
    testpmd.ask("set fwd rxonly", "Set rxonly");
    testpmd.ask("start", "packet forwarding");
    let mut deadline = Deadline::new(LIMIT);
    let counted = loop {
        let stats = daemon.stats().unwrap();
        let ours = ["a", "b"].map(|name| {
            let counts = counts(&stats, name);
            [counts.rx_frames, counts.tx_frames]
        });
        let theirs = testpmd.counts();
        if ours == theirs && is_balanced(&stats) {
            break ours;
        }
        let said = || format!("{ours:?}, {theirs:?}\n{}\n{}", testpmd.said(), daemon.log());
        assert!(!deadline.is_over(), "{}", said());
    };
    let shown = daemon.stats().unwrap();
    let features = &shown.ports[0].features;
    let packed = features.iter().any(|feature| feature.contains("packed"));
    assert_eq!(packed, options.contains("packed_vq=1"), "{features:?}");
    testpmd.ask("stop", "Done.");
    let _ = writeln!(testpmd.input, "quit");
    wait("its end", || testpmd.said().contains("Bye..."), || testpmd.said());
    println!("{queues} queues{options}: {counted:?}");
}

#[test]
#[ignore = "needs testpmd"]
fn split_rings_of_one_queue_count_alike() {
    counts_alike(1, "");
}

#[test]
#[ignore = "needs testpmd"]
fn split_rings_of_four_queues_count_alike() {
    counts_alike(4, "");
}

#[test]
#[ignore = "needs testpmd"]
fn packed_rings_of_four_queues_count_alike() {
    counts_alike(4, ",packed_vq=1");
}

#[test]
#[ignore = "needs testpmd"]
fn packed_rings_in_order_without_merging_count_alike() {
    counts_alike(2, ",packed_vq=1,in_order=1,mrg_rxbuf=0");
}
