//! Child processes that do not outlive this one.

use super::Deadline;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// A child that is killed when this value is dropped, and by the kernel when the thread that
/// started it ends in any other way.
///
/// The kernel's rule is about the thread, not the process: start children from a thread that stays.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
}

impl ChildProcess {
    /// A command line that [`ChildProcess::start`] can start: `program`, asking the kernel to kill
    /// it when its parent dies.
    pub fn command(program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Starts a command made by [`ChildProcess::command`], in a process group of its own: Ctrl-C on
    /// a terminal is for us, and we end our children in order.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn start(command: &mut Command) -> io::Result<ChildProcess> {
        Ok(ChildProcess { child: command.process_group(0).spawn()? })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, to take its pipes from.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to end (SIGTERM), waits for up to `limit`, and kills it if it is still there.
    /// Returns how it ended.
    ///
    /// # Errors
    /// As waiting for a child.
    pub fn stop(mut self, limit: Duration) -> io::Result<ExitStatus> {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let mut deadline = Deadline::new(limit);
        while !deadline.is_over() {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Errors mean that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    #[test]
    fn a_child_ends_when_its_value_is_dropped() {
        let kept = ChildProcess::start(ChildProcess::command("sleep").arg("1000")).unwrap();
        let proc = std::path::PathBuf::from(format!("/proc/{}", kept.id()));
        assert!(proc.exists());
        drop(kept);
        assert!(!proc.exists());
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = ChildProcess::command("sh");
            let mut kept = ChildProcess::start(
                command.args(["-c", "echo; exec sleep 1000"]).stdout(Stdio::piped()),
            )
            .unwrap();
            // The output shows that the process has asked for the signal.
            kept.child().stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            kept
        };
        let mut kept = std::thread::spawn(start).join().unwrap();
        assert_eq!(kept.child().wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_child_that_is_asked_to_end_ends() {
        let kept = ChildProcess::start(ChildProcess::command("sleep").arg("1000")).unwrap();
        assert!(!kept.stop(Duration::from_secs(60)).unwrap().success());
    }
}
