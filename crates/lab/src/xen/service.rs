//! The daemon in dom0, with its hotplug script.

use super::dom0::{Dom0, TIMEOUT};
use crate::guest::{GuestError, Job, Shell};
use control::api::{PortReport, Stats};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The project's hotplug scripts, which the toolstack looks for in a folder of its own.
const SCRIPTS: [(&str, &str); 2] = [
    ("vif-ringmain", include_str!("../../../../xen/vif-ringmain")),
    ("block-ringmain", include_str!("../../../../xen/block-ringmain")),
];
/// The path of the daemon's configuration in dom0.
pub const CONFIGURATION: &str = "/tmp/ringmain.toml";
/// The path of the daemon's log in dom0. A later daemon appends to it.
pub const LOG: &str = "/tmp/ringmain.log";

impl Dom0 {
    /// Puts the `ringmain` command and its hotplug scripts in place, and loads the modules.
    ///
    /// # Errors
    /// When the command does not run in dom0: it may be linked to a C library newer than dom0's.
    pub fn install(&self, binary: &Path) -> Result<(), GuestError> {
        for (name, script) in SCRIPTS {
            self.write(&format!("/etc/xen/scripts/{name}"), script)?;
        }
        self.must("chmod 755 /etc/xen/scripts/*-ringmain", TIMEOUT)?;
        self.install_program(binary, "ringmain")
    }

    /// Puts a program of this project in place, as the command `name`.
    ///
    /// # Errors
    /// When it does not run in dom0: it may be linked to a C library newer than dom0's.
    pub fn install_program(&self, binary: &Path, name: &str) -> Result<(), GuestError> {
        let to = format!("/usr/local/bin/{name}");
        self.copy(binary, &to)?;
        let check = format!("chmod 755 {to} && {name} --version");
        let said = self.run(&check, TIMEOUT)?;
        if said.text.contains("GLIBC") {
            return Err(GuestError::Tool {
                tool: format!("{name} in dom0"),
                stderr: format!(
                    "dom0 is a Debian 12, and this command was built on something newer: {}",
                    said.text
                ),
            });
        }
        said.succeeded("dom0", &check).map(drop)
    }

    /// Starts the daemon with this configuration, and waits until it listens.
    ///
    /// # Errors
    /// When it ends at once, or does not answer.
    pub fn serve(&self, config: &str) -> Result<Service, GuestError> {
        self.write(CONFIGURATION, config)?;
        self.go_on()
    }

    /// Starts the daemon with the configuration that it had, and waits until it listens.
    ///
    /// # Errors
    /// When it ends at once, or does not answer.
    pub fn go_on(&self) -> Result<Service, GuestError> {
        // Each start has a file of its own, so that none need be removed before.
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let pid = format!("/run/ringmain.{}.pid", STARTS.fetch_add(1, Ordering::Relaxed));
        let command = format!(
            "echo $$ >{pid}; exec ringmain serve --config {CONFIGURATION} --log info >>{LOG} 2>&1"
        );
        let job = Some(self.spawn(&command)?);
        let service = Service { dom0: self.clone(), job, pid: pid.clone() };
        let listens = format!(
            "until ringmain port list >/dev/null 2>&1; do\n\
             if [ -s {pid} ] && read -r id <{pid} && ! [ -d /proc/$id ]; then tail -n 5 {LOG}; exit 1; fi\n\
             usleep 50000; done"
        );
        self.must(&listens, TIMEOUT)?;
        Ok(service)
    }
}

/// The daemon, running in dom0. It is killed when this value goes, in the manner of `kill -9`:
/// guests stay connected.
#[derive(Debug)]
pub struct Service {
    dom0: Dom0,
    job: Option<Job>,
    /// The file in dom0 with the number of its process.
    pid: String,
}

impl Service {
    /// Kills it at once.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn kill(mut self) -> Result<(), GuestError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), GuestError> {
        self.job.take().map_or(Ok(()), |job| job.stop(TIMEOUT).map(drop))
    }

    /// How long dom0 has been up, and what dom0's kernel tells of the daemon's process: the files
    /// `uptime` and `PID/stat` of `/proc`.
    ///
    /// # Errors
    /// When dom0 does not answer, or the daemon has ended.
    pub fn process_stat(&self) -> Result<String, GuestError> {
        self.dom0.must(&format!("cat /proc/uptime /proc/$(cat {})/stat", self.pid), TIMEOUT)
    }

    /// The CPU time that it has used, and how long dom0 has been up.
    ///
    /// # Errors
    /// When dom0 does not answer, or the daemon has ended.
    pub fn used(&self) -> Result<[Duration; 2], GuestError> {
        let said = self.process_stat()?;
        parse_used(&said).ok_or(GuestError::Tool { tool: "cat in dom0".into(), stderr: said })
    }

    /// Its counters.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn stats(&self) -> Result<Stats, GuestError> {
        self.ask("ringmain stats --json")
    }

    /// All its ports.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ports(&self) -> Result<Vec<PortReport>, GuestError> {
        /// The output of the command.
        #[derive(Deserialize)]
        struct List {
            ports: Vec<PortReport>,
        }
        self.ask("ringmain port list --json").map(|List { ports }| ports)
    }

    /// The log so far, that of the daemons before it included.
    ///
    /// # Errors
    /// When dom0 does not answer.
    pub fn log(&self) -> Result<String, GuestError> {
        self.dom0.must(&format!("cat {LOG}"), TIMEOUT)
    }

    fn ask<T: DeserializeOwned>(&self, command: &str) -> Result<T, GuestError> {
        let text = self.dom0.must(command, TIMEOUT)?;
        serde_json::from_str(&text).map_err(|error| GuestError::Failed {
            name: "dom0".into(),
            command: command.into(),
            code: 0,
            text: format!("{error}: {text}"),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // An error means that dom0 is gone, and the daemon with it.
        let _ = self.end();
    }
}

/// Reads /proc/uptime ("SECONDS IDLE") and a process's stat behind it, whose 14th and 15th fields
/// are the time that it ran and the kernel ran for it, in hundredths of a second.
fn parse_used(text: &str) -> Option<[Duration; 2]> {
    let (uptime, stat) = text.split_once('\n')?;
    let at = Duration::try_from_secs_f64(uptime.split(' ').next()?.parse().ok()?).ok()?;
    // Behind the name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some([Duration::from_millis((ticks(14)? + ticks(15)?) * 10), at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_time_is_read_from_its_stat() {
        let said = "12.50 20.00\n219 (a) b) S 1 219 219 0 -1 4194560 900 0 0 0 150 250 0 0 20 0 4 0 800 1 2\n";
        let used = parse_used(said).unwrap();
        assert_eq!(used, [Duration::from_secs(4), Duration::from_millis(12_500)]);
        assert!(parse_used("12.50 20.00\n").is_none());
    }
}
