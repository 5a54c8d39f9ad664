//! A command as a guest of a daemon: `ringmain guest` as a child, which goes when its value does,
//! and its command with it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::guest::{ChildProcess, Deadline, GuestError};
use crate::interrupt;

/// The specification of a guest.
#[derive(Clone, Debug)]
pub struct GuestProcessSpec<'a> {
    /// The `ringmain` command.
    pub binary: &'a Path,
    /// The daemon's folder: guests connect at `guests.sock` there, and what they print is kept
    /// there.
    pub dir: &'a Path,
    /// Its name.
    pub name: &'a str,
    /// Its address in a network of 24 bits.
    pub address: &'a str,
    /// Queues of its interface.
    pub queues: u16,
    /// Threads that drive them.
    pub vcpus: u16,
    /// Whether it asks for a device queue.
    pub device_queue: bool,
    /// Whether a queue has one event channel for both directions.
    pub single_channel: bool,
}

impl<'a> GuestProcessSpec<'a> {
    /// A guest with one queue and one thread, and without any extras.
    pub fn new(binary: &'a Path, dir: &'a Path, name: &'a str, address: &'a str) -> Self {
        let (queues, vcpus, device_queue, single_channel) = (1, 1, false, false);
        GuestProcessSpec { binary, dir, name, address, queues, vcpus, device_queue, single_channel }
    }
}

/// A guest that runs a command.
#[derive(Debug)]
pub struct GuestProcess {
    process: ChildProcess,
    said: PathBuf,
    name: String,
}

impl GuestProcess {
    /// Starts a guest that runs this.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        spec: &GuestProcessSpec<'_>,
        command: &[&str],
    ) -> Result<GuestProcess, GuestError> {
        let failed = |what| move |source| GuestError::Channel { what, source };
        let said = spec.dir.join(format!("{}.said", spec.name));
        let out = File::create(&said).map_err(failed("cannot keep what a guest says"))?;
        let mut guest = ChildProcess::command(spec.binary);
        guest.args([
            "guest",
            "--name",
            spec.name,
            "--address",
            &format!("{}/24", spec.address),
            "--socket",
        ]);
        guest.arg(spec.dir.join("guests.sock")).args([
            "--queues",
            &spec.queues.to_string(),
            "--vcpus",
            &spec.vcpus.to_string(),
        ]);
        guest.args(spec.device_queue.then_some("--device-queue"));
        guest.args(spec.single_channel.then_some("--single-channel"));
        guest.arg("--").args(command).stdin(Stdio::null());
        guest.stderr(out.try_clone().map_err(failed("cannot keep what a guest says"))?).stdout(out);
        let process = ChildProcess::start(&mut guest).map_err(failed("cannot start a guest"))?;
        Ok(GuestProcess { process, said, name: spec.name.to_owned() })
    }

    /// Its process, which is in its network namespace.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The output so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Its process and those that it started.
    pub fn ids(&self) -> Vec<u32> {
        let mut all = vec![self.process.id()];
        let mut at = 0;
        while let Some(id) = all.get(at).copied() {
            all.extend(children(id));
            at += 1;
        }
        all
    }

    /// Waits until the command has printed `text`.
    ///
    /// # Errors
    /// When that takes longer than `limit`, or it ends before.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<(), GuestError> {
        self.wait(limit, |guest| guest.said().contains(text), text)
    }

    /// Waits until the command has ended; what it said.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub fn end(mut self, limit: Duration) -> Result<String, GuestError> {
        self.wait(limit, |guest| guest.process.ended().is_some(), "end")?;
        Ok(self.said())
    }

    fn wait(
        &mut self,
        limit: Duration,
        done: impl Fn(&mut Self) -> bool,
        what: &str,
    ) -> Result<(), GuestError> {
        let mut deadline = Deadline::new(limit);
        loop {
            // The order matters: a process that has ended prints nothing more.
            let code = self.process.ended().map(|status| status.code().unwrap_or(-1));
            if done(self) {
                return Ok(());
            }
            if interrupt::asked() {
                return Err(GuestError::Interrupted);
            }
            if code.is_some() || deadline.is_over() {
                let (name, command) = (self.name.clone(), format!("wait for {what:?}"));
                return Err(GuestError::Failed {
                    name,
                    command,
                    code: code.unwrap_or(-1),
                    text: self.said(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn children(id: u32) -> Vec<u32> {
    let read = || -> io::Result<Vec<u32>> {
        let mut all = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
            let text = std::fs::read_to_string(task?.path().join("children"))?;
            all.extend(text.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
        Ok(all)
    };
    // One that has just ended has none.
    read().unwrap_or_default()
}
