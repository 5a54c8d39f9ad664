//! Child processes that do not outlive this one.

use super::Deadline;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A child that is killed when this value is dropped, with all processes of its group, and by the
/// kernel, alone, when the thread that started it ends in any other way.
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
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::TERM);
        }
        let mut deadline = Deadline::new(limit);
        while !deadline.is_over() {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill()
    }

    /// Kills the processes of the group, unless the child has ended. A shell's pipeline would
    /// otherwise outlive the shell, and hold what it writes to.
    fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        if let Some(group) = self.pid() {
            kill_process_group(group, Signal::KILL)?;
        }
        self.child.wait()
    }

    fn pid(&self) -> Option<Pid> {
        pid(self.id())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // An error means that there is no such child.
        let _ = self.kill();
    }
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Resumes or stops a process by a signal.
pub fn let_run(id: u32, on: bool) {
    if let Some(pid) = pid(id) {
        // The only possible error is that the process has ended, which the next use of it shows.
        let _ = kill_process(pid, if on { Signal::CONT } else { Signal::STOP });
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
    fn what_a_shell_started_ends_with_the_shell() {
        let mut command = ChildProcess::command("sh");
        let mut kept = ChildProcess::start(
            command
                .args(["-c", "sleep 10 | { echo; sleep 10; echo late; }"])
                .stdout(Stdio::piped()),
        )
        .unwrap();
        let mut said = kept.child().stdout.take().unwrap();
        said.read_exact(&mut [0]).unwrap();
        drop(kept);
        // The end of the output, which the last process of the pipeline holds.
        assert_eq!(said.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_child_that_is_asked_to_end_ends() {
        let kept = ChildProcess::start(ChildProcess::command("sleep").arg("1000")).unwrap();
        assert!(!kept.stop(Duration::from_secs(60)).unwrap().success());
    }
}
