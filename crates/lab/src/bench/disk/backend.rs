//! The back-ends that serve an image: the daemon and qemu-storage-daemon, each started afresh for
//! every run.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::image::Images;
use super::point::{DiskPoint, Image, POINTS, Peer};
use super::{Args, fio};
use crate::bench::BenchError;
use crate::bench::bare_disk::BareDisk;
use crate::bench::measure::{Backends, Measured};
use crate::bench::point::{Point, Unit};
use crate::bench::tally::Who;
use crate::daemon::Daemon;
use crate::disk_load::{self, Place, Report, Span};
use crate::guest::ChildProcess;
use crate::tool;

/// The program of the peer.
const QEMU: &str = "qemu-storage-daemon";

/// How long requests are sent before they are measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// Queues that each back-end offers.
const QUEUES: u16 = 4;

/// All back-ends.
pub(super) struct DiskBackends<'a> {
    args: &'a Args,
    binary: PathBuf,
    images: Images,
}

impl DiskBackends<'_> {
    /// Finds the programs, and makes the images.
    ///
    /// # Errors
    /// When a program is missing, or an image cannot be made.
    pub(super) fn prepare(args: &Args) -> Result<DiskBackends<'_>, BenchError> {
        let failed = |what| move |source| BenchError::Start { what, source };
        let binary = args.program.find().map_err(failed("find ringmain"))?;
        let wanted = |disk: &&DiskPoint| {
            args.only.is_empty() || args.only.iter().any(|name| name == disk.point.name)
        };
        let needs_drive = POINTS.iter().filter(wanted).any(|disk| disk.image == Image::Drive);
        let images = Images::make(args, needs_drive).map_err(failed("make an image"))?;
        Ok(DiskBackends { args, binary, images })
    }

    /// The version of qemu-storage-daemon, if the comparison includes that program.
    pub(super) fn version(&self) -> Option<String> {
        tool::version(QEMU, "--version").filter(|_| !self.args.alone)
    }

    fn ringmain(&self, disk: &DiskPoint) -> Result<Report, String> {
        let Args { worker_cpu, generator_cpu, .. } = *self.args;
        let cpus = [worker_cpu, generator_cpu];
        let cpus = &cpus[..usize::from(disk.workers).min(cpus.len())];
        let image = self.images.path(disk.image);
        let config = |dir: &Path| {
            format!(
                "[workers]\ncount = {}\ncpus = {cpus:?}\n[[disk]]\nname = \"disk\"\nkind = \"vhost-user\"\n\
                 socket = \"{}\"\nimage = \"{}\"\nqueues = {QUEUES}\ndirect = \"on\"\n",
                disk.workers,
                dir.join("disk.sock").display(),
                image.display()
            )
        };
        let daemon = match disk.image {
            Image::Null => Daemon::with_null_disks(config),
            Image::Memory | Image::Drive => Daemon::start(&self.binary, config, None),
        };
        let daemon = daemon.map_err(in_a_line)?;
        self.send(disk, daemon.dir().join("disk.sock"), daemon.id())
    }

    fn qemu(&self, disk: &DiskPoint) -> Result<Report, String> {
        let dir = tempfile::Builder::new().prefix("ringmain-qsd-").tempdir().map_err(in_a_line)?;
        let socket = dir.path().join("disk.sock");
        let log = dir.path().join("log");
        let mut command = ChildProcess::command("taskset");
        command.args(["-c", &self.args.worker_cpu.to_string(), QEMU]);
        self.describe(disk, &socket, &mut command);
        let output = File::create(&log).map_err(in_a_line)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let mut process = ChildProcess::start(&mut command).map_err(in_a_line)?;
        let report = self.send(disk, socket, process.id());
        match (report, process.ended()) {
            (Err(error), Some(status)) => {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                Err(format!("{QEMU} ended with {status} ({}): {error}", log.trim()))
            }
            (report, _) => report,
        }
    }

    /// The peer's options: one thread for all queues, the image past the page cache, and io_uring.
    fn describe(&self, disk: &DiskPoint, socket: &Path, command: &mut Command) {
        command.args(["--object", "iothread,id=worker"]);
        let length = self.images.length;
        match disk.image {
            Image::Null => {
                command
                    .args(["--blockdev", &format!("driver=null-co,node-name=disk,size={length}")]);
            }
            Image::Memory | Image::Drive => {
                let image = self.images.path(disk.image);
                command.args([
                    "--blockdev",
                    &format!(
                        "driver=file,node-name=file,filename={},cache.direct=on,aio=io_uring",
                        image.display()
                    ),
                    "--blockdev",
                    "driver=raw,node-name=disk,file=file,cache.direct=on",
                ]);
            }
        }
        command.args([
            "--export",
            &format!(
                "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},\
                 writable=on,num-queues={QUEUES},iothread=worker",
                socket.display()
            ),
        ]);
    }

    /// The back-end that only wakes up, reads and interrupts.
    fn bare(&self, disk: &DiskPoint) -> Result<Report, String> {
        let image = self.images.path(disk.image);
        let bare = BareDisk::start(self.args.worker_cpu, &image).map_err(in_a_line)?;
        self.send(disk, bare.socket(), bare.id())
    }

    fn send(&self, disk: &DiskPoint, socket: PathBuf, backend: u32) -> Result<Report, String> {
        let cpu = Some(self.args.generator_cpu);
        let place = Place { socket, length: self.images.length, cpu, backend };
        let span = Span::Time { warm_up: WARM_UP, measured: self.time(disk) };
        disk_load::run(&place, &disk.workload, span).map_err(in_a_line)
    }

    fn time(&self, disk: &DiskPoint) -> Duration {
        let wanted = Duration::from_secs_f64(self.args.seconds.clamp(0.05, 3600.0));
        wanted.max(Duration::from_millis(disk.at_least_ms))
    }
}

