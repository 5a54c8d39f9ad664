//! The messages that the service manager gets about the daemon's workers.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use lab::daemon::Daemon;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// How often the service manager wants to hear of the daemon, at least.
const INTERVAL: Duration = Duration::from_millis(400);

/// How long something may take that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// The daemon's log line about a worker that does not answer.
const COMPLAINT: &str = "a worker makes no progress";

/// A service manager's socket.
struct Manager(UnixDatagram);

impl Manager {
    /// The next message within a time.
    fn hears(&self, time: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(time)).unwrap();
        let mut message = [0; 256];
        let length = self.0.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..length]).into_owned())
    }

    /// Waits for so many keep-alives.
    fn hears_of_progress(&self, count: usize) {
        let start = Instant::now();
        let mut heard = 0;
        while heard < count {
            assert!(start.elapsed() < LIMIT, "{heard} keep-alives");
            heard += usize::from(self.hears(LIMIT).as_deref() == Some("WATCHDOG=1"));
        }
    }

    /// Forgets what has come so far.
    fn forget(&self) {
        while self.hears(Duration::from_millis(1)).is_some() {}
    }
}

/// The thread of worker 0.
fn worker(daemon: &Daemon) -> Pid {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
    let is_worker = |path: &Path| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "rm-worker-0")
    };
    let path = tasks.map(|task| task.unwrap().path()).find(|path| is_worker(path)).unwrap();
    Pid::from_raw(path.file_name().unwrap().to_str().unwrap().parse().unwrap())
}

fn complaints(daemon: &Daemon) -> usize {
    daemon.log().matches(COMPLAINT).count()
}

/// Waits until the daemon has complained so many times more.
fn complains(daemon: &Daemon, more: usize) {
    let (start, before) = (Instant::now(), complaints(daemon));
    while complaints(daemon) < before + more {
        assert!(start.elapsed() < LIMIT, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn keep_alives_cease_while_a_worker_is_stuck() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("manager");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    let interval = INTERVAL.as_micros().to_string();
    let daemon = Daemon::start_with(
        Path::new(env!("CARGO_BIN_EXE_ringmain")),
        |_| "[workers]\ncount = 2\n".into(),
        |command| {
            command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", interval);
            command.env_remove("WATCHDOG_PID");
        },
    )
    .unwrap();
    assert_eq!(manager.hears(LIMIT).as_deref(), Some("READY=1"));
    manager.hears_of_progress(3);

    // Stops this thread alone.
    let worker = worker(&daemon);
    ptrace::seize(worker, Options::empty()).unwrap();
    ptrace::interrupt(worker).unwrap();
    waitpid(worker, Some(WaitPidFlag::__WALL)).unwrap();
    complains(&daemon, 1);
    manager.forget();
    complains(&daemon, 2);
    assert_eq!(manager.hears(Duration::from_millis(1)), None, "a worker is stuck");

    ptrace::detach(worker, None).unwrap();
    manager.hears_of_progress(2);
}
