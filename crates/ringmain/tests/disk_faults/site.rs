//! A daemon with two disks of one worker: that which fails, and its neighbour.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::api::{DiskReport, PortState};
use lab::daemon::Daemon;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::front::{DiskFront, OK};

/// Bytes of a write, its sectors, and the blocks of an image.
pub const BLOCK: usize = 64 << 10;
pub const SECTORS: u64 = BLOCK as u64 / 512;
pub const BLOCKS: u64 = 64;

/// Ends a test that would hang.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs a command. Its output, or why there is none.
pub fn run(line: &str) -> Result<String, String> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Says what is missing here. Not by a macro: the test harness would swallow what a passing test
/// prints.
pub fn not_tested(missing: &str) {
    let line = format!("disk_faults: not tested: {missing}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
}

/// What write number `number` writes.
pub fn pattern(number: u64) -> Vec<u8> {
    let word = |at: u64| (number << 32 | at).to_le_bytes();
    (0..BLOCK as u64 / 8).flat_map(word).collect()
}

pub fn write(guest: &mut DiskFront, block: u64, number: u64) -> u8 {
    guest.write(block * SECTORS, &pattern(number))
}

#[track_caller]
pub fn check(guest: &mut DiskFront, block: u64, number: u64) {
    assert!(guest.read(block * SECTORS, BLOCK) == (OK, pattern(number)), "block {block}");
}

/// A folder with a file system of few bytes in its folder `small`, which only this thread, and what
/// it starts, can see.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// `None`: there are no mounts to be had, which is said.
    pub fn new(size: &str) -> Option<Folder> {
        // SAFETY: the thread's mounts become its own affair; no memory or descriptor table is
        // unshared.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
            not_tested(&format!("a namespace of mounts: {error}"));
            return None;
        }
        let folder = Folder(tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path("small")).unwrap();
        let small = folder.path("small");
        run("mount --make-rprivate /").unwrap();
        run(&format!("mount -t tmpfs -o size={size} tmpfs {}", small.display())).unwrap();
        Some(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Gives the small file system this size.
    pub fn resize(&self, size: &str) {
        let small = self.path("small");
        run(&format!("mount -o remount,size={size} {}", small.display())).unwrap();
    }

    /// A new image of zeros, which takes no space.
    pub fn image(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(BLOCKS * BLOCK as u64).unwrap();
        path
    }
}

/// A daemon with one worker and two disks: that which fails, and its neighbour.
pub struct Site {
    // In this order: the neighbour ends before the daemon.
    neighbour: Neighbour,
    daemon: Daemon,
}

impl Site {
    pub fn new(folder: &Folder, image: &Path, direct: &str) -> Site {
        let images = [image.to_owned(), folder.image("neighbour.raw")];
        let config = |dir: &Path| {
            let disk = |(name, image): (&str, &PathBuf)| {
                let socket = dir.join(name);
                format!(
                    "[[disk]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n\
                     image = \"{}\"\ndirect = \"{direct}\"\n",
                    socket.display(),
                    image.display()
                )
            };
            let disks: String =
                ["failing", "neighbour"].into_iter().zip(&images).map(disk).collect();
            format!("[workers]\ncount = 1\n{disks}")
        };
        let binary = Path::new(env!("CARGO_BIN_EXE_ringmain"));
        let daemon = Daemon::start(binary, config, None).unwrap();
        let neighbour = Neighbour::start(&daemon.dir().join("neighbour"));
        Site { neighbour, daemon }
    }

    pub fn guest(&self) -> DiskFront {
        DiskFront::connect(&self.daemon.dir().join("failing"))
    }

    pub fn report(&self, name: &str) -> DiskReport {
        let disks = self.daemon.stats().unwrap().disks;
        disks.into_iter().find(|disk| disk.name == name).unwrap()
    }

    /// So many requests have failed, all for one of these reasons, and the guest is connected
    /// still.
    #[track_caller]
    pub fn check_failed(&self, reasons: &[&str], requests: u64) {
        let disk = self.report("failing");
        let named: u64 = reasons.iter().map(|reason| disk.total.errors[*reason]).sum();
        assert_eq!((named, disk.total.failed()), (requests, requests), "{disk:?}");
        assert_eq!((disk.state, disk.violations), (PortState::Connected, 0), "{disk:?}");
    }

    /// The neighbour, which is on the same worker, goes on, and none of its requests fails.
    #[track_caller]
    pub fn check_neighbour(&mut self) {
        self.neighbour.goes_on();
        let disk = self.report("neighbour");
        assert_eq!((disk.total.failed(), disk.violations), (0, 0), "{disk:?}");
    }
}

/// What a neighbour shares with its thread.
#[derive(Default)]
pub struct Shared {
    ends: AtomicBool,
    rounds: AtomicU64,
}

/// A guest that writes, reads and flushes all the time, and whose requests all succeed.
pub struct Neighbour {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    fn start(socket: &Path) -> Neighbour {
        let (socket, shared) = (socket.to_owned(), Arc::new(Shared::default()));
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut guest = DiskFront::connect(&socket);
            while !seen.ends.load(Ordering::Relaxed) {
                let round = seen.rounds.load(Ordering::Relaxed);
                assert_eq!(write(&mut guest, round % BLOCKS, round), OK, "round {round}");
                check(&mut guest, round % BLOCKS, round);
                assert_eq!(guest.flush(), OK, "round {round}");
                seen.rounds.store(round + 1, Ordering::Relaxed);
            }
        });
        Neighbour { shared, thread: Some(thread) }
    }

    /// Waits for some rounds that begin from now on.
    #[track_caller]
    fn goes_on(&mut self) {
        let rounds = || self.shared.rounds.load(Ordering::Relaxed);
        let (enough, until) = (rounds() + 3, Instant::now() + WATCHDOG);
        while rounds() < enough {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended && Instant::now() < until, "after {} rounds", rounds());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Neighbour {
    /// The thread goes before the daemon does.
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|ended| ended.is_ok()), "the neighbour's requests succeed");
        }
    }
}
