//! The host: QEMU's command line, its life, and dom0's shell.

use super::kind::Kind;
use super::testbed::Testbed;
use crate::guest::agent::{self, Agent};
use crate::guest::wait_limit::Clock;
use crate::guest::{ChildProcess, GuestError, Job, Shell};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Longest boot, and longest small task in dom0, on a machine that does much else at the same time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(240);
/// Guests that can be there at the same time: each has a channel, beside dom0's own.
const MOST_DOMAINS: u16 = 8;

/// Arguments with which Xen is faster on an emulated processor. Instructions are counted without
/// them.
///
/// `sched_ratelimit_us` is how long a domain keeps a processor at least. Each change of domain
/// empties the tables of an emulated processor. `spec-ctrl` and `xpti` are about what processors
/// guess; an emulated one guesses nothing.
const FAST_XEN: &str = " sched_ratelimit_us=10000 spec-ctrl=no xpti=no";
/// The same for the kernels of dom0 and of its guests.
pub(super) const FAST_LINUX: &str = " mitigations=off init_on_alloc=0";

/// Properties of a device of QEMU that a PVH dom0 reaches through the IOMMU. A PV dom0 passes
/// machine addresses to devices; for a PVH dom0, the IOMMU translates.
const BEHIND_IOMMU: &str = ",iommu_platform=on,disable-legacy=on";

/// The specification of the host.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How dom0 is virtualised.
    pub dom0: Kind,
    /// Its processors. One when instructions are counted.
    pub cpus: u16,
    /// Its memory in MiB.
    pub memory: u32,
    /// dom0's part of that.
    pub dom0_memory: u32,
    /// Time in it is the number of instructions that it executed, 2 ns each. So what is measured
    /// in it does not depend on what else the machine below does; but it has one processor,
    /// and is several times slower.
    pub counted: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { dom0: Kind::default(), cpus: 2, memory: 2560, dom0_memory: 1024, counted: false }
    }
}

impl Options {
    /// A host that counts instructions.
    pub fn counted(dom0: Kind) -> Options {
        Options { dom0, counted: true, ..Options::default() }
    }
}

/// A Xen host that runs; its shell is dom0's. It is killed when the last copy of this handle goes.
#[derive(Clone, Debug)]
pub struct Dom0(Arc<Host>);

#[derive(Debug)]
struct Host {
    agent: Arc<Agent>,
    /// Numbers of channels that no domain uses.
    free: Mutex<Vec<u16>>,
    // The order of drops matters: QEMU ends before its folder is removed.
    process: Mutex<ChildProcess>,
    dir: TempDir,
}

impl Dom0 {
    /// Boots a host, and waits until dom0 is up: its store and its consoles are there, nothing
    /// serves vifs. The host lives no longer than the thread that calls this.
    ///
    /// # Errors
    /// When QEMU cannot be started, or dom0 does not come up.
    pub fn boot(testbed: &Testbed, options: &Options) -> Result<Dom0, GuestError> {
        let failed = |what| move |source| GuestError::Channel { what, source };
        let dir = tempfile::Builder::new()
            .prefix("ringmain-xen-")
            .tempdir()
            .map_err(failed("cannot make a folder"))?;
        share_agent(&dir.path().join("share")).map_err(failed("cannot make a folder"))?;

        let failed = failed("cannot start QEMU");
        let (ours, agent_end) = UnixStream::pair().map_err(failed)?;
        let (console, console_end) = io::pipe().map_err(failed)?;
        let mut command = ChildProcess::command(testbed.emulator.program());
        command.args(testbed.emulator.args());
        command.args(arguments(testbed, options, dir.path()));
        // The agent's channel on 0, the console and QEMU's own messages on 2.
        command
            .stdin(Stdio::from(OwnedFd::from(agent_end)))
            .stdout(Stdio::null())
            .stderr(Stdio::from(console_end));
        let process = ChildProcess::start(&mut command).map_err(failed)?;
        // The command holds QEMU's ends of the channels: while they are open here, a dead QEMU
        // would look alive.
        drop(command);
        // QEMU that counts instructions makes progress as fast as it uses CPU time.
        let clock = if options.counted { Clock::Process(process.id()) } else { Clock::Wall };
        let agent = Agent::new("dom0", ours, console, clock).map_err(failed)?;

        let free = Mutex::new((0..MOST_DOMAINS).rev().collect());
        let dom0 = Dom0(Arc::new(Host { agent, free, process: Mutex::new(process), dir }));
        dom0.0.agent.wait_for_boot(1, TIMEOUT)?;
        Ok(dom0)
    }

