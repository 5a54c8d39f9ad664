//! The demonstration of disks: a guest with three disks of one, two and four queues, random and
//! serial reads and writes on each, a verification of the data, a table, and a report with plots.

pub(crate) mod fio;
pub(crate) mod point;
mod report;
mod site;
mod stock;
mod thread;
mod xen;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::daemon::DaemonError;
use crate::disk_load::DiskLoadError;
use crate::folders::folder;
use crate::guest::{Accel, GuestError};
use crate::interrupt;
use crate::plot::PlotError;
use crate::program::Program;
use crate::progress::Progress;
use point::{PHASES, Point, Verified};
use site::{QUEUES, Site, Used};

/// Options of the demonstration.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder for the report
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/demo-disk", value_parser = folder)]
    pub out: PathBuf,

    /// Folder with the files that guests boot, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = "CLONE/.cache", value_parser = folder)]
    pub cache: PathBuf,

    /// Folder for the images, which are removed afterwards [default: the folder for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// Size of each of the three images in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub size: u32,

    /// Seconds for each kind of request
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    pub seconds: f64,

    /// Virtual CPUs of a stock guest; Linux uses no more queues than CPUs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(4..=16))]
    pub cpus: u16,

    /// Where the guest runs
    #[arg(long, value_enum, value_name = "WHERE", default_value = "qemu")]
    pub guests: Platform,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// Where the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Platform {
    /// A stock kernel under QEMU, with virtio-blk over vhost-user, and fio in the guest
    Qemu,
    /// A stock kernel on Xen, and fio in the guest. Xen itself runs under QEMU. The demo takes many
    /// minutes
    Xen,
    /// A thread of this program that drives the rings of the disks itself; the demo takes seconds
    Embedded,
}

impl Args {
    /// The time for each kind of requests.
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.05, 3600.0))
    }
}

/// How the guest ran, for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Qemu(Accel),
    Xen,
    Embedded,
}

/// Why the demonstration ended early.
#[derive(Debug, thiserror::Error)]
pub enum DiskDemoError {
    /// The guest, or what guests are made of.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The guest that is a thread.
    #[error(transparent)]
    Load(#[from] DiskLoadError),
    /// The guest's tool said something unexpected.
    #[error("fio printed no result: {0}")]
    Fio(String),
    /// The guest uses another number of queues than its disk offers.
    #[error("the guest uses {found} queues of a disk with {wanted}")]
    Queues {
        /// Queues of the disk.
        wanted: u16,
        /// Queues that the guest uses.
        found: String,
    },
    /// Requests failed.
    #[error("the daemon failed {0} requests of the guest")]
    Failed(u64),
    /// The plot.
    #[error("cannot draw: {0}")]
    Draw(#[from] PlotError),
    /// A file of the report, an image, or the signal handlers.
    #[error("{what}: {source}")]
    File {
        /// The operation that failed.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl DiskDemoError {
    /// Whether the user interrupted it.
    pub fn is_interrupt(&self) -> bool {
        matches!(
            self,
            DiskDemoError::Guest(GuestError::Interrupted)
                | DiskDemoError::Load(DiskLoadError::Interrupted)
        )
    }
}

/// A guest with disks, and the daemon that serves them.
trait DiskGuest {
    /// Attaches the disk with so many queues, in the place of another. Nothing is to be done where
    /// the guest has all disks from the beginning.
    fn attach(&self, queues: u16) -> Result<(), DiskDemoError> {
        let _ = queues;
        Ok(())
    }

    /// Writes to the disk with so many queues, reads everything back and compares. Returns how many
    /// bytes were compared.
    fn verify(&self, queues: u16) -> Result<u64, DiskDemoError>;

    /// Sends the requests of a phase to the disk with so many queues.
    fn measure(&self, queues: u16, phase: &point::Phase) -> Result<point::Figures, DiskDemoError>;

    /// The work of the daemon so far for the disk with so many queues.
    fn used(&self, queues: u16) -> Result<Used, DiskDemoError>;

    /// The processes that guest and daemon are in.
    fn processes(&self) -> Vec<u32>;
}

/// All that was measured.
#[derive(Debug)]
struct Results {
    kind: Kind,
    points: Vec<Point>,
    verified: Vec<Verified>,
}

/// Runs the demonstration. The table goes to standard output, the report to `args.out`, progress to
/// standard error. Everything that it started is gone when it returns, with or without an error.
///
/// # Errors
/// When something is missing or fails, data is not what was written, or the user interrupts.
pub fn run(args: &Args) -> Result<(), DiskDemoError> {
    interrupt::listen()
        .map_err(|source| DiskDemoError::File { what: "cannot handle signals".into(), source })?;
    let progress = Progress::new();
    let start = || {
        let stage = progress.stage("starting Ringmain with three disks");
        Site::start(args).inspect(|_| stage.done(""))
    };
    let results = match args.guests {
        Platform::Qemu => {
            let site = start()?;
            let (guest, accel) = stock::boot(args, &site, &progress)?;
            measure(&guest, Kind::Qemu(accel), &progress)?
        }
        Platform::Xen => measure(&xen::boot(args, &progress)?, Kind::Xen, &progress)?,
        Platform::Embedded => {
            let site = start()?;
            measure(&thread::ThreadGuest::new(args, &site), Kind::Embedded, &progress)?
        }
    };
    println!("\n{}", point::table(&results.points, &results.verified));
    let [page, json] = report::write(args, &results)?;
    println!("report: {}\nfigures: {}", page.display(), json.display());
    Ok(())
}

fn measure(
    guest: &dyn DiskGuest,
    kind: Kind,
    progress: &Progress,
) -> Result<Results, DiskDemoError> {
    let mut results = Results { kind, points: Vec::new(), verified: Vec::new() };
    for queues in QUEUES {
        let plural = if queues == 1 { "queue" } else { "queues" };
        let stage = progress.stage(format!("{queues} {plural}, written and read back"));
        guest.attach(queues)?;
        let verified = Verified { queues, bytes: guest.verify(queues)? };
        stage.done(&format!("{} MiB are as they were written", verified.bytes >> 20));
        results.verified.push(verified);
        for phase in &PHASES {
            let stage = progress.stage(format!("{queues} {plural}, {}", phase.name));
            let point = point::measure(guest, queues, phase)?;
            stage.done(&format!("{:.0} IOPS", point.figures.iops));
            results.points.push(point);
        }
    }
    Ok(results)
}
