//! Ringmain's disks beside the kernel's xen-blkback: the same stock guest on the same real Xen
//! host, whose disk the two systems serve by turns, out of the same storage in dom0's memory.
//!
//! As for vifs, the host's clock counts instructions, and figures contain no effects of caches.

mod result;

use std::path::PathBuf;
use std::time::Duration;

use super::{SLOWNESS, TIMEOUT, failed, instructions};
use crate::bench::{BenchError, catch_signals, unix_time, write};
use crate::disk_demo::fio;
use crate::disk_demo::point::{PHASES, Phase};
use crate::folders::folder;
use crate::guest::{GuestError, Image, Shell};
use crate::interrupt;
use crate::program::Program;
use crate::progress::{Progress, Stage};
use crate::xen::{DISK, Dom0, Domain, DomainSpec, Kind, Options, Service, Testbed};
use result::{Comparison, Figure, Tally};

/// Memory of the guest, in MiB, of which fio and its libraries take a part.
const MEMORY: u32 = 640;
/// Bytes of each storage.
const LENGTH: u64 = 48 << 20;
/// The most queues of a disk.
const MOST_QUEUES: u16 = 4;
/// The hotplug script of the kernel's disks, in dom0.
const SCRIPT: &str = "/etc/xen/scripts/block-kernel";

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Runs of each point on each system
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Seconds of requests in each run, by the Xen host's clock. A second of that clock takes
    /// several seconds of real time
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,

    /// Numbers of queues of the guest's disk; each number is measured in turn
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, MOST_QUEUES],
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_QUEUES)))]
    pub queues: Vec<u16>,

    /// How dom0 is virtualised
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    pub dom0: Kind,

    /// Folder with the Xen host, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = "CLONE/.cache", value_parser = folder)]
    pub cache: PathBuf,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-xen-disk", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// The system that serves the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Kernel,
    Ringmain,
}

/// The storage behind a disk, in dom0's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// A block device.
    Device,
    /// A file on an ext4 file system. The kernel serves files through a loop device.
    File,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Kernel => "xen-blkback",
            System::Ringmain => "Ringmain",
        }
    }

    /// What `xl` is told of a disk.
    fn words(self, storage: Storage) -> String {
        match self {
            System::Kernel => format!("script=block-kernel,target={}", storage.path()),
            System::Ringmain => format!("script=block-ringmain,target={}", storage.path()),
        }
    }

    /// Makes the system serve disks, as long as the value lives.
    fn set_up(self, dom0: &Dom0, program: &Program) -> Result<Option<Service>, GuestError> {
        match self {
            System::Kernel => {
                dom0.write(SCRIPT, include_str!("block-kernel"))?;
                let load =
                    format!("chmod 755 {SCRIPT} && modprobe xen-blkback max_queues={MOST_QUEUES}");
                dom0.must(&load, TIMEOUT).map(|_| None)
            }
            System::Ringmain => {
                let missing = |source| GuestError::Channel { what: "cannot find ringmain", source };
                dom0.install(&program.find().map_err(missing)?)?;
                dom0.serve(&format!(
                    "[workers]\ncount = 1\n[[disk]]\nname = \"vbds\"\nkind = \"xen\"\n\
                     images = [\"/dev\", \"/srv/images\"]\nqueues = {MOST_QUEUES}\n"
                ))
                .map(Some)
            }
        }
    }

    /// Undoes what [`set_up`](Self::set_up) did, once the disk and the daemon are gone.
    fn tear_down(self, dom0: &Dom0) -> Result<(), GuestError> {
        match self {
            System::Kernel => dom0.must("rmmod xen_blkback", TIMEOUT).map(drop),
            System::Ringmain => Ok(()),
        }
    }
}

impl Storage {
    const ALL: [Storage; 2] = [Storage::Device, Storage::File];

    fn name(self) -> &'static str {
        match self {
            Storage::Device => "block device",
            Storage::File => "file",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Storage::Device => "/dev/ram0",
            Storage::File => "/srv/images/disk.raw",
        }
    }
}

/// A script that makes block devices in dom0's memory: one is a storage, and the other has a file
/// system with an image.
fn make_storage() -> String {
    let [device, image] = Storage::ALL.map(Storage::path);
    // Room for the file system's own data.
    let device_kib = (LENGTH + LENGTH / 3) >> 10;
    format!(
        "set -e
        modprobe loop
        modprobe brd rd_nr=2 rd_size={device_kib}
        mkfs.ext4 -q -m 0 /dev/ram1
        mkdir -p $(dirname {image})
        mount /dev/ram1 $(dirname {image})
        yes Ringmain | head -c {LENGTH} >{image}
        cat {image} >{device}
        sync"
    )
}

