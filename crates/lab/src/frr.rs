//! FRR of one host: zebra and bgpd, with their sockets in a folder of their own.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::guest::{ChildProcess, GuestError, Namespace};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tempfile::TempDir;

/// The programs of a version of FRR.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The folder of the daemons.
    daemons: PathBuf,
    vtysh: PathBuf,
}

impl Programs {
    /// The installed ones, of the Debian release.
    ///
    /// # Errors
    /// When FRR is not installed.
    pub fn installed() -> Result<Programs, GuestError> {
        Programs::found("/usr/lib/frr".into(), "vtysh".into(), "routing")
    }

    /// Those of Debian testing, which `scripts/frr` left in the folder `cache`. They announce hosts
    /// by IPv6 addresses, too.
    ///
    /// # Errors
    /// When they are not there.
    pub fn testing(cache: &Path) -> Result<Programs, GuestError> {
        let folder = cache.join("frr");
        let vtysh = folder.join("vtysh");
        Programs::found(folder, vtysh, "routing6")
    }

    fn found(daemons: PathBuf, vtysh: PathBuf, part: &'static str) -> Result<Programs, GuestError> {
        match daemons.join(Daemon::Bgpd.name()).exists() {
            true => Ok(Programs { daemons, vtysh }),
            false => {
                Err(GuestError::Missing { what: format!("FRR in {}", daemons.display()), part })
            }
        }
    }
}

/// The daemons of a host. They end when this value goes.
#[derive(Debug)]
pub struct Frr {
    programs: Programs,
    namespace: u32,
    dir: TempDir,
    zebra: Option<ChildProcess>,
    bgpd: Option<ChildProcess>,
}

/// One of the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// The one that talks to the kernel.
    Zebra,
    /// The one that talks to its like on other hosts.
    Bgpd,
}

impl Daemon {
    fn name(self) -> &'static str {
        match self {
            Daemon::Zebra => "zebra",
            Daemon::Bgpd => "bgpd",
        }
    }
}

/// A daemon that is stopped, until this value is dropped.
#[derive(Debug)]
pub struct Suspended(Pid);

impl Drop for Suspended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Frr {
    /// Starts FRR of all hosts of a fabric, each with its address.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn mesh(programs: &Programs, hosts: &[(&Namespace, &str)]) -> Result<Vec<Frr>, GuestError> {
        let addresses = hosts.iter().map(|(_, address)| *address);
        let start = |(number, (host, local)): (u8, &(&Namespace, &str))| {
            let peers: Vec<&str> = addresses.clone().filter(|peer| peer != local).collect();
            Frr::start(programs, host, number, &peers)
        };
        (1..).zip(hosts).map(start).collect()
    }

    /// Starts the daemons of a host with this number, with `peers` as other hosts of the fabric.
    /// All networks of VXLAN devices are announced.
    ///
    /// # Errors
    /// When FRR cannot be started. Needs root.
    fn start(
        programs: &Programs,
        host: &Namespace,
        number: u8,
        peers: &[&str],
    ) -> Result<Frr, GuestError> {
        let failed = |source| GuestError::Channel { what: "cannot make a folder for FRR", source };
        let dir = folder().map_err(failed)?;
        let mut bgp = format!(
            "router bgp 65000\n bgp router-id 10.9.0.{number}\n no bgp default ipv4-unicast\n \
             neighbor fab peer-group\n neighbor fab remote-as 65000\n \
             neighbor fab timers 10 60\n neighbor fab timers connect 1\n"
        );
        for peer in peers {
            bgp += &format!(" neighbor {peer} peer-group fab\n");
        }
        bgp += " address-family l2vpn evpn\n  neighbor fab activate\n  advertise-all-vni\n \
                exit-address-family\n";
        fs::write(dir.path().join("zebra.conf"), "").map_err(failed)?;
        fs::write(dir.path().join("bgpd.conf"), bgp).map_err(failed)?;
        let (programs, namespace) = (programs.clone(), host.id());
        let mut frr = Frr { programs, namespace, dir, zebra: None, bgpd: None };
        frr.begin(Daemon::Zebra)?;
        frr.begin(Daemon::Bgpd)?;
        Ok(frr)
    }

    fn slot(&mut self, daemon: Daemon) -> &mut Option<ChildProcess> {
        match daemon {
            Daemon::Zebra => &mut self.zebra,
            Daemon::Bgpd => &mut self.bgpd,
        }
    }

    /// Starts one of the daemons.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(&mut self, daemon: Daemon) -> Result<(), GuestError> {
        let [dir, file] = ["", daemon.name()].map(|name| self.path(name).display().to_string());
        let mut command = ChildProcess::command("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.namespace)).arg("--");
        command.arg(self.programs.daemons.join(daemon.name()));
        command.args(["--vty_socket", &dir, "-z", &format!("{dir}zserv.api"), "-A", "127.0.0.1"]);
        command.args(["-i", &format!("{file}.pid"), "-f", &format!("{file}.conf")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = ChildProcess::start(&mut command);
        let failed = |source| GuestError::Channel { what: "cannot start FRR", source };
        *self.slot(daemon) = Some(process.map_err(failed)?);
        Ok(())
    }

    /// Ends one of the daemons without a word (SIGKILL).
    pub fn kill(&mut self, daemon: Daemon) {
        *self.slot(daemon) = None;
        // The next one refuses to start beside a living one, and takes the file for that.
        let _ = fs::remove_file(self.path(daemon.name()).with_extension("pid"));
    }

    /// Stops one of the daemons (SIGSTOP) until the returned value is dropped. `None`: it does not
    /// run.
    pub fn suspend(&self, daemon: Daemon) -> Option<Suspended> {
        let process = match daemon {
            Daemon::Zebra => &self.zebra,
            Daemon::Bgpd => &self.bgpd,
        };
        let id = Pid::from_raw(i32::try_from(process.as_ref()?.id()).ok()?)?;
        kill_process(id, Signal::STOP).ok()?;
        Some(Suspended(id))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What FRR answers to a command; nothing while it does not answer.
    pub fn show(&self, command: &str) -> Json {
        let mut vtysh = Command::new(&self.programs.vtysh);
        vtysh.arg("--vty_socket").arg(self.dir.path()).args(["-c", &format!("{command} json")]);
        let said = vtysh.stderr(Stdio::null()).output().map(|done| done.stdout);
        serde_json::from_slice(&said.unwrap_or_default()).unwrap_or_default()
    }
}

/// A folder that the daemons, which are another user, may write to.
fn folder() -> io::Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("ringmain-frr-").tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    match Command::new("chown").arg("frr:frr").arg(dir.path()).status()?.success() {
        true => Ok(dir),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}