    /// Copies a file of this machine into dom0.
    ///
    /// # Errors
    /// When it cannot be read, or dom0 has no room for it.
    pub fn copy(&self, from: &Path, to: &str) -> Result<(), GuestError> {
        self.through_share(to, |shared| std::fs::copy(from, shared).map(drop), from)
    }

    /// Copies a file of dom0 to this machine.
    ///
    /// # Errors
    /// When it cannot be read, or there is no room for it.
    pub fn fetch(&self, from: &str, to: &Path) -> Result<(), GuestError> {
        let failed = |source| GuestError::File { path: to.to_owned(), source };
        let shared =
            tempfile::NamedTempFile::new_in(self.0.dir.path().join("share")).map_err(failed)?;
        let name = shared.path().file_name().unwrap_or_default().to_string_lossy();
        self.must(&format!("cat {from} >/share/{name}"), TIMEOUT)?;
        std::fs::copy(shared.path(), to).map(drop).map_err(failed)
    }

    /// Writes a file in dom0.
    ///
    /// # Errors
    /// When dom0 has no room for it.
    pub fn write(&self, to: &str, content: &str) -> Result<(), GuestError> {
        self.through_share(to, |shared| std::fs::write(shared, content), Path::new(to))
    }

    fn through_share(
        &self,
        to: &str,
        put: impl FnOnce(&Path) -> io::Result<()>,
        named: &Path,
    ) -> Result<(), GuestError> {
        let failed = |source| GuestError::File { path: named.to_owned(), source };
        let shared =
            tempfile::NamedTempFile::new_in(self.0.dir.path().join("share")).map_err(failed)?;
        put(shared.path()).map_err(failed)?;
        let name = shared.path().file_name().unwrap_or_default().to_string_lossy();
        // A running program's file cannot be written to, but replaced.
        self.must(
            &format!("mkdir -p $(dirname {to}) && cp --remove-destination /share/{name} {to}"),
            TIMEOUT,
        )?;
        Ok(())
    }

    /// The end of what Xen's and dom0's console, and QEMU, printed.
    pub fn console(&self) -> String {
        self.0.agent.console()
    }

    /// Whether instructions are counted.
    pub(super) fn is_counted(&self) -> bool {
        self.clock() != Clock::Wall
    }

    /// The clock that limits of waits on this host and its guests are counted in.
    pub(super) fn clock(&self) -> Clock {
        self.0.agent.clock()
    }

    /// QEMU's process id.
    pub fn id(&self) -> u32 {
        self.0.process.lock().id()
    }

    /// Takes a channel for a domain: its number, and our end.
    pub(super) fn channel(&self) -> Result<(u16, UnixStream), GuestError> {
        let failed = |source| GuestError::Channel { what: "no channel to the guest", source };
        let number =
            self.free().pop().ok_or_else(|| failed(io::ErrorKind::QuotaExceeded.into()))?;
        match UnixStream::connect(channel(self.0.dir.path(), number)) {
            Ok(stream) => Ok((number, stream)),
            Err(error) => {
                self.give_back(number);
                Err(failed(error))
            }
        }
    }

    /// Returns the channel of an ended domain, for the next one.
    pub(super) fn give_back(&self, number: u16) {
        self.free().push(number);
    }

    fn free(&self) -> parking_lot::MutexGuard<'_, Vec<u16>> {
        self.0.free.lock()
    }
}

impl Shell for Dom0 {
    fn name(&self) -> &str {
        "dom0"
    }

    fn spawn(&self, command: &str) -> Result<Job, GuestError> {
        self.0.agent.start(command)
    }
}

/// Makes the folder that dom0 shares with this machine, with the agent's program in it.
fn share_agent(folder: &Path) -> io::Result<()> {
    std::fs::create_dir(folder)?;
    let program = folder.join("agent");
    std::fs::write(&program, agent::PROGRAM)?;
    std::fs::set_permissions(program, Permissions::from_mode(0o755))
}

/// The path in dom0 of the channel with this number.
pub(super) fn port(number: u16) -> String {
    format!("/dev/vport*p{}", number + 2)
}

/// The path here of the channel.
fn channel(dir: &Path, number: u16) -> std::path::PathBuf {
    dir.join(format!("{number}.sock"))
}

/// The command line of QEMU.
fn arguments(testbed: &Testbed, options: &Options, dir: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    args.extend(machine(options).into_iter().map(OsString::from));
    args.extend(devices(testbed, options.dom0, dir).into_iter().map(OsString::from));
    args.extend(kernels(testbed, options));
    args
}

