//! The ceiling: a back-end that is nothing but two rings and a copy.
//!
//! The bridge serves two vhost-user sockets from one thread and lays a bare
//! [`Wire`](ring::wire::Wire) between their queues: no switch, no table, no checks, no prefetching
//! of short frames. A thread that polls shows about the cost of the copy and of passing cache lines
//! between the CPUs of a machine. A thread that sleeps shows the cost of sleeping and waking. The
//! code is naive on purpose, so a good switch may be faster.

mod guest;
mod server;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::BenchError;
use crate::bare_process::BareProcess;

pub(super) use guest::{End, Guest};

/// Options of the process.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// CPU that the only thread runs on
    #[arg(long, value_name = "CPU")]
    pub cpu: usize,

    /// Sleep while there are no frames, instead of polling
    #[arg(long)]
    pub sleep: bool,

    /// Folder for the two sockets
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Serves pairs of front-ends for ever: the process of the bare copy.
///
/// # Errors
/// When the sockets cannot be made.
pub fn run(args: &Args) -> Result<(), BenchError> {
    server::run(args).map_err(|source| BenchError::Start { what: "listen", source })
}

/// The running copier, which ends when this value is dropped.
pub struct Ceiling(BareProcess);

impl Ceiling {
    /// Starts it on a CPU, with two sockets that it listens on. `sleep`: it sleeps while there are
    /// no frames.
    ///
    /// # Errors
    /// When the process cannot be started, or makes no sockets.
    pub fn start(cpu: usize, sleep: bool) -> Result<Self, BenchError> {
        let failed = |what| move |source| BenchError::Start { what, source };
        let dir = BareProcess::folder().map_err(failed("make a folder"))?;
        let (cpu, sockets) = (cpu.to_string(), sockets(dir.path()));
        let folder = dir.path().to_owned();
        let fixed = ["bare-copy", "--cpu", &cpu].into_iter().chain(sleep.then_some("--sleep"));
        let arguments = fixed.map(OsStr::new).chain([folder.as_os_str()]);
        let process = BareProcess::start(dir, arguments, &sockets);
        Ok(Ceiling(process.map_err(failed("start the bare copy"))?))
    }

    /// The sockets that it listens on.
    pub fn sockets(&self) -> [PathBuf; 2] {
        sockets(self.0.dir())
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

fn sockets(dir: &Path) -> [PathBuf; 2] {
    ["a.sock", "b.sock"].map(|name| dir.join(name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The traffic of generators through a bare copy in this process.
    fn carry(sleep: bool, runs: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { cpu: 0, sleep, folder: dir.path().to_owned() };
        let [a, b] = sockets(dir.path()).map(|path| path.display().to_string());
        // The thread ends with the process of the tests.
        std::thread::spawn(move || run(&args));
        while !Path::new(&b).exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        for options in runs {
            let line = format!("--ports {a},{b} {options} --duration 0.1 --warm-up 0");
            let args = load::Args::from_words(line.split_whitespace()).unwrap();
            let report = load::run(&args).unwrap();
            let received: u64 = report.directions.iter().map(|direction| direction.received).sum();
            assert!(report.is_right() && report.lost() == 0 && received > 0, "{report}");
        }
    }

    #[test]
    fn generated_frames_arrive_intact_in_every_run() {
        carry(false, &["--size 64 --queues 2 --direction both", "--size 9000 --tso --window 1"]);
    }

    #[test]
    fn a_thread_that_sleeps_is_woken_for_every_frame() {
        let slow = "--size 64 --interrupts --rate 5000 --gaps mixed";
        carry(true, &[slow, "--size 64 --window 1 --interrupts", "--size 1514 --direction both"]);
    }
}
