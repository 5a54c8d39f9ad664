//! The demonstration: two guests, eight TCP streams from one to the other, with one, two and four
//! queues changed while both run; a table, and a report with plots.

pub mod bare_wire;
mod comparison;
mod embedded;
mod fabric;
pub(crate) mod point;
pub(crate) mod qemu;
mod report;
pub(crate) mod site;
mod turns;
pub(crate) mod xen;

use crate::daemon::DaemonError;
use crate::folders::folder;
use crate::guest::{Accel, GuestError, Image, Release};
use crate::interrupt;
use crate::ovs::OvsError;
use crate::program::Program;
use crate::progress::Progress;
use crate::statistics;
use point::Point;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub(crate) use turns::Turns;
use xen::Xen;

/// The numbers of queues that are tried.
const QUEUES: [u16; 3] = [1, 2, 4];
/// Queue pairs of each guest's interface.
const MOST_QUEUES: u16 = 4;
/// Longest boot and longest command, on a machine that does much else at the same time.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The guests' addresses in the experiment's own network.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Options of the demonstration.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder for the report
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/demo", value_parser = folder)]
    pub out: PathBuf,

    /// Folder with the files that guests boot, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = "CLONE/.cache", value_parser = folder)]
    pub cache: PathBuf,

    /// Seconds of traffic for each number of queues
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=600))]
    pub seconds: u16,

    /// Number of concurrent TCP streams
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: u16,

    /// Virtual CPUs of each guest
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub cpus: u16,

    /// Where the guests run
    #[arg(long, value_enum, value_name = "WHERE", default_value = "qemu")]
    pub guests: Platform,

    /// With --guests qemu: source of QEMU and of the guests' kernel
    #[arg(long, value_enum, value_name = "RELEASE", default_value_t = Release::Installed)]
    pub release: Release,

    /// Datapath that carries the frames. If the option is given several times, the datapaths take
    /// turns: each has its own guests, and those of the others are stopped meanwhile
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ringmain")]
    pub over: Vec<Over>,

    /// With --guests qemu: number of rounds in which the datapaths take turns. The comparison shows
    /// the medians, and the report shows the last round
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,

    /// Workers of the daemon [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Option<u16>,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// Where the guests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Platform {
    /// Under QEMU, with virtio over vhost-user
    Qemu,
    /// On Xen, with Ringmain in its dom0; Xen itself runs under QEMU
    Xen,
    /// Processes with paravirtual interfaces of the daemon's embedded hypervisor; the demo takes
    /// seconds
    Embedded,
}

/// How they are virtualised, for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Qemu(Accel),
    Xen,
    Embedded,
}

/// The datapath that carries the frames from guest to guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// The daemon
    Ringmain,
    /// A Linux bridge with multi-queue TAP devices, in a network namespace of its own
    Bridge,
    /// OVS-DPDK, with a thread that polls on the second CPU
    OvsDpdk,
    /// One thread that passes frames between the queues of the guests and does nothing else
    BareWire,
}