/// The processor, the memory, and the console.
fn machine(options: &Options) -> Vec<String> {
    let accelerator = match options.counted {
        true => "-accel tcg,thread=single -icount shift=1,sleep=off -smp 1".to_owned(),
        false => format!("-accel tcg,thread=multi -smp {}", options.cpus),
    };
    // Devices cannot use the addresses of a PVH dom0 as they are.
    let iommu = match options.dom0 {
        Kind::Pv => "",
        Kind::Pvh => "-machine q35 -device intel-iommu,intremap=off",
    };
    // dom0 does not boot on a processor that can more (-cpu max). Nested page tables are what PVH
    // domains need.
    let line = format!(
        "{accelerator} {iommu} -cpu qemu64,+npt -m {} -nodefaults -display none -no-reboot \
         -name xen -serial file:/dev/fd/2",
        options.memory
    );
    line.split_whitespace().map(str::to_owned).collect()
}

/// dom0's disk, the folder that it shares with this machine, and the channels to it and to guests.
fn devices(testbed: &Testbed, dom0: Kind, dir: &Path) -> Vec<String> {
    let behind = match dom0 {
        Kind::Pv => "",
        Kind::Pvh => BEHIND_IOMMU,
    };
    let mut args: Vec<String> = Vec::new();
    let mut add = |kind: &str, what: String| args.extend([kind.to_owned(), what]);
    let (disk, share) = (quoted(&testbed.disk), quoted(&dir.join("share")));
    add("-drive", format!("file={disk},if=none,id=disk,format=raw,snapshot=on"));
    add("-device", format!("virtio-blk-pci,drive=disk{behind}"));
    add("-fsdev", format!("local,id=share,path={share},security_model=none"));
    add("-device", format!("virtio-9p-pci,fsdev=share,mount_tag=share{behind}"));
    add("-device", format!("virtio-serial-pci,max_ports={}{behind}", MOST_DOMAINS + 2));
    add("-chardev", "socket,id=agent,fd=0".into());
    add("-device", "virtserialport,chardev=agent,nr=1".into());
    for number in 0..MOST_DOMAINS {
        let path = quoted(&channel(dir, number));
        add("-chardev", format!("socket,id=domain{number},path={path},server=on,wait=off"));
        add("-device", format!("virtserialport,chardev=domain{number},nr={}", number + 2));
    }
    args
}

/// A path among options of QEMU that commas separate.
fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The hypervisor and dom0's kernel, with their own command lines.
fn kernels(testbed: &Testbed, options: &Options) -> [OsString; 6] {
    let Options { dom0, dom0_memory, counted, .. } = *options;
    let fast = |arguments| if counted { "" } else { arguments };
    // The emulated IOMMU cannot read the page tables of an AMD processor: no-sharept.
    let xen = format!(
        "console=com1 com1=115200,8n1 dom0={dom0} iommu=no-sharept \
         dom0_mem={dom0_memory}M,max:{dom0_memory}M noreboot{}",
        fast(FAST_XEN)
    );
    let [kernel, first] = [&testbed.kernel, &testbed.first].map(|path| quoted(path));
    let linux = fast(FAST_LINUX);
    let modules = format!("{kernel} console=hvc0 panic=-1 loglevel=4{linux},{first}");
    let hypervisor = testbed.xen.clone().into();
    ["-append".into(), xen.into(), "-kernel".into(), hypervisor, "-initrd".into(), modules.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pvh_dom0_reaches_its_devices_through_the_iommu() {
        let testbed = Testbed {
            xen: "xen".into(),
            kernel: "vmlinux".into(),
            first: "first.cpio.gz".into(),
            disk: "dom0.img".into(),
            emulator: crate::guest::Emulator::installed(),
        };
        let line = |dom0| {
            let options = Options { dom0, ..Options::default() };
            let args = arguments(&testbed, &options, Path::new("/tmp"));
            args.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>()
        };
        let (pv, pvh) = (line(Kind::Pv), line(Kind::Pvh));
        let behind = |line: &[String]| {
            let (pci, iommu): (Vec<_>, Vec<_>) = line
                .iter()
                .filter(|arg| arg.starts_with("virtio-") && arg.contains("-pci"))
                .partition(|arg| !arg.contains("iommu_platform=on"));
            (pci.len(), iommu.len())
        };
        assert_eq!((behind(&pv), behind(&pvh)), ((3, 0), (0, 3)));
        let iommus = |line: &[String]| line.iter().filter(|arg| arg.contains("-iommu,")).count();
        assert_eq!((iommus(&pv), iommus(&pvh)), (0, 1));
        let has = |line: &[String], word: &str| line.iter().any(|arg| arg.contains(word));
        assert!(has(&pv, " dom0=pv ") && has(&pvh, " dom0=pvh "), "{pvh:?}");
    }
}
