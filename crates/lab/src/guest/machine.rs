//! A running guest: QEMU's command line, start and end, and the operations on it.

use super::agent::Agent;
use super::device::{DiskLink, Nic, quoted};
use super::emulator::Emulator;
use super::pace::Pace;
use super::qmp::Qmp;
use super::wait_limit::Clock;
use super::{Accel, ChildProcess, Firmware, GuestError, Image, Job, Namespace, Shell};
use parking_lot::Mutex;
use serde_json::json;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The specification of a guest.
#[derive(Clone, Debug)]
pub struct Spec<'a> {
    /// A short name, for messages.
    pub name: String,
    /// Virtual CPUs.
    pub cpus: u16,
    /// Memory in MiB.
    pub memory: u32,
    /// Network interfaces: eth0, eth1, ... in the guest.
    pub nics: Vec<Nic>,
    /// Disks: vda, vdb, ... in the guest.
    pub disks: Vec<DiskLink>,
    /// The network namespace that QEMU runs in, where TAP devices are looked for.
    pub namespace: Option<&'a Namespace>,
    /// The boot loader on the guest's first disk; `None`: QEMU loads the kernel.
    pub firmware: Option<Firmware>,
    /// The guest does not boot: QEMU listens at this socket for one that migrates here.
    pub incoming: Option<PathBuf>,
    /// The guest that has migrated here does not run on.
    pub stopped: bool,
    /// The QEMU that runs the guest.
    pub emulator: Emulator,
}

impl Spec<'_> {
    /// A guest with one CPU, 256 MiB and no interface, in the QEMU that is installed.
    pub fn new(name: &str) -> Self {
        let (nics, disks) = (Vec::new(), Vec::new());
        Spec {
            name: name.into(),
            cpus: 1,
            memory: 256,
            nics,
            disks,
            namespace: None,
            firmware: None,
            incoming: None,
            stopped: false,
            emulator: Emulator::installed(),
        }
    }
}

/// A running guest, killed when this value is dropped.
#[derive(Debug)]
pub struct Guest {
    name: String,
    agent: Arc<Agent>,
    qmp: Mutex<Qmp>,
    process: Mutex<ChildProcess>,
    /// How the guest migrates to another QEMU.
    pub(super) pace: Pace,
}

impl Guest {
    /// Starts to boot a guest; [`Guest::ready`] waits for the end of that. The guest lives no
    /// longer than the thread that calls this.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub fn start(image: &Image, accel: Accel, spec: &Spec<'_>) -> Result<Guest, GuestError> {
        let failed = |source| GuestError::Channel { what: "cannot start QEMU", source };
        let mut command = match spec.namespace {
            Some(namespace) => namespace.command(spec.emulator.program()),
            None => ChildProcess::command(spec.emulator.program()),
        };
        command.args(arguments(image, accel, spec));
        let channels = Channels::connect(&mut command).map_err(failed)?;
        let process = ChildProcess::start(&mut command).map_err(failed)?;
        // The command holds QEMU's ends of the sockets: while they are open here, a dead QEMU would
        // look alive.
        drop(command);
        Ok(Guest {
            name: spec.name.clone(),
            agent: Agent::new(&spec.name, channels.agent, channels.console, Clock::Wall)
                .map_err(failed)?,
            qmp: Mutex::new(Qmp::new(channels.qmp).map_err(failed)?),
            process: Mutex::new(process),
            pace: spec.emulator.pace(accel),
        })
    }

    /// Waits until it is up. One that is not after a third of `limit` is reset, once: now and then
    /// a kernel gets stuck on its way on an emulated processor, where it would be up in
    /// seconds.
    ///
    /// # Errors
    /// When it ends instead, or takes longer than `limit`.
    pub fn ready(&self, limit: Duration) -> Result<(), GuestError> {
        match self.agent.wait_for_boot(1, limit / 3) {
            Err(GuestError::Late { .. }) => self.reset(limit - limit / 3),
            other => other,
        }
    }

    /// Resets it as its reset button would, and waits until it is up again.
    ///
    /// # Errors
    /// When the monitor refuses, or the guest does not come up in time.
    pub fn reset(&self, limit: Duration) -> Result<(), GuestError> {
        let boots = self.agent.boots();
        self.monitor("system_reset", json!({}))?;
        self.agent.wait_for_boot(boots + 1, limit)
    }

    /// Executes a command of QEMU's monitor (QMP).
    ///
    /// # Errors
    /// When the monitor is gone or refuses.
    pub fn monitor(
        &self,
        command: &str,
        arguments: serde_json::Value,
    ) -> Result<serde_json::Value, GuestError> {
        let mut qmp = self.qmp.lock();
        qmp.execute(command, arguments)
            .map_err(|source| GuestError::Channel { what: "QEMU's monitor", source })?
            .map_err(|answer| GuestError::Refused {
                name: self.name.clone(),
                command: command.into(),
                answer,
            })
    }

    /// The end of what its console and QEMU printed.
    pub fn console(&self) -> String {
        self.agent.console()
    }

    /// The threads of QEMU that are the guest's virtual CPUs.
    ///
    /// # Errors
    /// When the monitor is gone.
    pub fn virtual_cpus(&self) -> Result<Vec<u32>, GuestError> {
        let cpus = self.monitor("query-cpus-fast", json!({}))?;
        let threads = cpus.as_array().into_iter().flatten();
        let ids = threads.filter_map(|cpu| cpu["thread-id"].as_u64()?.try_into().ok());
        Ok(ids.collect())
    }

    /// QEMU's process id.
    pub fn id(&self) -> u32 {
        self.process.lock().id()
    }
}

