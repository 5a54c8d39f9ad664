//! The process of a bare back-end: a hidden command of this program.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::guest::{ChildProcess, Deadline};

/// How long the start may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The running process, which ends when this value is dropped.
pub(crate) struct BareProcess {
    // The order of drops matters: the process ends before its folder is removed.
    process: ChildProcess,
    dir: TempDir,
}

impl BareProcess {
    /// Makes a folder for sockets.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(crate) fn folder() -> io::Result<TempDir> {
        tempfile::Builder::new().prefix("ringmain-bare-").tempdir()
    }

    /// Starts a command of this program, and waits until the sockets that it listens on are in
    /// `dir`.
    ///
    /// # Errors
    /// When the process cannot be started, or makes no sockets.
    pub(crate) fn start<S: AsRef<OsStr>>(
        dir: TempDir,
        arguments: impl IntoIterator<Item = S>,
        sockets: &[PathBuf],
    ) -> io::Result<Self> {
        let mut command = ChildProcess::command(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::null());
        let mut bare = Self { process: ChildProcess::start(&mut command)?, dir };
        let mut deadline = Deadline::new(TIMEOUT);
        while !sockets.iter().all(|path| path.exists()) {
            if let Some(status) = bare.process.ended() {
                return Err(io::Error::other(format!("the process ended with {status}")));
            }
            if deadline.is_over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(bare)
    }

    /// The folder of the sockets.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}
