//! The demonstration: two stock guests, eight TCP streams from one to the other, with one, two and four queues changed
//! while both run; a table, and a report with plots.

mod fabric;
mod point;
mod report;

use crate::daemon::DaemonError;
use crate::guest::{Accel, Guest, GuestError, Image, Mac, Nic, Shell, Spec};
use crate::interrupt;
use crate::progress::Progress;
use fabric::Fabric;
use point::Point;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The numbers of queues that are tried.
const QUEUES: [u16; 3] = [1, 2, 4];
/// Queue pairs of each guest's interface.
const MOST_QUEUES: u16 = 4;
/// Longest boot and longest command, on a machine that does much else at the same time.
const PATIENCE: Duration = Duration::from_secs(90);
/// The guests' addresses in the experiment's own network.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Options of the demonstration.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder for the report
    #[arg(long, value_name = "DIR", default_value = "out/demo")]
    pub out: PathBuf,

    /// Folder with the guests' kernel, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = ".cache")]
    pub cache: PathBuf,

    /// Seconds of traffic for each number of queues
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=600))]
    pub seconds: u16,

    /// TCP streams at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: u16,

    /// Virtual CPUs of each guest
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub cpus: u16,

    /// What carries the frames; given twice, one after the other, for comparison
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ringmain")]
    pub over: Vec<Over>,
}

/// What carries the frames from guest to guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// The daemon, over vhost-user
    Ringmain,
    /// A Linux bridge with multi-queue TAP devices, in a network namespace of its own
    Bridge,
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
    /// A guest's tool said something unexpected.
    #[error("iperf printed no sum: {0}")]
    NoSum(String),
    /// The plot.
    #[error("cannot draw: {0}")]
    Draw(String),
    /// A file of the report, or the signal handlers.
    #[error("{what}: {source}")]
    File {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl DemoError {
    /// Whether the user ended it.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, DemoError::Guest(GuestError::Interrupted))
    }
}

/// What was measured over one of the fabrics.
#[derive(Debug)]
struct Series {
    over: Over,
    points: Vec<Point>,
}

/// Runs the demonstration. The table goes to standard output, the report to `args.out`, progress to standard error.
/// Everything that it started is gone when it returns, with or without an error.
///
/// # Errors
/// When something is missing or fails, or the user interrupts.
pub fn run(args: &Args) -> Result<(), DemoError> {
    interrupt::listen().map_err(|source| DemoError::File { what: "cannot handle signals".into(), source })?;
    let progress = Progress::new();

    let stage = progress.stage("what guests are made of");
    let image = Image::prepare(&args.cache)?;
    let accel = Accel::probe(&image, &args.cache)?;
    stage.done(match accel {
        Accel::Kvm => "guests run on KVM",
        Accel::Tcg => "no working KVM here: guests run in software, far slower than in real life",
    });

    let mut results = Vec::new();
    for over in &args.over {
        let points = measure(args, *over, &image, accel, &progress)?;
        results.push(Series { over: *over, points });
    }
    for series in &results {
        println!("\n{}\n{}", series.over.title(), point::table(&series.points));
    }
    let report = report::write(args, accel, &results)?;
    println!("report: {}", report.display());
    Ok(())
}

fn measure(args: &Args, over: Over, image: &Image, accel: Accel, progress: &Progress) -> Result<Vec<Point>, DemoError> {
    let stage = progress.stage(format!("starting {}", over.title()));
    let fabric = Fabric::start(over)?;
    stage.done("");

    let stage = progress.stage("booting two guests");
    let guests = boot(args, &fabric, image, accel)?;
    let [sender, receiver] = &guests;
    for (guest, address) in guests.iter().zip(ADDRESSES) {
        guest.must(&format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up"), PATIENCE)?;
        if over == Over::Ringmain && accel == Accel::Tcg {
            guest.must(&deal_to_all(args.cpus), PATIENCE)?;
        }
    }
    // The interfaces may take a moment to come up.
    sender.must(&format!("for try in $(seq 30); do ping -c 1 -w 2 {} && exit; done; false", ADDRESSES[1]), PATIENCE)?;
    let _server = receiver.spawn("iperf -s")?;
    stage.done("they see each other");

    QUEUES.iter().map(|queues| point::measure(args, &fabric, sender, receiver, *queues, progress)).collect()
}

/// Boots the sender and the receiver, both at the same time.
fn boot(args: &Args, fabric: &Fabric, image: &Image, accel: Accel) -> Result<[Guest; 2], DemoError> {
    let start = |name: &str, index: u8| {
        let nic = Nic {
            link: fabric.link(index.into()),
            mac: Mac([0x52, 0x54, 0, 0x77, 0, index + 1]),
            queues: MOST_QUEUES,
            options: Vec::new(),
        };
        let spec = Spec { cpus: args.cpus, nics: vec![nic], namespace: fabric.namespace(), ..Spec::new(name) };
        Guest::start(image, accel, &spec)
    };
    let guests = [start("sender", 0)?, start("receiver", 1)?];
    guests.iter().try_for_each(|guest| guest.ready(PATIENCE))?;
    Ok(guests)
}

/// A command that deals what comes out of the queues to all CPUs, by flow. Where the device has no vectors, all queues
/// interrupt the same CPU, and nearly everything would be done there.
fn deal_to_all(cpus: u16) -> String {
    let mask = (1u32 << cpus) - 1;
    format!("for queue in /sys/class/net/eth0/queues/rx-*; do echo {mask:x} >$queue/rps_cpus; done")
}

impl Over {
    fn title(self) -> &'static str {
        match self {
            Over::Ringmain => "Ringmain",
            Over::Bridge => "Linux bridge",
        }
    }
}
