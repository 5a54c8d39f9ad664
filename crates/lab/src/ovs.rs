//! OVS-DPDK as a peer, with its own database, its own sockets, and a network namespace for its TAP
//! devices, which would outlive the process otherwise.

mod pages;
mod tunnel;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guest::{ChildProcess, GuestError, Namespace, let_run};
use pages::HugePages;

const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Errors in the log that change nothing. DPDK's driver for TAPs needs a queueing discipline of the
/// kernel for rules of flows, which the switch does not use; and the driver tells secondary
/// processes, of which there are none.
const HARMLESS: [&str; 4] =
    ["tap_nl_dump_ext_ack", "multiq qdisc", "Disabling rte flow support", "tap_mp_req_on_rxtx"];

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

/// The bridges of a switch, between vhost-user ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One bridge with this many ports, which connect to sockets of the generator or of guests, and
    /// with a TAP of this name, if any.
    Bridge(usize, Option<&'static str>),
    /// Two hosts with a VXLAN tunnel between them. Each guest's port listens on a socket.
    Tunnel,
}

/// A running OVS-DPDK with one polling thread and vhost-user ports. Stopped on drop.
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

    /// Starts it with one bridge of this many ports for guests, and a TAP if it gets a name. The
    /// polling thread is on CPU `poll_cpu`, and the rest on `other_cpu`.
    ///
    /// # Errors
    /// When it is not installed, there are no huge pages, or it does not come up.
    pub fn start(
        (ports, tap): (usize, Option<&'static str>),
        poll_cpu: usize,
        other_cpu: usize,
    ) -> Result<Self, OvsError> {
        Self::start_with(Layout::Bridge(ports, tap), [poll_cpu, other_cpu])
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
            Layout::Bridge(_, tap) => self.bridge(tap, vsctl),
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
        let is_error = |line: &&str| {
            line.contains("|ERR|") && !HARMLESS.iter().any(|harmless| line.contains(harmless))
        };
        match log.lines().find(is_error) {
            Some(line) => Err(failed(line)),
            None => Ok(()),
        }
    }

    /// Makes one bridge with all ports.
    fn bridge(&self, tap: Option<&str>, vsctl: &Vsctl) -> Result<(), OvsError> {
        vsctl.add_bridge("rm-bench")?;
        for (number, path) in self.sockets().iter().enumerate() {
            let (name, server) = (
                format!("rm-bench-{number}"),
                format!("options:vhost-server-path={}", path.display()),
            );
            vsctl.add_port("rm-bench", &name, &["type=dpdkvhostuserclient", &server])?;
        }
        let Some(tap) = tap else { return Ok(()) };
        let driver = format!("options:dpdk-devargs=net_tap0,iface={tap}");
        // The driver wants as many queues in one direction as in the other; a switch with one
        // polling thread sends by two.
        let settings = ["type=dpdk", &driver, "options:n_rxq=2"];
        vsctl.add_port("rm-bench", "rm-bench-tap", &settings)?;
        Ok(self.namespace.ip(&format!("link set {tap} up"))?)
    }

    /// The network of its TAP.
    pub fn network(&self) -> &Namespace {
        &self.namespace
    }

    /// The sockets of all ports. A switch with one bridge connects to them, and one with a tunnel
    /// listens there.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let at = |name: String| self.dir.path().join(name);
        match self.layout {
            Layout::Bridge(ports, _) => {
                (0..ports).map(|number| at(format!("{number}.sock"))).collect()
            }
            Layout::Tunnel => tunnel::GUESTS.map(|name| at(name.into())).into(),
        }
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
        let_run(self.id(), on);
    }
}

/// DPDK for one polling thread. TSO is on where frames stay on the host: this version does not
/// carry long frames through tunnels.
fn settings(layout: Layout, [poll_cpu, other_cpu]: [usize; 2]) -> Vec<String> {
    let other = |(key, value): (&str, String)| format!("other_config:{key}={value}");
    [
        ("dpdk-init", "true".into()),
        ("dpdk-lcore-mask", format!("{:#x}", 1u128 << other_cpu)),
        ("pmd-cpu-mask", format!("{:#x}", 1u128 << poll_cpu)),
        ("dpdk-socket-mem", MEMORY.to_string()),
        ("userspace-tso-enable", matches!(layout, Layout::Bridge(..)).to_string()),
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