impl Shell for Guest {
    fn name(&self) -> &str {
        &self.name
    }

    fn spawn(&self, command: &str) -> Result<Job, GuestError> {
        self.agent.start(command)
    }
}

fn arguments(image: &Image, accel: Accel, spec: &Spec<'_>) -> Vec<OsString> {
    let memory = spec.memory;
    let mut args: Vec<OsString> = Vec::new();
    args.extend(spec.emulator.args());
    args.extend(accel.args().map(OsString::from));
    args.extend(
        [
            "-nodefaults",
            "-display",
            "none",
            "-name",
            &quoted(&spec.name),
            "-smp",
            &spec.cpus.to_string(),
            "-m",
            &memory.to_string(),
            // vhost-user backends map the guest's memory, so it must be a file that can be shared.
            "-object",
            &format!("memory-backend-memfd,id=memory,size={memory}M,share=on"),
            "-numa",
            "node,memdev=memory",
            // The channels of `Channels`: agent on 0, monitor on 1, console and QEMU's own
            // messages on 2.
            "-chardev",
            "socket,id=agent,fd=0",
            "-device",
            "virtio-serial-pci,max_ports=2",
            "-device",
            "virtserialport,chardev=agent,nr=1",
            "-chardev",
            "socket,id=monitor,fd=1",
            "-mon",
            "chardev=monitor,mode=control",
            "-serial",
            "file:/dev/fd/2",
        ]
        .map(OsString::from),
    );
    match &spec.firmware {
        Some(firmware) => args.extend(firmware.args().into_iter().map(OsString::from)),
        None => args.extend([
            "-kernel".into(),
            image.kernel.clone().into(),
            "-initrd".into(),
            image.initramfs.clone().into(),
            "-append".into(),
            accel.kernel_arguments().into(),
        ]),
    }
    for (index, nic) in spec.nics.iter().enumerate() {
        args.extend(nic.args(index, accel, &spec.emulator).into_iter().map(OsString::from));
    }
    for (index, disk) in spec.disks.iter().enumerate() {
        args.extend(disk.args(index, accel, &spec.emulator).into_iter().map(OsString::from));
    }
    if spec.stopped {
        args.push("-S".into());
    }
    if let Some(socket) = &spec.incoming {
        args.extend(["-incoming".into(), format!("unix:{}", socket.display()).into()]);
    }
    args
}

/// Our ends of a guest's channels. QEMU gets its ends as its standard input, output and error: no
/// file, no name.
struct Channels {
    agent: UnixStream,
    qmp: UnixStream,
    console: io::PipeReader,
}

impl Channels {
    fn connect(command: &mut Command) -> io::Result<Channels> {
        let (agent, agent_end) = UnixStream::pair()?;
        let (qmp, qmp_end) = UnixStream::pair()?;
        let (console, console_end) = io::pipe()?;
        command
            .stdin(Stdio::from(OwnedFd::from(agent_end)))
            .stdout(Stdio::from(OwnedFd::from(qmp_end)))
            .stderr(Stdio::from(console_end));
        Ok(Channels { agent, qmp, console })
    }
}