impl Backends for DiskBackends<'_> {
    fn of(&self, point: &Point) -> Vec<Who> {
        if self.args.alone {
            return vec![Who::Ringmain];
        }
        let is_bare = POINTS.iter().any(|disk| disk.point.name == point.name && disk.has_bare());
        let bare = is_bare.then_some(Who::Ceiling);
        [Who::Ringmain, Who::Peer].into_iter().chain(bare).collect()
    }

    fn measure(&self, who: Who, point: &Point) -> Result<Measured, String> {
        let disk = POINTS.iter().find(|disk| disk.point.name == point.name);
        let disk = disk.ok_or("no such point")?;
        let report = match (who, disk.peer) {
            (Who::Ringmain, _) => self.ringmain(disk)?,
            (Who::Ceiling, _) => self.bare(disk)?,
            (Who::Peer, Peer::Qemu) => self.qemu(disk)?,
            (Who::Peer, Peer::Fio) => {
                let image = self.images.path(disk.image);
                let figures = fio::run(self.args.worker_cpu, &image, disk, self.time(disk))?;
                // The CPU time of other processes was not counted meanwhile.
                return Ok(Measured { figures, disturbed: false });
            }
        };
        let figures = point.figures.iter().map(|(unit, _)| figure(*unit, &report)).collect();
        let disturbed = report.others * 100.0 > self.args.disturbed_above;
        Ok(Measured { figures, disturbed })
    }
}

/// A figure in a report; none of frames and of hosts is in it.
fn figure(unit: Unit, report: &Report) -> f64 {
    match unit {
        Unit::Kiops => report.iops() / 1e3,
        Unit::Megabytes => report.megabytes(),
        Unit::MicrosP50 => report.latency.p50,
        Unit::MicrosP99 => report.latency.p99,
        Unit::Cpu => report.backend * 100.0,
        Unit::Mpps | Unit::Gbps | Unit::Interrupts | Unit::HostNanos => f64::NAN,
    }
}

fn in_a_line(error: impl Display) -> String {
    error.to_string().replace('\n', "; ")
}
