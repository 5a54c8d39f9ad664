//! A daemon of the experiment's own: `ringmain serve` as a child, with its configuration and
//! sockets in a folder that goes when it does.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use control::api::{Profile, Reply, Request, Stats};
use control::client::{Client, ClientError};
use hypervisor::embedded::Design;
use tempfile::TempDir;

use crate::guest::{ChildProcess, Deadline, Namespace};
use crate::serve;

/// How long a start or an orderly end may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long workers go on taking stamps without another request, in seconds.
const LEASE: u32 = 600;

/// A running daemon. It is stopped when this value goes.
#[derive(Debug)]
pub struct Daemon {
    // The order of drops matters: the process ends before its folder is removed.
    process: ChildProcess,
    command: Box<Command>,
    dir: TempDir,
}

/// An error of a daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The daemon could not be started, or its folder could not be made.
    #[error("cannot {what}: {source}")]
    Start {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The daemon ended, or did not answer in time.
    #[error("the daemon {what}; its log ends: {log}")]
    Died {
        /// The end of the daemon, in words.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// The daemon refused a request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon gave an answer of another kind than was asked for.
    #[error("the daemon gave an unexpected answer")]
    Answer,
}

/// Whether each received frame was sent or counted as dropped. Only valid at rest.
pub fn is_balanced(stats: &Stats) -> bool {
    let mut sum = stats.removed.clone();
    stats.ports.iter().for_each(|port| sum.add(&port.total));
    sum.tx_frames > 0 && sum.tx_frames + sum.copies == sum.rx_frames + sum.dropped()
}

impl Daemon {
    /// Starts the program `ringmain` in the file `binary`, in a network namespace if one is given,
    /// and waits until it listens.
    ///
    /// `config` makes the `[[port]]` tables (and others, except `[control]`) of its configuration,
    /// given the folder where its sockets should stand. The daemon lives no longer than the
    /// thread that calls this.
    ///
    /// # Errors
    /// When it cannot be started, or ends at once.
    pub fn start(
        binary: &Path,
        config: impl FnOnce(&Path) -> String,
        namespace: Option<&Namespace>,
    ) -> Result<Daemon, DaemonError> {
        Daemon::launch(binary, &[], config, namespace, |_| ())
    }

    /// The same in this namespace, with a command that `change` may change last: its environment,
    /// or where its log goes.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_with(
        binary: &Path,
        config: impl FnOnce(&Path) -> String,
        change: impl FnOnce(&mut Command),
    ) -> Result<Daemon, DaemonError> {
        Daemon::launch(binary, &[], config, None, change)
    }

    /// The same with a daemon of this program's own (`ringmain-lab serve`), whose embedded
    /// hypervisor has this inner design.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn with_design(
        design: Design,
        config: impl FnOnce(&Path) -> String,
        namespace: Option<&Namespace>,
    ) -> Result<Daemon, DaemonError> {
        Daemon::launch(&this_program()?, &serve::options(design), config, namespace, |_| ())
    }

    /// The same, whose disks carry nothing out.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn with_null_disks(config: impl FnOnce(&Path) -> String) -> Result<Daemon, DaemonError> {
        Daemon::launch(&this_program()?, &["--null-disks".to_owned()], config, None, |_| ())
    }

    /// A daemon of another commit, which may answer in another way, in a network namespace if one
    /// is given. Waits until a file with each of these names, a port's socket, is in its folder.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn of_another_commit(
        binary: &Path,
        config: impl FnOnce(&Path) -> String,
        namespace: Option<&Namespace>,
        sockets: &[String],
    ) -> Result<Daemon, DaemonError> {
        let mut daemon = Daemon::spawn(binary, &[], config, namespace, |_| ())?;
        daemon.wait(|daemon| {
            let is_there = sockets.iter().all(|name| daemon.dir().join(name).exists());
            Ok((!is_there).then(|| "makes no sockets".into()))
        })?;
        Ok(daemon)
    }

    fn launch(
        binary: &Path,
        options: &[String],
        config: impl FnOnce(&Path) -> String,
        namespace: Option<&Namespace>,
        change: impl FnOnce(&mut Command),
    ) -> Result<Daemon, DaemonError> {
        let mut daemon = Daemon::spawn(binary, options, config, namespace, change)?;
        daemon.wait_until_it_answers()?;
        Ok(daemon)
    }

    /// Starts the program, and does not wait for anything.
    fn spawn(
        binary: &Path,
        options: &[String],
        config: impl FnOnce(&Path) -> String,
        namespace: Option<&Namespace>,
        change: impl FnOnce(&mut Command),
    ) -> Result<Daemon, DaemonError> {
        let failed = |what| move |source| DaemonError::Start { what, source };
        let dir = tempfile::Builder::new()
            .prefix("ringmain-")
            .tempdir()
            .map_err(failed("make a folder"))?;
        let text =
            format!("{}\n[control]\nsocket = \"{}\"\n", config(dir.path()), socket(&dir).display());
        let file = dir.path().join("ringmain.toml");
        std::fs::write(&file, text).map_err(failed("write a configuration"))?;

        // The file is opened for appending, because a process that takes over also writes there.
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).open(dir.path().join("log"));
        let log = log.map_err(failed("write a log"))?;
        let mut command = match namespace {
            Some(namespace) => namespace.command(binary),
            None => ChildProcess::command(binary),
        };
        command.arg("serve").args(options).arg("--config").arg(&file).stdin(Stdio::null());
        // The variable would make the daemon listen where the user's own daemon does.
        command.env_remove("RINGMAIN_CONTROL");
        command.stdout(log.try_clone().map_err(failed("write a log"))?).stderr(log);
        change(&mut command);
        let process = ChildProcess::start(&mut command).map_err(failed("start the daemon"))?;

        Ok(Daemon { process, command: Box::new(command), dir })
    }

    /// Kills it (SIGKILL), starts it again with the same configuration, and waits until it listens.
    ///
    /// # Errors
    /// When it cannot be started, or ends at once.
    pub fn kill_and_start(&mut self) -> Result<(), DaemonError> {
        let failed = |source| DaemonError::Start { what: "start the daemon again", source };
        self.process.child().kill().map_err(failed)?;
        self.process.child().wait().map_err(failed)?;
        self.process = ChildProcess::start(&mut self.command).map_err(failed)?;
        self.wait_until_it_answers()
    }

    /// Makes a new process take over, with the same program and configuration, and waits for the
    /// end of the old one. Returns how long no process served the rings, as reported by the new
    /// one.
    ///
    /// # Errors
    /// When the new process does not take over. The old one continues then.
    pub fn take_over(&mut self) -> Result<Duration, DaemonError> {
        let failed = |source| DaemonError::Start { what: "start the daemon anew", source };
        let log = self.dir.path().join("log");
        let (before, log) = (self.log().len(), File::options().append(true).open(log));
        let log = log.map_err(failed)?;
        let mut command = Command::new(self.command.get_program());
        command.args(self.command.get_args()).arg("--take-over").stdin(Stdio::null());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdout(log.try_clone().map_err(failed)?).stderr(log);
        let mut new = ChildProcess::start(&mut command).map_err(failed)?;
        let mut deadline = Deadline::new(TIMEOUT);
        let old = loop {
            if let Some(status) = self.process.ended() {
                break status;
            }
            if let Some(status) = new.ended() {
                return Err(self.died(&format!("goes on, and the new one ended with {status}")));
            }
            if deadline.is_over() {
                return Err(self.died("does not hand over"));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        self.process = new;
        if !old.success() {
            return Err(self.died(&format!("was taken over, and ended with {old}")));
        }
        self.wait_until_it_answers()?;
        while !deadline.is_over() {
            let log = self.log();
            let outage = log.get(before..).and_then(|new| new.split("outage_us=").nth(1));
            let outage = outage.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            if let Some(outage) = outage {
                return Ok(Duration::from_micros(outage));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(self.died("says nothing of a take-over"))
    }

    fn wait_until_it_answers(&mut self) -> Result<(), DaemonError> {
        self.wait(|daemon| match daemon.stats() {
            Err(DaemonError::Client(error)) => Ok(Some(format!("does not answer ({error})"))),
            answer => answer.map(|_| None),
        })
    }

    /// Waits until `look` finds nothing that the daemon lacks. An error of `look` ends the wait.
    fn wait(
        &mut self,
        mut look: impl FnMut(&Daemon) -> Result<Option<String>, DaemonError>,
    ) -> Result<(), DaemonError> {
        let mut deadline = Deadline::new(TIMEOUT);
        while let Some(lack) = look(self)? {
            if deadline.is_over() {
                return Err(self.died(&lack));
            }
            if let Some(status) = self.process.ended() {
                return Err(self.died(&format!("ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn died(&self, what: &str) -> DaemonError {
        DaemonError::Died { what: what.into(), log: self.log() }
    }

    /// The folder with its sockets.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A connection to its control socket.
    pub fn client(&self) -> Client {
        Client::new(socket(&self.dir))
    }

    /// Its counters.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn stats(&self) -> Result<Stats, DaemonError> {
        match self.client().ask(&Request::Stats)? {
            Reply::Stats(stats) => Ok(*stats),
            _ => Err(DaemonError::Answer),
        }
    }

    /// The profile of its time so far. The first call starts time stamps, which are taken until the
    /// daemon ends.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn profile(&self) -> Result<Profile, DaemonError> {
        match self.client().ask(&Request::Profile { seconds: LEASE })? {
            Reply::Profile(profile) => Ok(*profile),
            _ => Err(DaemonError::Answer),
        }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// The file of this program.
fn this_program() -> Result<PathBuf, DaemonError> {
    let failed = |source| DaemonError::Start { what: "find this program", source };
    std::env::current_exe().map_err(failed)
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("control.sock")
}
