//! A new process takes over from a daemon under traffic: no front-end sees a disconnection, and
//! every frame arrives.

use std::fs::Permissions;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use lab::guest::Namespace;
use load::Report;
use load::cpu::{GENERATOR_CPU, WORKER_CPU};

/// Take-overs in each test.
const TIMES: usize = 5;

/// A daemon with two ports of two queues, named a and b. `second`: further keys of port b.
fn daemon(second: &str) -> Daemon {
    daemon_of(Path::new(env!("CARGO_BIN_EXE_ringmain")), second)
}

/// The same of another program.
fn daemon_of(binary: &Path, second: &str) -> Daemon {
    let port = |dir: &Path, name: &str| {
        let socket = dir.join(name).with_extension("sock");
        let socket = socket.display();
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\nqueues = 2\n"
        )
    };
    let ports = |dir: &Path| ["a", "b"].map(|name| port(dir, name)).concat();
    let config = |dir: &Path| format!("[workers]\ncount = 2\n{}{second}\n", ports(dir));
    Daemon::start(binary, config, None).unwrap()
}

/// Runs the generator until `work` has ended, and returns its reports and how long rings were not
/// served each time.
fn under_load(daemon: &mut Daemon, options: &str, times: usize) -> (Vec<Report>, Vec<Duration>) {
    let ports = daemon.stats().unwrap().ports;
    let sockets = ports.iter().map(|port| {
        let own = if port.mode.as_deref() == Some("client") { "server:" } else { "" };
        format!("{own}{}", port.socket.as_deref().unwrap())
    });
    let sockets = sockets.collect::<Vec<_>>().join(",");
    // As long as a hundred take-overs may last at most is not known, so the generator runs again
    // and again.
    let line = format!("--ports {sockets} --warm-up 0.05 --duration 2 {options}");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let generator = scope.spawn(|| {
            let mut reports = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let args = load::Args::from_words(line.split_whitespace()).unwrap();
                reports.push(load::run(&args));
            }
            reports
        });
        let mut outages = Vec::new();
        let mut failure = None;
        for _ in 0..times {
            let carried = carried(daemon);
            let until = Instant::now() + Duration::from_secs(20);
            // Frames pass before the next one.
            while self::carried(daemon) == carried && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            match daemon.take_over() {
                Ok(outage) => outages.push(outage),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        let reports = generator.join().unwrap();
        let log = || daemon.log();
        assert!(failure.is_none(), "{}\n{}", failure.unwrap(), log());
        let reports = reports
            .into_iter()
            .map(|report| report.unwrap_or_else(|error| panic!("{error}\n{}", log())));
        (reports.collect(), outages)
    })
}

fn carried(daemon: &Daemon) -> u64 {
    daemon.stats().unwrap().ports.iter().map(|port| port.total.rx_frames).sum()
}

/// All frames arrive, and are right.
fn all_arrive(reports: &[Report], log: &str) {
    for report in reports {
        assert!(report.is_right() && report.strays == 0, "{report}\n{log}");
        for direction in &report.directions {
            assert!(direction.received > 0 && direction.lost == 0, "{report}\n{log}");
        }
    }
}

fn every_frame_arrives(options: &str) {
    every_frame_arrives_at(daemon(""), options);
}

fn every_frame_arrives_at(mut daemon: Daemon, options: &str) {
    let (reports, outages) = under_load(&mut daemon, options, TIMES);
    all_arrive(&reports, &daemon.log());
    assert_eq!(outages.len(), TIMES);
    let log = daemon.log();
    assert!(log.contains("connection taken over"), "{log}");
    assert!(!log.contains("stopped"), "{log}");
}

#[test]
fn every_frame_of_split_rings_arrives() {
    every_frame_arrives("--window 16 --verify full --queues 2 --flows 50 --direction both");
}

#[test]
fn every_frame_of_packed_rings_arrives() {
    every_frame_arrives(
        "--window 16 --verify full --queues 2 --flows 50 --direction both --packed",
    );
}

#[test]
fn every_frame_of_a_guest_that_the_daemon_connects_to_arrives() {
    let daemon = daemon("mode = \"client\"");
    every_frame_arrives_at(daemon, "--window 16 --verify full --queues 2 --direction both");
}

#[test]
fn every_frame_of_guests_that_sleep_arrives() {
    every_frame_arrives("--window 8 --verify full --interrupts --direction both");
    every_frame_arrives("--window 8 --verify full --interrupts --packed --direction both");
}

const PART: &str = "RINGMAIN_TEST_PART";

/// The part that runs in namespaces. As a test of its own it does nothing.
#[test]
fn in_a_namespace() {
    match std::env::var(PART).as_deref() {
        Ok("echo") => {
            let socket = UdpSocket::bind("10.9.0.1:7").unwrap();
            let mut bytes = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&bytes[..len], from);
            }
        }
        Ok("exchange") => exchange(),
        _ => {}
    }
}

