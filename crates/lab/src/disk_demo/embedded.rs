//! Disks of the embedded hypervisor: the back-end is in this process, and the guest is a process of
//! its own, which this one starts. Toolstack and hotplug script are functions here.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::config::defaults;
use hypervisor::embedded::server::{Server, ServerConfig};
use hypervisor::embedded::{Design, Device, Machine, Version};
use hypervisor::{DomId, Hypervisor};
use runtime::{Group, group};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use storage::count::{ErrorReason, QueueCounters};
use storage::{BlockPipeline, Disks, engine};
use tempfile::TempDir;
use unix_socket::Permissions;
use xen::blkif::service::{BlkbackConfig, Service};
use xen::blkif::settings::SCRIPT;

use super::guest::{Answer, Done, Job, NAME, handle};
use super::point::{Figures, Phase};
use super::site::{QUEUES, Used, image, make_images};
use super::{Args, DiskDemoError, DiskGuest};
use crate::cpu;
use crate::disk_load::DiskLoadError;
use crate::guest::ChildProcess;
use crate::interrupt;

/// How long the guest may take to become one.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two looks whether the user interrupts.
const NAP: Duration = Duration::from_millis(50);

/// A guest with its disks, and their back-end.
pub(super) struct EmbeddedGuest {
    // In this order: the guest goes before its back-end, and this before the images.
    pipes: RefCell<Pipes>,
    guest: ChildProcess,
    service: Service,
    disks: Arc<Disks>,
    _server: Server,
    _images: TempDir,
    time: Duration,
}

