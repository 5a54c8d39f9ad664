//! Ringmain beside OVS-DPDK and beside a bare copy: the same generator on all, in turn, in one
//! invocation.
//!
//! Each has one worker on a CPU of its own, the generator another. Runs are short and interleaved,
//! so that slow changes of the machine affect all of them. A run during which another process took
//! the CPU, or the machine changed, is repeated. Figures are medians; ratios are taken round by
//! round. Each comparison adds a line to a history, which is drawn.

pub mod bare_disk;
pub mod ceiling;
pub mod copies;
pub mod disk;
pub mod embedded;
mod goal;
mod guests;
mod history;
pub mod interrupt_thread;
mod iperf;
pub mod isolation;
mod measure;
pub mod migration;
pub mod overlay;
pub(crate) mod peers;
mod picture;
mod point;
mod result;
mod series;
pub mod signals;
pub(crate) mod state;
mod tally;
mod workers;
pub mod xen;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::PossibleValuesParser;
use serde::Serialize;
use vhost_user_driver::DriverError;

use crate::disk_load::DiskLoadError;

use crate::daemon::DaemonError;
use crate::demo::DemoError;
use crate::folders::folder;
use crate::guest::GuestError;
use crate::interrupt;
use crate::ovs::OvsError;
use crate::plot::PlotError;
use crate::program::Program;
use crate::progress::Progress;
use history::History;
use measure::{FrameBackends, Plan};
use peers::Peers;
use point::Site;
use result::Comparison;
use tally::Tally;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of runs of each point and each peer; disturbed runs are repeated if possible
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Make no further runs where the runs do not agree on a ratio
    #[arg(long)]
    pub no_more: bool,

    /// Seconds measured in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    pub seconds: f64,

    /// Measure only these points [default: all]
    #[arg(long, value_name = "POINT,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(point::names()))]
    pub only: Vec<String>,

    /// Measure Ringmain only: no OVS-DPDK, no bare copy, no bridge
    #[arg(long)]
    pub alone: bool,

    /// Do not measure OVS-DPDK
    #[arg(long)]
    pub no_ovs: bool,

    /// Compare with this program ringmain, of another commit, instead of with OVS-DPDK and the bare
    /// copy. Only the generator's points are measured, and the history stays as it is
    #[arg(long, value_name = "PATH", conflicts_with_all = ["alone", "no_ovs"])]
    pub against: Option<PathBuf>,

    /// Measure nothing, and redraw the history of earlier runs
    #[arg(long)]
    pub history: bool,

    /// CPU of the back-end's only worker
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub worker_cpu: usize,

    /// CPU of the generator
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub generator_cpu: usize,

    /// Limit of the CPU time of other processes, in percent of one CPU. A run above the limit
    /// counts as disturbed
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub disturbed_above: f64,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench", value_parser = folder)]
    pub out: PathBuf,

    /// Folder with the files that QEMU guests boot, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = "CLONE/.cache", value_parser = folder)]
    pub cache: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// OVS-DPDK.
    #[error(transparent)]
    Ovs(#[from] OvsError),
    /// A program could not be started, or a file not created.
    #[error("cannot {what}: {source}")]
    Start {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The network namespace for a peer, or a Xen host.
    #[error(transparent)]
    Host(#[from] GuestError),
    /// Guests of the generator's.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// Innocent guests.
    #[error("an innocent guest: {0}")]
    Innocent(#[from] DriverError),
    /// An innocent disk.
    #[error("an innocent disk: {0}")]
    InnocentDisk(#[from] DiskLoadError),
    /// Stock guests.
    #[error(transparent)]
    Guests(#[from] DemoError),
    /// The plot.
    #[error("cannot draw: {0}")]
    Draw(#[from] PlotError),
    /// Frames that were damaged on their way.
    #[error("a stream was damaged: the table says which")]
    Damaged,
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Whether the user interrupted OVS-DPDK.
    pub fn is_interrupt(&self) -> bool {
        match self {
            Self::Guests(error) => error.is_interrupt(),
            Self::Ovs(error) => error.is_interrupt(),
            Self::Interrupted
            | Self::Host(GuestError::Interrupted)
            | Self::Load(load::Error::Interrupted) => true,
            _ => false,
        }
    }
}

/// Compares. The table goes to standard output, results and history to `args.out`, progress to
/// standard error. Everything that was started or reserved is gone when this returns, with or
/// without an error.
///
/// # Errors
/// When something is missing or does not start, or the user interrupts. Single runs that fail are
/// part of the result.
pub fn run(args: &Args) -> Result<(), BenchError> {
    if args.history {
        return draw(&args.out);
    }
    catch_signals()?;
    let progress = Progress::new();
    let began = unix_time();
    let points = point::select(&args.only).into_iter();
    if args.against.is_some() {
        return commits(args, points.map(Tally::with_another_commit).collect(), &progress, began);
    }
    let mut tallies: Vec<Tally> = points.map(Tally::new).collect();
    let mut ovs_dpdk = None;
    let ended = traffic(args, &mut tallies, &progress, &mut ovs_dpdk)
        .and_then(|()| workers::measure(args, &mut tallies, &progress))
        .and_then(|()| guests::measure(args, &mut tallies, &progress));
    keep_interrupted(ended, &tallies)?;
    tallies.retain(|tally| !tally.runs.is_empty() || !tally.failures.is_empty());
    let comparison =
        Comparison { ovs_dpdk, ..Comparison::new(began, args.runs, args.seconds, &tallies) };
    publish(&args.out, &comparison)
}

/// Compares two commits, at the generator's points.
fn commits(
    args: &Args,
    mut tallies: Vec<Tally>,
    progress: &Progress,
    began: u64,
) -> Result<(), BenchError> {
    let ended = traffic(args, &mut tallies, progress, &mut None);
    keep_interrupted(ended, &tallies)?;
    tallies.retain(|tally| !tally.runs.is_empty() || !tally.failures.is_empty());
    print(&args.out, &Comparison::new(began, args.runs, args.seconds, &tallies))
}

/// From now on, a user who interrupts is heard by [`interrupt::asked`].
fn catch_signals() -> Result<(), BenchError> {
    interrupt::listen().map_err(|source| BenchError::Start { what: "handle signals", source })
}

/// The program that is measured.
fn find(program: &Program) -> Result<PathBuf, BenchError> {
    program.find().map_err(|source| BenchError::Start { what: "find ringmain", source })
}

/// Results from before an interrupt by the user are kept; that is no error.
fn keep_interrupted(ended: Result<(), BenchError>, tallies: &[Tally]) -> Result<(), BenchError> {
    match ended {
        Err(error)
            if error.is_interrupt() && tallies.iter().any(|tally| !tally.runs.is_empty()) =>
        {
            Ok(())
        }
        ended => ended,
    }
}

/// Prints a comparison, writes the result file, adds to the history, and draws that.
fn publish(out: &Path, comparison: &Comparison) -> Result<(), BenchError> {
    print(out, comparison)?;
    History::append(out, comparison)?;
    draw(out)
}

/// Prints a comparison, and writes the result file.
fn print(out: &Path, comparison: &Comparison) -> Result<(), BenchError> {
    let file = write(out, comparison.began, comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

/// Measures the generator's points: first those of two guests, then those of more. Back-ends that
/// do not come up for more guests are failures of these points. Returns the version of OVS-DPDK, if
/// it was measured.
fn traffic(
    args: &Args,
    tallies: &mut [Tally],
    progress: &Progress,
    ovs_dpdk: &mut Option<String>,
) -> Result<(), BenchError> {
    let sites: BTreeSet<Site> = tallies.iter().filter_map(|tally| tally.point.site()).collect();
    for site in sites {
        let is_first = tallies.iter().all(|tally| tally.runs.is_empty());
        let is_here = |tally: &&mut Tally| tally.point.site() == Some(site);
        let mut measured: Vec<_> = tallies.iter_mut().filter(is_here).collect();
        let started = format!("starting Ringmain and its peers for {} guests", site.guests);
        let stage = progress.stage(started);
        let peers = match Peers::start(args, site) {
            Err(error) if !is_first && !error.is_interrupt() => {
                let line = error.to_string().replace('\n', "; ");
                measured.iter_mut().for_each(|tally| tally.failures.push(line.clone()));
                continue;
            }
            peers => peers?,
        };
        *ovs_dpdk = peers.ovs_version().map(Into::into);
        stage.done("");
        let cpus = [args.generator_cpu, args.worker_cpu];
        let plan = Plan { runs: args.runs, until_steady: !args.no_more, cpus };
        let backends = FrameBackends { args, peers: &peers };
        measure::measure_rounds(plan, &backends, &mut measured, progress)?;
    }
    Ok(())
}

/// Draws the history, and says where it is.
fn draw(out: &Path) -> Result<(), BenchError> {
    let page = History::read(out)?.draw(out)?;
    println!("history: {}", page.display());
    Ok(())
}

/// Writes the result file, named by its time; returns its path.
fn write(dir: &Path, began: u64, comparison: &impl Serialize) -> Result<PathBuf, BenchError> {
    let failed = |source| BenchError::Start { what: "write the result file", source };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let file = dir.join(format!("{began}.json"));
    let text = serde_json::to_string_pretty(comparison).map_err(|e| failed(e.into()))?;
    std::fs::write(&file, text + "\n").map_err(failed)?;
    Ok(file)
}

/// Seconds since 1970.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The version of the machine's kernel.
fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into()
}

/// The commit that is checked out where this runs, with a `+` if something was changed since;
/// `None` outside of a repository.
fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .args(words)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=9", "HEAD"])?;
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if clean { commit } else { commit + "+" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_by_the_user_are_recognised() {
        assert!(BenchError::Interrupted.is_interrupt());
        assert!(BenchError::from(GuestError::Interrupted).is_interrupt());
        assert!(BenchError::from(load::Error::Interrupted).is_interrupt());
        assert!(BenchError::from(DemoError::Guest(GuestError::Interrupted)).is_interrupt());
        assert!(!BenchError::Ovs(OvsError::Missing).is_interrupt());
    }
}
