//! OVS-DPDK as a peer, with its own database, its own sockets, and a network namespace for its TAP
//! devices, which would outlive the process otherwise.

mod pages;
mod tunnel;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::guest::{ChildProcess, GuestError, Namespace};
use pages::HugePages;

const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Megabytes of huge pages for DPDK.
const MEMORY: u64 = 1024;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why OVS-DPDK does not run.
#[derive(Debug, thiserror::Error)]
pub enum OvsError {
    /// The tool is missing.
    #[error("OVS-DPDK is not installed: run scripts/deps peers, or compare without it")]
    Missing,
    /// A program could not be started, or a file not created.
    #[error("cannot {what}: {source}")]
    Start {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// One of its tools failed.
    #[error("{tool}: {said}")]
    Tool {
        /// The command.
        tool: String,
        /// The output of the tool.
        said: String,
    },
    /// The network namespace could not be made.
    #[error(transparent)]
    Namespace(#[from] GuestError),
}

impl OvsError {
    /// Whether the user interrupted OVS-DPDK.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, OvsError::Namespace(GuestError::Interrupted))
    }
}

/// The bridges of a switch, between two vhost-user ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One bridge. Its ports connect to sockets of the generator or of guests.
    Bridge,
    /// Two hosts with a VXLAN tunnel between them. Each guest's port listens on a socket.
    Tunnel,
}

/// A running OVS-DPDK with one polling thread and two vhost-user ports. Stopped on drop.
#[derive(Debug)]
pub struct Ovs {
    // Dropped in this order: first the switch, then the parts that it uses.
    switch: ChildProcess,
    _database: ChildProcess,
    namespace: Namespace,
    layout: Layout,
    dir: TempDir,
    version: String,
    _pages: HugePages,
}

impl Ovs {
    /// Whether OVS-DPDK is installed.
    pub fn installed() -> bool {
        Path::new(SWITCH).exists()
    }

    /// The version that the tool prints, if the tool is there.
    pub fn said() -> Option<String> {
        crate::tool::version(SWITCH, "--version")
    }

    /// Starts it with one bridge, its polling thread on CPU `poll_cpu`, and the rest on `other_cpu`.
    ///
    /// # Errors
    /// When it is not installed, there are no huge pages, or it does not come up.
    pub fn start(poll_cpu: usize, other_cpu: usize) -> Result<Self, OvsError> {
        Self::start_with(Layout::Bridge, [poll_cpu, other_cpu])
    }

    /// Starts it as two hosts with a VXLAN tunnel between them, on the same CPUs.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_tunnel(poll_cpu: usize, other_cpu: usize) -> Result<Self, OvsError> {
        Self::start_with(Layout::Tunnel, [poll_cpu, other_cpu])
    }

    fn start_with(layout: Layout, cpus: [usize; 2]) -> Result<Self, OvsError> {
        if !Self::installed() {
            return Err(OvsError::Missing);
        }
        let failed = |what| move |source| OvsError::Start { what, source };
        let pages = HugePages::reserve(MEMORY / 2).map_err(failed("reserve huge pages"))?;
        let dir = tempfile::Builder::new()
            .prefix("ringmain-ovs-")
            .tempdir()
            .map_err(failed("make a folder"))?;
        let at = |name: &str| dir.path().join(name);
        run(Command::new("ovsdb-tool").arg("create").arg(at("conf.db")).arg(SCHEMA))?;
        let log = || File::create(at("log")).map(Stdio::from);
        let mut command = ChildProcess::command("ovsdb-server");
        command.arg(at("conf.db")).arg(prefixed("--remote=punix:", &at("db.sock")));
        command
            .arg(prefixed("--unixctl=", &at("db.ctl")))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(log().map_err(failed("write a log"))?);
        let database = ChildProcess::start(&mut command).map_err(failed("start ovsdb-server"))?;
        wait_for(&at("db.sock"))?;

        let vsctl = Vsctl { database: at("db.sock") };
        vsctl.run(&["--no-wait", "init"])?;
        let set = ["--no-wait", "set", "Open_vSwitch", "."].map(String::from);
        vsctl.run(&[&set[..], &settings(layout, cpus)].concat())?;

        let namespace = Namespace::new()?;
        let mut command = namespace.command(SWITCH);
        command.arg(prefixed("unix:", &at("db.sock"))).arg(prefixed("--unixctl=", &at("ctl")));
        command.args(["--no-chdir", "-vconsole:warn"]).env("OVS_RUNDIR", dir.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log().map_err(failed("write a log"))?);
        let switch = ChildProcess::start(&mut command).map_err(failed("start ovs-vswitchd"))?;
        let mut ovs = Self {
            switch,
            _database: database,
            namespace,
            layout,
            dir,
            version: String::new(),
            _pages: pages,
        };
        ovs.configure(&vsctl)?;
        Ok(ovs)
    }

    fn configure(&mut self, vsctl: &Vsctl) -> Result<(), OvsError> {
        let made = match self.layout {
            Layout::Bridge => self.bridge(vsctl),
            Layout::Tunnel => {
                let appctl = Appctl { control: self.dir.path().join("ctl") };
                tunnel::configure(vsctl, &appctl, &self.namespace)
            }
        };
        let outcome = made.and_then(|()| vsctl.run(&["get", "Open_vSwitch", ".", "ovs_version"]));
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let failed = |said: &str| OvsError::Tool { tool: "ovs-vswitchd".into(), said: said.into() };
        self.version = match outcome {
            Ok(version) => version.trim().trim_matches('"').into(),
            // The log of the switch says more than the tool that waited for it.
            Err(_) if !log.is_empty() => return Err(failed(&log)),
            Err(error) => return Err(error),
        };
        // The tools list a port even if the switch could not create it.
        match log.lines().find(|line| line.contains("|ERR|")) {
            Some(line) => Err(failed(line)),
            None => Ok(()),
        }
    }

    /// Makes one bridge with both ports.
    fn bridge(&self, vsctl: &Vsctl) -> Result<(), OvsError> {
        vsctl.add_bridge("rm-bench")?;
        for (name, path) in ["rm-bench-a", "rm-bench-b"].iter().zip(self.sockets()) {
            let server = format!("options:vhost-server-path={}", path.display());
            vsctl.add_port("rm-bench", name, &["type=dpdkvhostuserclient", &server])?;
        }
        Ok(())
    }

    /// The sockets of both ports. A switch with one bridge connects to them, and one with a tunnel
    /// listens there.
    pub fn sockets(&self) -> [PathBuf; 2] {
        let names = match self.layout {
            Layout::Bridge => ["a.sock", "b.sock"],
            Layout::Tunnel => tunnel::GUESTS,
        };
        names.map(|name| self.dir.path().join(name))
    }

    /// Process id of the switch.
    pub fn id(&self) -> u32 {
        self.switch.id()
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Resumes or stops the process: its polling thread uses a whole CPU even when idle.
    pub fn let_run(&self, on: bool) {
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            // The only possible error is that the process has ended, which the next run will show.
            let _ = kill_process(pid, if on { Signal::CONT } else { Signal::STOP });
        }
    }
}

