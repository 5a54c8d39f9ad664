//! Somewhere that programs run which send and receive.

use std::fs::File;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::guest::{Deadline, GuestError, Job, Kept, Namespace, Output, Shell};
use crate::interrupt;

/// Longest answer to a question that is asked in passing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A place in a network: a namespace, or a guest of whatever kind.
pub trait Station {
    /// Starts a command there, by the shell.
    ///
    /// # Errors
    /// When it cannot be started.
    fn launch(&self, command: &str) -> Result<Task, GuestError>;

    /// Whether somebody listens there for TCP connections to a port.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn listens(&self, port: u16) -> Result<bool, GuestError>;
}

/// Something that was started at a station.
#[derive(Debug)]
pub enum Task {
    /// A process of this machine, and the file with what it says.
    Process {
        /// It goes when the task does.
        process: Kept,
        /// What it says.
        said: NamedTempFile,
    },
    /// A command in a guest.
    Job(Job),
}

impl Task {
    /// The process, if it is one of this machine's.
    pub fn id(&self) -> Option<u32> {
        match self {
            Task::Process { process, .. } => Some(process.id()),
            Task::Job(_) => None,
        }
    }

    /// Waits for its end; what it said.
    ///
    /// # Errors
    /// When it does not end in time, or badly.
    pub fn wait(self, limit: Duration) -> Result<String, GuestError> {
        let (code, text) = match self {
            Task::Process { process, said } => ended(process, said, limit)?,
            Task::Job(job) => {
                let Output { code, text } = job.wait(limit)?;
                (code, text)
            }
        };
        if code == 0 {
            Ok(text)
        } else {
            Err(GuestError::Tool { tool: "a command at a station".into(), stderr: text })
        }
    }
}

fn ended(
    mut process: Kept,
    said: NamedTempFile,
    limit: Duration,
) -> Result<(i32, String), GuestError> {
    let mut deadline = Deadline::new(limit);
    let read = || std::fs::read_to_string(said.path()).unwrap_or_default();
    loop {
        if let Some(status) = process.ended() {
            return Ok((status.code().unwrap_or(-1), read()));
        }
        if interrupt::asked() {
            return Err(GuestError::Interrupted);
        }
        if deadline.is_over() {
            let (name, what) = ("a station".into(), "a command".into());
            return Err(GuestError::Late { name, what, limit, console: read() });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a command in the network namespace of a process.
pub(super) fn launch_in(id: u32, command: &str) -> Result<Task, GuestError> {
    let failed = |what| move |source: io::Error| GuestError::Channel { what, source };
    let said = NamedTempFile::new().map_err(failed("cannot keep what a command says"))?;
    let out: File = said.reopen().map_err(failed("cannot keep what a command says"))?;
    let mut line = Kept::command("nsenter");
    line.arg(format!("--net=/proc/{id}/ns/net"))
        .args(["--", "sh", "-c"])
        .arg(format!("exec {command}"));
    line.stdin(Stdio::null())
        .stderr(out.try_clone().map_err(failed("cannot keep what a command says"))?)
        .stdout(out);
    let process = Kept::start(&mut line).map_err(failed("cannot start nsenter"))?;
    Ok(Task::Process { process, said })
}

/// Whether somebody listens in the network namespace of a process.
pub(super) fn listens_in(id: u32, port: u16) -> bool {
    let table =
        |name: &str| std::fs::read_to_string(format!("/proc/{id}/net/{name}")).unwrap_or_default();
    ["tcp", "tcp6"].into_iter().any(|name| is_in(&table(name), port))
}

/// Reads /proc/net/tcp: "sl local_address rem_address st ...", numbers in hexadecimal; state 0A is
/// listening.
fn is_in(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
    })
}

impl Station for Namespace {
    fn launch(&self, command: &str) -> Result<Task, GuestError> {
        launch_in(self.id(), command)
    }

    fn listens(&self, port: u16) -> Result<bool, GuestError> {
        Ok(listens_in(self.id(), port))
    }
}

impl<S: Shell + ?Sized> Station for &S {
    fn launch(&self, command: &str) -> Result<Task, GuestError> {
        Ok(Task::Job(self.spawn(&format!("{command} 2>&1"))?))
    }

    fn listens(&self, port: u16) -> Result<bool, GuestError> {
        Ok(self.run(&format!("netstat -ltn | grep -q ':{port} '"), PATIENCE)?.code == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_seen() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 00000000:1389 00000000:0000 0A 00000000\n   1: 0100007F:138A 0100007F:1389 01 00000000\n";
        assert!(is_in(table, 0x1389));
        assert!(!is_in(table, 0x138a) && !is_in(table, 80) && !is_in("", 80));
    }

    #[test]
    fn what_a_command_says_and_how_it_ends() {
        let own = std::process::id();
        let Ok(task) = launch_in(own, "echo hello") else { return };
        // Entering a namespace takes root, even one's own.
        match task.wait(PATIENCE) {
            Ok(said) => assert_eq!(said, "hello\n"),
            Err(error) => assert!(error.to_string().contains("nsenter"), "{error}"),
        }
        assert!(launch_in(own, "false").unwrap().wait(PATIENCE).is_err());
    }
}