/// Compares. The table goes to standard output, the result file to `args.out`, progress to standard
/// error.
///
/// # Errors
/// When the Xen host is not built, or does not come up, or the user interrupts.
pub fn run(args: &Args) -> Result<(), BenchError> {
    catch_signals()?;
    let testbed = Testbed::find(&args.cache)?;
    let began = unix_time();
    let progress = Progress::new();
    let mut tallies = Vec::new();
    for storage in Storage::ALL {
        for &queues in &args.queues {
            tallies.extend(PHASES.iter().map(|phase| Tally::new(storage, queues, phase)));
        }
    }
    let stage = progress.stage("the host and its guest boot");
    let host = Host::boot(&testbed, args)?;
    stage.done("");
    for number in 1..=args.runs {
        for system in [System::Kernel, System::Ringmain] {
            let stage = progress.stage(format!("{}, run {number} of {}", system.name(), args.runs));
            measure(args, &host, system, &stage, &mut tallies)?;
            stage.done("");
        }
    }
    let comparison = Comparison::new(began, args.dom0, args.runs, args.seconds, &tallies);
    let file = write(&args.out, began, &comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

/// One run of all points on one system.
fn measure(
    args: &Args,
    host: &Host,
    system: System,
    stage: &Stage,
    tallies: &mut [Tally],
) -> Result<(), BenchError> {
    let service = system.set_up(&host.dom0, &args.program)?;
    for disk in tallies.chunk_by_mut(Tally::has_same_disk) {
        let Some(&mut Tally { storage, queues, .. }) = disk.first_mut() else { continue };
        stage.at(format!("a {} with {queues} queues", storage.name()));
        host.attach(&system.words(storage), queues)?;
        for tally in disk {
            if interrupt::asked() {
                return Err(BenchError::Interrupted);
            }
            stage.at(format!("a {}, {queues} queues, {}", storage.name(), tally.phase.name));
            let figure = host.once(queues, tally.phase, args.seconds)?;
            match system {
                System::Ringmain => tally.ringmain.push(figure),
                System::Kernel => tally.kernel.push(figure),
            }
        }
        host.guest.detach_disk(TIMEOUT)?;
    }
    drop(service);
    Ok(system.tear_down(&host.dom0)?)
}

/// The Xen host, with a guest that has no disk between the runs.
struct Host {
    dom0: Dom0,
    guest: Domain,
}

impl Host {
    fn boot(testbed: &Testbed, args: &Args) -> Result<Host, GuestError> {
        let fio = Image::prepare_fio_alone(&args.cache)?;
        let dom0 = Dom0::boot(testbed, &Options::counted(args.dom0))?;
        dom0.must(&make_storage(), TIMEOUT)?;
        let spec = DomainSpec {
            // The frontend takes no more queues than the guest has processors. Further ones would
            // only wait for each other.
            cpus: args.queues.iter().copied().max().unwrap_or(1),
            memory: MEMORY,
            ramdisk: dom0.ramdisk_with_fio(&fio)?,
            ..DomainSpec::new("disks")
        };
        let guest = dom0.create(&spec)?;
        guest.ready(TIMEOUT)?;
        Ok(Host { dom0, guest })
    }

    fn attach(&self, words: &str, queues: u16) -> Result<(), GuestError> {
        let found = self.guest.attach_disk(words, queues, TIMEOUT)?;
        match found == queues {
            true => Ok(()),
            false => Err(failed("disks", words.into(), format!("{found} queues"))),
        }
    }

    /// One run of one point.
    fn once(&self, queues: u16, phase: &Phase, seconds: u16) -> Result<Figure, GuestError> {
        let time = Duration::from_secs(seconds.into());
        let command = fio::requests(DISK, queues, LENGTH, phase, time);
        let before = instructions(&self.dom0)?;
        let said = self.guest.must(&command, TIMEOUT + time * SLOWNESS)?;
        let used = instructions(&self.dom0)? - before;
        let figures = fio::figures(&said, phase.operation);
        let iops = figures.map_err(|_| failed("disks", command, said))?.iops;
        Ok(Figure { iops, instructions: used / (iops * f64::from(seconds)) })
    }
}
