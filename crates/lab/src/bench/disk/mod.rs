//! Ringmain's disks beside qemu-storage-daemon's: the same driver on both, in turn, in one
//! invocation.
//!
//! Each run starts its back-end anew, with its worker on a CPU of its own, and the driver on
//! another CPU. Both serve the same image, one after the other. Ratios are taken round by round, as
//! for network ports.

mod backend;
mod fio;
mod image;
mod point;

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::measure::{self, Plan};
use super::result::Comparison;
use super::tally::Tally;
use super::{BenchError, catch_signals, draw, keep_interrupted, publish, unix_time};
use crate::folders::folder;
use crate::program::Program;
use crate::progress::Progress;
use backend::DiskBackends;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of runs of each point and each back-end; disturbed runs are repeated if possible
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Seconds measured in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,

    /// Measure only these points [default: all]
    #[arg(long, value_name = "POINT,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(point::names()))]
    pub only: Vec<String>,

    /// Measure Ringmain only: no qemu-storage-daemon, no fio
    #[arg(long)]
    pub alone: bool,

    /// Measure nothing, and redraw the history of earlier runs
    #[arg(long)]
    pub history: bool,

    /// Size of the images in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub size: u32,

    /// Folder for the image in memory
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub memory: PathBuf,

    /// Folder for the image on a drive [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub drive: Option<PathBuf>,

    /// CPU of the back-end's only worker
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub worker_cpu: usize,

    /// CPU of the driver, and of a second worker
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub generator_cpu: usize,

    /// Limit of the CPU time of other processes, in percent of one CPU. A run above the limit
    /// counts as disturbed
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub disturbed_above: f64,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-disk", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// Compares. The table goes to standard output, results and history to `args.out`, progress to
/// standard error.
///
/// # Errors
/// When something is missing or cannot be written, or the user interrupts. Single runs that fail
/// are part of the result.
pub fn run(args: &Args) -> Result<(), BenchError> {
    if args.history {
        return draw(&args.out);
    }
    catch_signals()?;
    let progress = Progress::new();
    let began = unix_time();
    let mut tallies: Vec<Tally> =
        point::select(&args.only).map(|disk| Tally::new(disk.point)).collect();
    let stage = progress.stage("making images");
    let backends = DiskBackends::prepare(args)?;
    stage.done("");
    let cpus = [args.generator_cpu, args.worker_cpu];
    let plan = Plan { runs: args.runs, until_steady: false, cpus };
    let mut measured: Vec<&mut Tally> = tallies.iter_mut().collect();
    keep_interrupted(measure::measure_rounds(plan, &backends, &mut measured, &progress), &tallies)?;
    let comparison = Comparison {
        qemu_storage_daemon: backends.version(),
        ..Comparison::new(began, args.runs, args.seconds, &tallies)
    };
    publish(&args.out, &comparison)
}