/// DPDK for one polling thread. TSO is on where frames stay on the host: this version does not carry
/// long frames through tunnels.
fn settings(layout: Layout, [poll_cpu, other_cpu]: [usize; 2]) -> Vec<String> {
    let other = |(key, value): (&str, String)| format!("other_config:{key}={value}");
    [
        ("dpdk-init", "true".into()),
        ("dpdk-lcore-mask", format!("{:#x}", 1u128 << other_cpu)),
        ("pmd-cpu-mask", format!("{:#x}", 1u128 << poll_cpu)),
        ("dpdk-socket-mem", MEMORY.to_string()),
        ("userspace-tso-enable", (layout == Layout::Bridge).to_string()),
        ("dpdk-extra", "\"--in-memory --no-pci --no-telemetry\"".into()),
    ]
    .map(other)
    .into()
}

/// `ovs-vsctl` on our database.
struct Vsctl {
    database: PathBuf,
}

impl Vsctl {
    fn run<S: AsRef<str>>(&self, words: &[S]) -> Result<String, OvsError> {
        let mut command = Command::new("ovs-vsctl");
        command
            .arg(prefixed("--db=unix:", &self.database))
            .arg(format!("--timeout={}", TIMEOUT.as_secs()));
        run(command.args(words.iter().map(AsRef::as_ref)))
    }

    fn add_bridge(&self, bridge: &str) -> Result<(), OvsError> {
        let words = ["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"];
        self.run(&words).map(drop)
    }

    /// Adds a port whose interface has these settings.
    fn add_port(&self, bridge: &str, port: &str, settings: &[&str]) -> Result<(), OvsError> {
        let words = ["add-port", bridge, port, "--", "set", "Interface", port];
        self.run(&[&words[..], settings].concat()).map(drop)
    }
}

/// `ovs-appctl` on our switch.
struct Appctl {
    control: PathBuf,
}

impl Appctl {
    fn run(&self, words: &[&str]) -> Result<(), OvsError> {
        let mut command = Command::new("ovs-appctl");
        run(command.arg("--target").arg(&self.control).args(words)).map(drop)
    }
}

fn prefixed(prefix: &str, path: &Path) -> String {
    format!("{prefix}{}", path.display())
}

fn run(command: &mut Command) -> Result<String, OvsError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| OvsError::Start { what: "run an OVS tool", source })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into()),
        false => Err(OvsError::Tool {
            tool,
            said: String::from_utf8_lossy(&output.stderr).trim().into(),
        }),
    }
}

fn wait_for(path: &Path) -> Result<(), OvsError> {
    let until = Instant::now() + TIMEOUT;
    while !path.exists() {
        if Instant::now() > until {
            let source = io::ErrorKind::TimedOut.into();
            return Err(OvsError::Start { what: "reach ovsdb-server", source });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
