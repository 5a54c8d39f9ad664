//! The traffic generator against the daemon: drivers from the oldest to the newest, every frame
//! checked.
//!
//! Closed loops, so that no receiver is ever short of buffers: every frame must arrive, whole, once
//! and in order.

use std::path::Path;

use lab::daemon::Daemon;
use load::Report;

/// A daemon with four ports of four queues, named a to d.
fn daemon(workers: usize) -> Daemon {
    daemon_with(&format!("count = {workers}"))
}

/// The same, with these lines about its workers.
fn daemon_with(workers: &str) -> Daemon {
    let port = |dir: &Path, name: &str| {
        let socket = dir.join(name).with_extension("sock");
        let socket = socket.display();
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\nqueues = 4\n"
        )
    };
    let ports = |dir: &Path| ["a", "b", "c", "d"].map(|name| port(dir, name)).concat();
    let config = |dir: &Path| format!("[workers]\n{workers}\n{}", ports(dir));
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap()
}

fn run(daemon: &Daemon, ports: &[&str], options: &str) -> Report {
    let sockets: Vec<String> = ports
        .iter()
        .map(|name| daemon.dir().join(name).with_extension("sock").display().to_string())
        .collect();
    let line = format!("--ports {} --warm-up 0.05 --duration 0.2 {options}", sockets.join(","));
    let args = load::Args::from_words(line.split_whitespace()).unwrap();
    load::run(&args).unwrap_or_else(|error| panic!("{options}: {error}\n{}", daemon.log()))
}

/// All frames arrive, and are right.
fn all_arrive(daemon: &Daemon, ports: &[&str], options: &str) {
    let report = run(daemon, ports, options);
    assert!(report.is_right(), "{options}\n{report}");
    for direction in &report.directions {
        let arrived = direction.received > 0 && direction.lost == 0;
        assert!(arrived, "{options}\n{report}\n{}", counted(daemon));
    }
    assert_eq!(report.strays, 0, "{options}");
}

/// The daemon's counters of all ports, and its log.
fn counted(daemon: &Daemon) -> String {
    let ports = daemon.stats().unwrap().ports;
    let ports: String =
        ports.iter().map(|port| format!("{}: {:?}\n", port.name, port.total)).collect();
    ports + &daemon.log()
}

const DRIVERS: &[&str] = &[
    "",
    "--packed",
    "--no-event-idx",
    "--packed --no-event-idx",
    "--no-mergeable",
    "--no-indirect",
    "--legacy",
    "--legacy --no-mergeable --layout chained",
    "--legacy --no-mergeable --no-event-idx --no-indirect",
    "--packed --no-mergeable --no-event-idx --no-indirect",
    "--interrupts",
    "--interrupts --no-event-idx",
    "--interrupts --packed",
    "--interrupts --packed --no-event-idx",
    "--ring 2 --rx-ring 64",
    "--ring 1024 --rx-ring 1024",
    "--packed --ring 100 --rx-ring 90",
    "--regions 8",
];

#[test]
fn every_driver_gets_every_frame() {
    let daemon = daemon(1);
    for driver in DRIVERS {
        all_arrive(&daemon, &["a", "b"], &format!("--window 16 --verify full --size 64 {driver}"));
        all_arrive(
            &daemon,
            &["a", "b"],
            &format!("--window 8 --verify full --size 1514 --direction both {driver}"),
        );
    }
}

/// Guests sleep until they are interrupted, and a sender waits for the receiver: a lost interrupt
/// would be a lost frame.
#[test]
fn a_thread_sends_the_interrupts() {
    let daemon = daemon_with("count = 2\ninterrupt-cpu = 0");
    let sent = || daemon.stats().unwrap().interrupt_thread_interrupts.unwrap();
    let mut rounds = 0;
    while rounds == 0 || sent() == 0 {
        for driver in ["", "--packed", "--no-event-idx", "--packed --no-event-idx"] {
            let options = format!("--interrupts --verify full --size 64 {driver}");
            all_arrive(&daemon, &["a", "b"], &format!("--window 1 {options}"));
            let ports = ["a", "b", "c", "d"];
            all_arrive(&daemon, &ports, &format!("--window 36 --queues 4 --flows 144 {options}"));
        }
        rounds += 1;
    }
}

#[test]
fn one_sender_reaches_all_others_with_frames_of_all_lengths() {
    for workers in [1, 2] {
        let daemon = daemon(workers);
        for options in ["", "--queues 2 --flows 144", "--packed --interrupts"] {
            let options = format!("--fan-out --mix --window 36 --verify full {options}");
            all_arrive(&daemon, &["a", "b", "c", "d"], &options);
        }
    }
}

#[test]
fn buffers_of_every_shape_are_carried() {
    let daemon = daemon(1);
    for packed in ["", "--packed"] {
        for shape in [
            "--layout chained",
            "--layout chained --header together --piece 100",
            "--layout chained --piece 90 --ring 512 --rx-ring 1024",
            "--layout indirect",
            "--layout indirect --piece 133",
            "--layout indirect --header together --piece 700",
            "--rx-buffer 256",
            "--rx-buffer 165 --layout chained --piece 120 --rx-ring 1024",
            "--pool 8M",
        ] {
            let options = format!("--window 2 --verify full --size 1514 {shape} {packed}");
            all_arrive(&daemon, &["a", "b"], &options);
        }
    }
}

#[test]
fn segmentation_offload_frames_pass_whole() {
    let daemon = daemon(1);
    for driver in [
        "--size 65536",
        "--size 65549 --no-mergeable",
        "--size 9000 --packed",
        "--size 64294 --layout indirect --piece 4096",
        "--size 64294 --packed --layout chained --piece 32768 --rx-buffer 1536",
        "--size 1000",
        "--size 2000 --mss 100 --interrupts",
    ] {
        let options = format!("--tso --window 4 --verify full --rx-ring 1024 {driver}");
        all_arrive(&daemon, &["a", "b"], &options);
    }
}

#[test]
fn flows_keep_their_order_over_queues_and_workers() {
    for workers in [1, 2] {
        let daemon = daemon(workers);
        for options in [
            "--queues 4 --flows 1000 --window 64 --direction both",
            "--queues 3 --flows 50 --window 32 --packed",
            "--queues 2 --flows 16 --window 16 --interrupts --direction both --threads 2",
        ] {
            all_arrive(&daemon, &["a", "b"], options);
        }
        all_arrive(
            &daemon,
            &["a", "b", "c", "d"],
            "--queues 2 --flows 8 --window 16 --direction both",
        );
    }
}

#[test]
fn a_guest_that_sends_more_than_is_taken_loses_frames_but_none_is_wrong() {
    let daemon = daemon(1);
    for options in [
        "--size 64",
        "--size 64 --rx-ring 2",
        "--size 1514 --queues 2 --flows 9",
        "--size 64 --packed",
    ] {
        let report = run(&daemon, &["a", "b"], options);
        assert!(report.is_right() && report.directions[0].received > 0, "{options}\n{report}");
    }
    let report = run(&daemon, &["a", "b"], "--size 64 --rate 2000 --interrupts");
    assert!(report.is_right() && report.lost() == 0, "{report}");
}