/// The ways to the guest and back.
struct Pipes {
    jobs: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Starts back-end and guest, and gives the guest its disks.
pub(super) fn start(args: &Args) -> Result<EmbeddedGuest, DiskDemoError> {
    let images = make_images(args)?;
    let failed =
        |what: &'static str| move |source| DiskDemoError::File { what: what.into(), source };
    let host = failed("cannot start the embedded hypervisor");
    let machine = Machine::new(Design::default()).map_err(&host)?;
    let dom0 = machine.hypervisor(DomId(0)).map_err(&host)?;
    let disks = Arc::new(workers().map_err(failed("cannot start workers"))?);
    let config = BlkbackConfig {
        queues: QUEUES.into_iter().max().unwrap_or(1),
        folders: vec![images.path().to_owned()],
        ..BlkbackConfig::default()
    };
    let service = Service::start(Arc::clone(&disks), dom0.clone(), config);
    let service = service.map_err(|error| host(io::Error::other(error)))?;
    let socket = images.path().join("guests.sock");
    let config = ServerConfig {
        socket: socket.clone(),
        permissions: Permissions::default(),
        keys: Vec::new(),
        version: Version::V1,
        mac: None,
    };
    let server = Server::start(machine.clone(), config);
    let server = server.map_err(|error| host(io::Error::other(error)))?;
    let started = failed("cannot start the guest");
    let mut guest = spawn(&socket).map_err(&started)?;
    let child = guest.child();
    let (jobs, answers) = child
        .stdin
        .take()
        .zip(child.stdout.take())
        .ok_or_else(|| started(io::ErrorKind::BrokenPipe.into()))?;
    let domain = await_guest(&server, &mut guest)?;
    for queues in QUEUES {
        let path = image(images.path(), queues);
        attach(&machine, &dom0, domain, queues, &path)
            .map_err(failed("cannot give the guest a disk"))?;
    }
    let pipes = RefCell::new(Pipes { jobs, answers: BufReader::new(answers) });
    Ok(EmbeddedGuest {
        pipes,
        guest,
        service,
        disks,
        _server: server,
        _images: images,
        time: args.time(),
    })
}

/// Disks on as many workers as a daemon has by default.
fn workers() -> io::Result<Disks> {
    let count = defaults::workers(std::thread::available_parallelism().map_or(1, usize::from));
    let doorbells = group::doorbells(count)?;
    let pipeline =
        |_| engine::best().map(|engine| BlockPipeline::new(engine, ring::page_faults::count));
    let pipelines = (0..count).map(pipeline).collect::<io::Result<Vec<_>>>()?;
    Ok(Disks::new(Arc::new(Group::start(doorbells, pipelines, &[], Default::default())?)))
}

fn spawn(socket: &Path) -> io::Result<ChildProcess> {
    let mut command = ChildProcess::command(std::env::current_exe()?);
    command.arg("disk-guest").arg("--socket").arg(socket);
    command.args(["--backend", &std::process::id().to_string()]);
    ChildProcess::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

/// Waits until the guest has a domain.
fn await_guest(server: &Server, guest: &mut ChildProcess) -> Result<DomId, DiskDemoError> {
    let until = Instant::now() + TIMEOUT;
    loop {
        let mut here = server.guest_processes().into_iter();
        if let Some((id, _)) = here.find(|(_, process)| process.name == NAME) {
            return Ok(id);
        }
        if guest.ended().is_some() || Instant::now() > until {
            return Err(DiskDemoError::Answer("it did not become a guest".into()));
        }
        if !interrupt::sleep(Duration::from_millis(2)) {
            return Err(DiskLoadError::Interrupted.into());
        }
    }
}

/// Creates a disk of the guest, as a toolstack and the hotplug script do.
fn attach(
    machine: &Machine,
    dom0: &Hypervisor,
    domain: DomId,
    queues: u16,
    image: &Path,
) -> io::Result<()> {
    let image = image.to_string_lossy();
    let device = Device {
        class: "vbd",
        handle: handle(queues),
        frontend: domain,
        backend: DomId(0),
        frontend_keys: &[],
        backend_keys: &[
            ("script", SCRIPT),
            ("mode", "w"),
            ("device-type", "disk"),
            ("physical-device-path", &image),
        ],
    };
    machine.attach(&device).map_err(io::Error::other)?;
    let status = format!("{}/hotplug-status", device.backend_path());
    dom0.store.nodes().put(&status, "connected").map_err(io::Error::other)
}

impl EmbeddedGuest {
    /// Has the guest do something.
    fn ask(&self, job: &Job) -> Result<Done, DiskDemoError> {
        let pipes = &mut *self.pipes.borrow_mut();
        let answer = pipes.ask(job);
        if interrupt::asked() {
            return Err(DiskLoadError::Interrupted.into());
        }
        let answer = answer.map_err(|error| DiskDemoError::Answer(error.to_string()))?;
        answer.map_err(DiskDemoError::Answer)
    }
}

impl Pipes {
    /// Sends a job, and waits for the answer or until the user interrupts.
    fn ask(&mut self, job: &Job) -> io::Result<Answer> {
        writeln!(self.jobs, "{}", serde_json::to_string(job)?)?;
        loop {
            let mut fds = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
            // An interrupted wait is one that ends early.
            let ready = poll(&mut fds, Timespec::try_from(NAP).ok().as_ref()).unwrap_or(0);
            if ready > 0 {
                break;
            }
            if interrupt::asked() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl DiskGuest for EmbeddedGuest {
    fn verify(&self, queues: u16) -> Result<u64, DiskDemoError> {
        match self.ask(&Job::Verify { queues })? {
            Done::Verified(bytes) => Ok(bytes),
            Done::Measured(_) => Err(DiskDemoError::Answer("it measured".into())),
        }
    }

    fn measure(&self, queues: u16, phase: &Phase) -> Result<Figures, DiskDemoError> {
        let Phase { operation, order, bytes, depth, .. } = *phase;
        let time = self.time;
        match self.ask(&Job::Measure { queues, operation, order, bytes, depth, time })? {
            Done::Measured(figures) => Ok(figures),
            Done::Verified(_) => Err(DiskDemoError::Answer("it verified".into())),
        }
    }

    fn used(&self, queues: u16) -> Result<Used, DiskDemoError> {
        let vbds = self.service.vbds().into_iter();
        let disk = vbds.filter(|vbd| vbd.bus.id.handle == handle(queues)).find_map(|vbd| vbd.disk);
        let counters = disk.map(|(id, _)| self.disks.counters(id)).unwrap_or_default();
        let sum = |of: fn(&QueueCounters) -> u64| counters.iter().map(|(queue, _)| of(queue)).sum();
        Ok(Used {
            requests: sum(|queue| queue.reads.get() + queue.writes.get()),
            failed: sum(|queue| ErrorReason::ALL.iter().map(|reason| queue.failed(*reason)).sum()),
            interrupts: sum(|queue| queue.interrupts.get()),
            cpu: cpu::used(std::process::id()),
        })
    }

    fn processes(&self) -> Vec<u32> {
        vec![std::process::id(), self.guest.id()]
    }
}