/// Why the demonstration ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A guest, or what guests are made of.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The guests run where nothing but the daemon is set up to carry frames.
    #[error("--over with other datapaths than ringmain and --rounds are for --guests qemu")]
    OnlyRingmain,
    /// OVS-DPDK.
    #[error(transparent)]
    Ovs(#[from] OvsError),
    /// A guest's tool said something unexpected.
    #[error("iperf printed no sum: {0}")]
    NoSum(String),
    /// The plot.
    #[error("cannot draw: {0}")]
    Draw(String),
    /// A file of the report, or the signal handlers.
    #[error("{what}: {source}")]
    File {
        /// The operation that failed.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl DemoError {
    /// Whether the user interrupted OVS-DPDK.
    pub fn is_interrupt(&self) -> bool {
        match self {
            DemoError::Guest(GuestError::Interrupted) => true,
            DemoError::Ovs(error) => error.is_interrupt(),
            _ => false,
        }
    }
}

/// The measurements over one of the fabrics.
#[derive(Debug)]
struct Series {
    over: Over,
    points: Vec<Point>,
}

/// Runs the demonstration. The table goes to standard output, the report to `args.out`, progress to
/// standard error. Everything that it started is gone when it returns, with or without an error.
///
/// # Errors
/// When something is missing or fails, or the user interrupts.
pub fn run(args: &Args) -> Result<(), DemoError> {
    interrupt::listen()
        .map_err(|source| DemoError::File { what: "cannot handle signals".into(), source })?;
    let progress = Progress::new();

    let (kind, rounds) = match args.guests {
        Platform::Qemu => under_qemu(args, &progress)?,
        Platform::Xen => on_xen(args, &progress)?,
        Platform::Embedded => as_processes(args, &progress)?,
    };
    for series in rounds.iter().flatten() {
        println!("\n{}\n{}", series.over.title(), point::table(&series.points));
    }
    if let Some(comparison) = comparison::table(&rounds) {
        println!("\n{comparison}");
    }
    let last = rounds.last().map(Vec::as_slice).unwrap_or_default();
    let report = report::write(args, kind, last)?;
    println!("report: {}", report.display());
    Ok(())
}

/// The series of each round.
type Rounds = Vec<Vec<Series>>;

fn under_qemu(args: &Args, progress: &Progress) -> Result<(Kind, Rounds), DemoError> {
    let stage = progress.stage("what guests are made of");
    let accel = Accel::probe(&Image::prepare(&args.cache)?, &args.cache)?;
    let image = args.release.image(&args.cache)?;
    stage.done(match accel {
        Accel::Kvm => "guests run on KVM",
        Accel::Tcg => "no working KVM here: guests run in software, far slower than on hardware",
    });
    let turns = Turns::start(args, &args.over, (&image, accel), progress)?;
    Ok((Kind::Qemu(accel), all_rounds(args, &turns, progress)?))
}

/// Measures each number of queues in all rounds. The first datapath changes from round to round.
fn all_rounds(args: &Args, turns: &Turns, progress: &Progress) -> Result<Rounds, DemoError> {
    let none = |over: &Over| Series { over: *over, points: Vec::new() };
    let mut rounds: Rounds =
        (0..args.rounds).map(|_| args.over.iter().map(none).collect()).collect();
    for queues in QUEUES {
        for (number, round) in (0..).zip(&mut rounds) {
            for which in statistics::turns((0..round.len()).collect(), number) {
                let point = turns.measure(args, which, queues, progress)?;
                round[which].points.push(point);
            }
        }
    }
    Ok(rounds)
}

fn on_xen(args: &Args, progress: &Progress) -> Result<(Kind, Rounds), DemoError> {
    only_ringmain(args)?;
    let site = Xen::start(args, Over::Ringmain, progress)?;
    let _server = point::serve(&site, progress)?;
    let one = |queues| point::measure(args, &site, queues, progress);
    Ok((Kind::Xen, only_series(QUEUES.into_iter().map(one).collect::<Result<_, _>>()?)))
}

fn as_processes(args: &Args, progress: &Progress) -> Result<(Kind, Rounds), DemoError> {
    only_ringmain(args)?;
    Ok((Kind::Embedded, only_series(embedded::measure(args, progress)?)))
}

fn only_series(points: Vec<Point>) -> Rounds {
    vec![vec![Series { over: Over::Ringmain, points }]]
}

fn only_ringmain(args: &Args) -> Result<(), DemoError> {
    if args.over.iter().any(|over| *over != Over::Ringmain) || args.rounds > 1 {
        Err(DemoError::OnlyRingmain)
    } else {
        Ok(())
    }
}

/// The demonstration's streams, for those who compare: stock guests under QEMU, with a given number
/// of queues.
pub(crate) struct Streams {
    args: Args,
    image: Image,
    accel: Accel,
    queues: u16,
}

/// The rates of the streams.
pub(crate) struct Outcome {
    /// Gb/s in sum.
    pub(crate) gbps: f64,
    /// CPUs that others took meanwhile.
    pub(crate) others: f64,
}

impl Streams {
    /// Finds in `cache` what guests are made of: the newest QEMU and kernel there are, since queues
    /// of a vhost-user device have interrupts of their own only under a recent QEMU.
    ///
    /// # Errors
    /// When it is not there.
    pub(crate) fn prepare(
        program: &Program,
        cache: &Path,
        queues: u16,
        seconds: u16,
    ) -> Result<Streams, DemoError> {
        let (installed, accel) = under(cache)?;
        let newer = Release::Backports;
        let (release, image) = match (newer.emulator(cache), newer.image(cache)) {
            (Ok(_), Ok(image)) => (newer, image),
            _ => (Release::Installed, installed),
        };
        let usual = Args::of(program, cache, Platform::Qemu, Over::Ringmain);
        Ok(Streams { args: Args { seconds, release, ..usual }, image, accel, queues })
    }

    /// Boots two guests for each of these datapaths.
    ///
    /// # Errors
    /// When the guests or what carries their frames fail, or the user interrupts.
    pub(crate) fn start(&self, over: &[Over], progress: &Progress) -> Result<Turns, DemoError> {
        Turns::start(&self.args, over, (&self.image, self.accel), progress)
    }

    /// Measures one of the datapaths, by its place among those that were started.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn over(
        &self,
        turns: &Turns,
        which: usize,
        progress: &Progress,
    ) -> Result<Outcome, DemoError> {
        let point = turns.measure(&self.args, which, self.queues, progress)?;
        Ok(Outcome { gbps: point.gbps, others: point.others })
    }
}

/// The image that guests under QEMU boot, and the accelerator that runs them.
pub(crate) fn under(cache: &Path) -> Result<(Image, Accel), GuestError> {
    let image = Image::prepare(cache)?;
    let accel = Accel::probe(&image, cache)?;
    Ok((image, accel))
}

impl Args {
    /// Guests of two CPUs, eight streams, and no report.
    pub(crate) fn of(program: &Program, cache: &Path, guests: Platform, over: Over) -> Args {
        let (out, cache, program) = (PathBuf::new(), cache.into(), program.clone());
        Args {
            out,
            cache,
            seconds: 8,
            streams: 8,
            cpus: 2,
            guests,
            release: Release::Installed,
            over: vec![over],
            rounds: 1,
            workers: None,
            program,
        }
    }
}

/// The `[workers]` table of the daemon's configuration; empty for the default.
fn workers(count: Option<u16>) -> String {
    count.map_or_else(String::new, |count| format!("[workers]\ncount = {count}\n"))
}

/// Where the daemon's program is.
fn find(program: &Program) -> Result<PathBuf, DemoError> {
    program.find().map_err(|source| DemoError::File { what: "cannot find ringmain".into(), source })
}

impl Over {
    fn title(self) -> &'static str {
        match self {
            Over::Ringmain => "Ringmain",
            Over::Bridge => "Linux bridge",
            Over::OvsDpdk => "OVS-DPDK",
            Over::BareWire => "bare wire",
        }
    }
}