/// Sends datagrams in groups for two seconds at least, and gets each back.
fn exchange() {
    let socket = UdpSocket::bind("10.9.0.2:0").unwrap();
    socket.connect("10.9.0.1:7").unwrap();
    let group = |first: u32, limit: Duration| {
        socket.set_read_timeout(Some(limit)).unwrap();
        let bytes = |n: u32| [n.to_le_bytes(); 250].concat();
        for n in first..first + 16 {
            // Nobody may listen there yet.
            let _ = socket.send(&bytes(n));
        }
        let mut came = [0; 2048];
        (first..first + 16).all(|n| socket.recv(&mut came).is_ok_and(|len| came[..len] == bytes(n)))
    };
    let mut first = 0;
    // Until both ends are there.
    while !group(first, Duration::from_millis(100)) {
        std::thread::sleep(Duration::from_millis(100));
        while socket.recv(&mut [0; 2048]).is_ok() {}
        first += 16;
    }
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        first += 16;
        assert!(group(first, Duration::from_secs(20)), "a datagram of {first} and 15 more is lost");
    }
}

fn part(namespace: &Namespace, part: &str) -> Child {
    let mut command = namespace.command(std::env::current_exe().unwrap());
    command
        .args(["take_over::in_a_namespace", "--exact", "--nocapture"])
        .env(PART, part)
        .spawn()
        .unwrap()
}

/// The host behind a TAP in a bridge, and another one behind a TAP in its own namespace.
#[test]
fn taps_keep_their_places_and_their_frames() {
    let host = Namespace::new().unwrap();
    let guest = Namespace::new().unwrap();
    let tap = |device: &str| {
        format!(
            "[[port]]\nname = \"{device}\"\nkind = \"tap\"\ndevice = \"{device}\"\nqueues = 2\n"
        )
    };
    let config = |_: &Path| format!("[workers]\ncount = 2\n{}{}", tap("rm-up"), tap("rm-in"));
    let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
    let mut daemon = Daemon::start(binary, config, Some(&host)).unwrap();
    host.ip(&format!(
        "link add br0 type bridge\nlink set br0 up\naddress add 10.9.0.1/24 dev br0\n\
         link set rm-up master br0\nlink set rm-in netns {}",
        guest.id()
    ))
    .unwrap();
    guest.ip("address add 10.9.0.2/24 dev rm-in\nlink set rm-in up").unwrap();
    let mut echo = part(&host, "echo");
    let mut exchange = part(&guest, "exchange");
    for _ in 0..TIMES {
        std::thread::sleep(Duration::from_millis(200));
        daemon.take_over().unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    }
    let status = exchange.wait().unwrap();
    echo.kill().unwrap();
    echo.wait().unwrap();
    assert!(status.success(), "{}", daemon.log());
    let members = host.run("ip", ["link", "show", "master", "br0"]).unwrap();
    assert!(members.contains("rm-up"), "{members}");
}

/// Prints how long no process served the rings, over a hundred take-overs of each layout, at a rate
/// and as fast as it goes. Guests and daemons have a CPU each: where they share all, a step of a
/// take-over waits whole time slices for a guest.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_take_overs_lose_nothing() {
    load::cpu::pin(GENERATOR_CPU).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let binary = pinned_program(folder.path());
    for load in ["--rate 20000 --interrupts", "--window 16"] {
        for layout in ["", "--packed"] {
            a_hundred_take_overs(&binary, load, layout);
        }
    }
}

/// A program that runs ringmain on the CPU of daemons.
fn pinned_program(folder: &Path) -> PathBuf {
    let program = folder.join("ringmain");
    let script = format!(
        "#!/bin/sh\nexec taskset -c {WORKER_CPU} {} \"$@\"\n",
        env!("CARGO_BIN_EXE_ringmain")
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

fn a_hundred_take_overs(binary: &Path, load: &str, layout: &str) {
    let mut daemon = daemon_of(binary, "");
    let options = format!("{load} --verify full --queues 2 --flows 50 --direction both {layout}");
    let (reports, mut outages) = under_load(&mut daemon, &options, 100);
    all_arrive(&reports, &daemon.log());
    outages.sort_unstable();
    let at = |percent: usize| outages[(outages.len() * percent).div_ceil(100) - 1];
    let frames: u64 =
        reports.iter().flat_map(|report| &report.directions).map(|one| one.received).sum();
    println!(
        "{load} {layout}: {} take-overs, {frames} frames, none lost: outage {:?} in the median, {:?} \
         at the 99th percentile, {:?} at most",
        outages.len(),
        at(50),
        at(99),
        at(100),
    );
}
