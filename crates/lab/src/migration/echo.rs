//! A TCP stream to the guest and back, whose ends are compared.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::LIMIT;
use super::hosts::{GUEST, HostsError};
use crate::guest::{ChildProcess, Deadline, Guest, GuestError, Namespace, Shell};

/// Noise from the host to the guest's echo, and the sums of both directions.
#[derive(Debug)]
pub struct Echo {
    client: ChildProcess,
    dir: tempfile::TempDir,
}

impl Echo {
    /// Starts the guest's echo, and sends it noise without end: a megabyte, then a pause of this
    /// many seconds, and so on.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(network: &Namespace, guest: &Guest, pause: f64) -> Result<Echo, HostsError> {
        let failed = |source| GuestError::Channel { what: "cannot start a stream", source };
        guest.spawn("nc -ll -p 5000 -e cat")?;
        guest.must("until netstat -ltn | grep -q ':5000 '; do usleep 50000; done", LIMIT)?;
        let dir = tempfile::tempdir().map_err(failed)?;
        let pause = if pause > 0.0 { format!("; sleep {pause}") } else { String::new() };
        let script = format!(
            "cd {dir} && head -c 1m /dev/urandom >noise && mkfifo sent && md5sum <sent >forth &
            cd {dir} && until [ -p sent ]; do sleep 0.01; done
            until [ -e stop ]; do cat noise{pause}; done | tee sent | busybox nc {GUEST} 5000 | md5sum >back
            wait",
            dir = dir.path().display(),
        );
        let mut command = network.command("sh");
        command.args(["-c", &script]).stdin(Stdio::null());
        Ok(Echo { client: ChildProcess::start(&mut command).map_err(failed)?, dir })
    }

    /// Ends the noise, waits for the rest of it, and says whether what came back is what was sent.
    ///
    /// # Errors
    /// When the stream does not end.
    pub fn finish(mut self, limit: Duration) -> Result<bool, HostsError> {
        let failed = |source: io::Error| GuestError::Channel { what: "the stream broke", source };
        std::fs::write(self.dir.path().join("stop"), "").map_err(failed)?;
        let mut deadline = Deadline::new(limit);
        while self.client.ended().is_none() {
            if deadline.is_over() {
                return Err(failed(io::ErrorKind::TimedOut.into()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let sum = |name: &str| std::fs::read_to_string(self.dir.path().join(name)).map_err(failed);
        let (forth, back) = (sum("forth")?, sum("back")?);
        Ok(!forth.is_empty() && forth == back)
    }
}

impl Drop for Echo {
    /// Ends all parts of the pipe: the shell alone would leave the others behind.
    fn drop(&mut self) {
        let group = i32::try_from(self.client.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // An error means that they have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
