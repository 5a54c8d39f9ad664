//! A daemon that has a thread of each kind.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use control::api::CaptureRequest;
use hypervisor::Domain;
use hypervisor::embedded::Version;
use hypervisor::embedded::client::{GuestRequest, become_guest};
use lab::daemon::Daemon;
use tempfile::TempDir;

/// How long something may take that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// The kinds of threads, and how many filters each has besides those of the process: its own, and
/// that of the thread that started it. A name that ends with `-` is the beginning of names.
pub const KINDS: [(&str, u32); 20] = [
    ("ringmain", 0),
    ("rm-maintain", 0),
    ("rm-control", 0),
    // One answers requests, and another serves a capture.
    ("rm-control-peer", 0),
    ("rm-vifs", 0),
    ("rm-worker-", 1),
    ("rm-qcow2", 1),
    ("rm-log", 1),
    ("rm-watchdog", 1),
    ("rm-notify", 1),
    ("rm-balance", 1),
    ("rm-store", 1),
    ("rm-metrics", 1),
    ("rm-metrics-peer", 2),
    ("rm-guests", 1),
    ("rm-guest", 1),
    ("rm-guest-store", 2),
    ("rm-vcpu-", 2),
    // The servers of a port and of a disk, whose names they have.
    ("rm-vm", 1),
    ("rm-disk", 1),
];

/// Threads that there may be: those that carry out requests where there is no io_uring, and one
/// that measures at the start.
const PERHAPS: [(&str, u32); 2] = [("rm-disk-", 1), ("rm-signaller", 0)];

/// The fields of a thread's `/proc/PID/task/TID/status`.
pub type Status = BTreeMap<String, String>;

/// A daemon, and whoever it serves.
pub struct Served {
    pub daemon: Daemon,
    /// The service manager's socket, the guest, and connections.
    _peers: Vec<Box<dyn Any>>,
    _folder: TempDir,
}

/// Connects to a socket of the daemon. The socket of metrics comes after the daemon's first answer.
fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < LIMIT, "{}: {error}", socket.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Served {
    /// Starts the daemon with these lines in the table `sandbox`, and waits until it has all kinds
    /// of threads.
    pub fn start(sandbox: &str) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manager");
        let manager = UnixDatagram::bind(&path).unwrap();
        let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
        let daemon = Daemon::start_with(
            binary,
            |dir| config(dir, sandbox),
            |command| {
                command.env("NOTIFY_SOCKET", &path).env_remove("WATCHDOG_PID");
                command.env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
            },
        )
        .unwrap();
        let mac = [2, 0, 0, 0, 0, 1];
        let request = GuestRequest { pages: 64, version: Version::V1, mac, name: "g".into() };
        let log = || daemon.log();
        let guest = become_guest(&daemon.dir().join("guests.sock"), request);
        let guest = guest.unwrap_or_else(|error| panic!("{error}: {}", log()));
        let vcpu = guest.0.hypercalls().unwrap_or_else(|error| panic!("{error}: {}", log()));
        let sockets = ["control.sock", "metrics.sock", "vm.sock", "disk.sock"];
        let clients = sockets.map(|name| connect(&daemon.dir().join(name)));
        let request = CaptureRequest { ports: vec!["vm".into()], snaplen: None, filter: None };
        let capture = daemon.client().capture(request).unwrap();
        let peers: Vec<Box<dyn Any>> = vec![
            Box::new(manager),
            Box::new(vcpu),
            Box::new(guest),
            Box::new(clients),
            Box::new(capture),
        ];
        let served = Served { daemon, _peers: peers, _folder: folder };
        served.eventually(|| served.missing());
        served
    }

    /// Waits until there are no faults.
    pub fn eventually(&self, faults: impl Fn() -> Vec<String>) {
        let start = Instant::now();
        loop {
            let faults = faults();
            if faults.is_empty() {
                return;
            }
            assert!(start.elapsed() < LIMIT, "{faults:#?} {}", self.daemon.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The threads. Those that the kernel has made for io_uring run no code of the daemon.
    pub fn threads(&self) -> Vec<Status> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon.id())).unwrap();
        let status = |task: std::io::Result<fs::DirEntry>| {
            // A thread that has ended meanwhile has none.
            let text = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let fields = text.lines().filter_map(|line| line.split_once(":\t"));
            Some(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
        };
        let all = tasks.filter_map(status);
        all.filter(|status: &Status| !status["Name"].starts_with("iou-")).collect()
    }

    /// Kinds of which there is no thread, or threads that have just started and have no name; and
    /// the thread that measures copies, until it has ended.
    fn missing(&self) -> Vec<String> {
        let threads = self.threads();
        let is_there = |kind: &str| threads.iter().any(|thread| is_of(&thread["Name"], kind));
        let missing = KINDS.iter().filter(|(kind, _)| !is_there(kind));
        let missing = missing.map(|(kind, _)| format!("there is no thread {kind}"));
        let measures = is_there("rm-copy").then(|| "copies are still measured".to_owned());
        missing.chain(measures).collect()
    }

    /// Whether a layer is active.
    pub fn has(&self, layer: &str) -> bool {
        let layers = self.daemon.stats().unwrap().sandbox;
        let active = layers.iter().any(|it| it.layer == layer && it.state == "active");
        if !active {
            println!("SKIPPED IN PART: this host does not have the layer {layer}");
        }
        active
    }
}

fn is_of(name: &str, kind: &str) -> bool {
    if kind.ends_with('-') { name.starts_with(kind) } else { name == kind }
}

/// How many filters of its own a thread of this name has. `None`: the name is of no known kind.
pub fn filters_of(name: &str) -> Option<u32> {
    let kinds = KINDS.iter().chain(&PERHAPS);
    kinds.filter(|(kind, _)| is_of(name, kind)).map(|(_, filters)| *filters).next()
}

/// Each kind of port and disk that needs no right, and a place for metrics.
fn config(dir: &Path, sandbox: &str) -> String {
    // The daemon's user may use the folder without a capability.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    let qcow2 = ["create", "-q", "-f", "qcow2", "disk.qcow2", "1M"];
    let made = Command::new("qemu-img").args(qcow2).current_dir(dir).status();
    assert!(made.expect("qemu-img runs (package qemu-utils)").success());
    let dir = dir.display();
    format!(
        "[workers]\ncount = 2\n[metrics]\nlisten = \"{dir}/metrics.sock\"\n\
         [sandbox]\n{sandbox}\n\
         [[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"{dir}/vm.sock\"\n\
         [[port]]\nname = \"guests\"\nkind = \"embedded\"\nsocket = \"{dir}/guests.sock\"\n\
         [[disk]]\nname = \"disk\"\nkind = \"vhost-user\"\nsocket = \"{dir}/disk.sock\"\n\
         image = \"{dir}/disk.qcow2\"\nformat = \"qcow2\"\n"
    )
}
