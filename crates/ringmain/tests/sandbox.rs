//! Each thread of a running daemon has the filter of its kind, and none has rights left. What the
//! filters forbid to each kind is shown by the tests of the crate `sandbox`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hypervisor::Domain;
use hypervisor::embedded::Version;
use hypervisor::embedded::client::{GuestRequest, become_guest};
use lab::daemon::Daemon;

/// How long something may take that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// The beginnings of the names of workers and helpers, which have a filter of their own.
const FILTERED: [&str; 6] =
    ["rm-worker-", "rm-vcpu-", "rm-qcow2", "rm-disk-", "rm-log", "rm-watchdog"];

/// The beginnings of the names of threads that this daemon has.
const EXPECTED: [&str; 14] = [
    "ringmain",
    "rm-worker-0",
    "rm-worker-1",
    "rm-vcpu-",
    "rm-qcow2",
    "rm-log",
    "rm-watchdog",
    "rm-vm",
    "rm-disk",
    "rm-guests",
    "rm-guest-store",
    "rm-store",
    "rm-control-peer",
    "rm-metrics-peer",
];

/// Each kind of port and disk that needs no right, and a place for metrics.
fn config(dir: &Path) -> String {
    // The daemon's user may use the folder without a capability.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    let qcow2 = ["create", "-q", "-f", "qcow2", "disk.qcow2", "1M"];
    let made = Command::new("qemu-img").args(qcow2).current_dir(dir).status();
    assert!(made.expect("qemu-img runs (package qemu-utils)").success());
    let dir = dir.display();
    format!(
        "[workers]\ncount = 2\n[metrics]\nlisten = \"{dir}/metrics.sock\"\n\
         [[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"{dir}/vm.sock\"\n\
         [[port]]\nname = \"guests\"\nkind = \"embedded\"\nsocket = \"{dir}/guests.sock\"\n\
         [[disk]]\nname = \"disk\"\nkind = \"vhost-user\"\nsocket = \"{dir}/disk.sock\"\n\
         image = \"{dir}/disk.qcow2\"\nformat = \"qcow2\"\n"
    )
}

/// The fields of a thread's `/proc/PID/task/TID/status`.
type Status = BTreeMap<String, String>;

/// The threads of a process. Those that the kernel has made for io_uring run no code of it.
fn threads(process: u32) -> Vec<Status> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let status = |task: std::io::Result<fs::DirEntry>| {
        // A thread that has ended meanwhile has none.
        let text = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let fields = text.lines().filter_map(|line| line.split_once(":\t"));
        Some(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    };
    let all = tasks.filter_map(status);
    all.filter(|status: &Status| !status["Name"].starts_with("iou-")).collect()
}

#[test]
fn every_thread_has_the_filter_of_its_kind_and_no_rights() {
    let daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_ringmain")), config, None).unwrap();
    let request =
        GuestRequest { pages: 64, version: Version::V1, mac: [2, 0, 0, 0, 0, 1], name: "g".into() };
    let (guest, _connection) = become_guest(&daemon.dir().join("guests.sock"), request).unwrap();
    let _vcpu = guest.hypercalls().unwrap();
    let sockets = ["control.sock", "metrics.sock", "vm.sock", "disk.sock"];
    let _open = sockets.map(|name| UnixStream::connect(daemon.dir().join(name)).unwrap());

    let layers = daemon.stats().unwrap().sandbox;
    let is_active = |layer: &str| layers.iter().any(|it| it.layer == layer && it.state == "active");
    // A thread that has just started has neither its name nor its filter yet.
    let start = Instant::now();
    let threads = loop {
        let threads = threads(daemon.id());
        let mut faults = missing(&threads);
        if is_active("seccomp") {
            faults.extend(wrong_filters(&threads, daemon.id()));
        }
        if faults.is_empty() {
            break threads;
        }
        assert!(start.elapsed() < LIMIT, "{faults:#?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    for thread in &threads {
        if is_active("no-new-privileges") {
            assert_eq!(thread["NoNewPrivs"], "1", "{thread:?}");
        }
        if is_active("capabilities") {
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(thread[set], "0000000000000000", "{thread:?}");
            }
        }
        if is_active("user") {
            assert!(!thread["Uid"].split('\t').any(|id| id == "0"), "{thread:?}");
        }
    }
    for layer in ["seccomp", "no-new-privileges", "capabilities", "user"] {
        if !is_active(layer) {
            println!("SKIPPED IN PART: this host does not have the layer {layer}");
        }
    }
}

/// The names of threads that are expected and not there.
fn missing(threads: &[Status]) -> Vec<String> {
    let is_there = |name: &&str| threads.iter().any(|thread| thread["Name"].starts_with(*name));
    let missing = EXPECTED.iter().filter(|name| !is_there(name));
    missing.map(|name| format!("there is no thread {name}")).collect()
}

/// Threads with other filters than their kind has. The main thread has those of control threads.
fn wrong_filters(threads: &[Status], process: u32) -> Vec<String> {
    let filters = |thread: &Status| thread["Seccomp_filters"].parse::<u32>().unwrap();
    let main = threads.iter().find(|thread| thread["Pid"] == process.to_string()).unwrap();
    let is_wrong = |thread: &&Status| {
        let has_own = FILTERED.iter().any(|name| thread["Name"].starts_with(name));
        thread["Seccomp"] != "2" || filters(thread) != filters(main) + u32::from(has_own)
    };
    let wrong = threads.iter().filter(is_wrong);
    wrong.map(|thread| format!("{} has {} filters", thread["Name"], filters(thread))).collect()
}
