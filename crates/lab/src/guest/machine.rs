//! A running guest: QEMU's command line, start and end, and the operations on it.

use super::agent::Agent;
use super::qmp::Qmp;
use super::wait_limit::Clock;
use super::{Accel, ChildProcess, Firmware, GuestError, Image, Job, Namespace, Shell, tsc};
use frame::Mac;
use serde_json::json;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// What boots the guest from its first disk; `None`: QEMU loads the kernel.
    pub firmware: Option<Firmware>,
    /// The guest does not boot: QEMU listens at this socket for one that migrates here.
    pub incoming: Option<PathBuf>,
}

impl Spec<'_> {
    /// A guest with one CPU, 256 MiB and no interface.
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
        }
    }
}

/// One virtio disk of a guest, at a vhost-user backend to which QEMU connects, again when the backend
/// was gone.
#[derive(Clone, Debug)]
pub struct DiskLink {
    /// The socket's path.
    pub socket: PathBuf,
    /// Queues offered to the guest.
    pub queues: u16,
    /// QEMU's `vhost-user-blk-pci` properties beyond the usual ones, such as `packed=on`.
    pub options: Vec<String>,
}

impl DiskLink {
    fn args(&self, index: usize, accel: Accel) -> Vec<String> {
        let socket = quoted(&self.socket.to_string_lossy());
        // As for network interfaces.
        let vectors = if accel == Accel::Tcg { 0 } else { self.queues + 1 };
        let mut device = format!(
            "vhost-user-blk-pci,chardev=disk{index},num-queues={},vectors={vectors}",
            self.queues
        );
        for option in &self.options {
            device.push(',');
            device.push_str(option);
        }
        let chardev = format!("socket,id=disk{index},path={socket},reconnect=1");
        vec!["-chardev".into(), chardev, "-device".into(), device]
    }
}

/// One virtio network interface of a guest.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The link that the interface is attached to.
    pub link: Link,
    /// Its address.
    pub mac: Mac,
    /// Queue pairs offered to the guest.
    pub queues: u16,
    /// QEMU's `virtio-net-pci` properties beyond the usual ones, such as `packed=on` or
    /// `mrg_rxbuf=off`.
    pub options: Vec<String>,
}

/// The link of an interface.
#[derive(Clone, Debug)]
pub enum Link {
    /// A vhost-user backend at this socket.
    VhostUser {
        /// The socket's path.
        socket: PathBuf,
        /// QEMU makes the socket and the backend connects. Else QEMU connects, again when the
        /// backend was gone.
        listens: bool,
    },
    /// A TAP device that is there already, in the guest's namespace.
    Tap {
        /// Its name.
        device: String,
    },
}

impl Nic {
    fn args(&self, index: usize, accel: Accel) -> Vec<String> {
        let Nic { link, mac, queues, options } = self;
        let mut args = Vec::new();
        let mut device = format!("virtio-net-pci,netdev=net{index},mac={mac},rx_queue_size=1024");
        if *queues > 1 {
            device.push_str(",mq=on");
        }
        match link {
            Link::VhostUser { socket, listens } => {
                let socket = quoted(&socket.to_string_lossy());
                let role = if *listens { "server=on,wait=off" } else { "reconnect=1" };
                args.extend([
                    "-chardev".into(),
                    format!("socket,id=vhost{index},path={socket},{role}"),
                ]);
                args.extend([
                    "-netdev".into(),
                    format!("vhost-user,id=net{index},chardev=vhost{index},queues={queues}"),
                ]);
                // QEMU 7.2 crashes as the driver starts when it emulates the processor and the
                // device has MSI-X vectors.
                let vectors = if accel == Accel::Tcg { 0 } else { 2 * queues + 2 };
                device.push_str(&format!(",tx_queue_size=1024,vectors={vectors}"));
            }
            Link::Tap { device: tap } => {
                let tap = quoted(tap);
                args.extend([
                    "-netdev".into(),
                    format!("tap,id=net{index},ifname={tap},script=no,downscript=no,vhost=off,queues={queues}"),
                ]);
                device.push_str(&format!(",vectors={}", 2 * queues + 2));
            }
        }
        for option in options {
            device.push(',');
            device.push_str(option);
        }
        args.extend(["-device".into(), device]);
        args
    }
}

/// A value in one of QEMU's comma-separated options.
fn quoted(value: &str) -> String {
    value.replace(',', ",,")
}

/// A running guest, killed when this value is dropped.
#[derive(Debug)]
pub struct Guest {
    name: String,
    agent: Arc<Agent>,
    qmp: Mutex<Qmp>,
    process: Mutex<ChildProcess>,
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
            Some(namespace) => namespace.command("qemu-system-x86_64"),
            None => ChildProcess::command("qemu-system-x86_64"),
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
        let mut qmp = self.qmp.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// QEMU's process id.
    pub fn id(&self) -> u32 {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).id()
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
            kernel_arguments(accel).into(),
        ]),
    }
    for (index, nic) in spec.nics.iter().enumerate() {
        args.extend(nic.args(index, accel).into_iter().map(OsString::from));
    }
    for (index, disk) in spec.disks.iter().enumerate() {
        args.extend(disk.args(index, accel).into_iter().map(OsString::from));
    }
    if let Some(socket) = &spec.incoming {
        args.extend(["-incoming".into(), format!("unix:{}", socket.display()).into()]);
    }
    args
}

/// The command line of a guest's kernel.
pub(super) fn kernel_arguments(accel: Accel) -> String {
    // The translator's time stamp counter is steady, but Linux would not trust it, and would read a
    // slow timer instead.
    let mut text = String::from("console=ttyS0 loglevel=4 panic=-1 mitigations=off tsc=reliable");
    // Where other programs leave the guest little time, the kernel misses timer interrupts as it
    // boots. It then takes the timer for broken, and panics; or it takes the counter for several
    // times slower than it is, and its clock is fast.
    text.push_str(" no_timer_check");
    if let Some(rate) = tsc::kilohertz().filter(|_| accel == Accel::Tcg) {
        text.push_str(&format!(" tsc_early_khz={rate}"));
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(link: Link, queues: u16) -> Nic {
        Nic { link, mac: Mac([0x52, 0x54, 0, 0, 0, 1]), queues, options: vec!["packed=on".into()] }
    }

    #[test]
    fn a_vhost_user_interface_has_no_vectors_where_qemu_would_crash() {
        let link = Link::VhostUser { socket: "/tmp/a,b".into(), listens: false };
        let args = nic(link, 4).args(0, Accel::Tcg);
        assert_eq!(args[1], "socket,id=vhost0,path=/tmp/a,,b,reconnect=1");
        assert_eq!(args[3], "vhost-user,id=net0,chardev=vhost0,queues=4");
        assert!(
            args[5].contains("mq=on")
                && args[5].contains("vectors=0")
                && args[5].ends_with(",packed=on"),
            "{args:?}"
        );
    }

    #[test]
    fn an_interface_with_one_queue_is_not_multi_queue() {
        let args =
            nic(Link::VhostUser { socket: "s".into(), listens: true }, 1).args(3, Accel::Kvm);
        assert!(
            args[1].ends_with("server=on,wait=off")
                && !args[5].contains("mq=on")
                && args[5].contains("vectors=4"),
            "{args:?}"
        );
        let args = nic(Link::Tap { device: "t0".into() }, 1).args(3, Accel::Kvm);
        assert!(args[1].starts_with("tap,id=net3,ifname=t0,"), "{args:?}");
    }
}
