//! Ringmain beside OVS-DPDK: the same generator on both, in turn, in one invocation.
//!
//! Each peer has one worker on a CPU of its own, the generator another. Runs are short and interleaved, so that whatever
//! drifts on the machine drifts for both; a run during which somebody else took the CPU is repeated. Figures are medians.

pub mod embedded;
mod hugepages;
mod iperf;
mod ovs;
mod point;
mod result;
pub mod xen;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::builder::PossibleValuesParser;
use serde::Serialize;

use crate::daemon::{Daemon, DaemonError};
use crate::guest::GuestError;
use crate::interrupt;
use crate::load::{self, Report};
use crate::progress::Progress;
use ovs::Ovs;
use point::Point;
use result::{Comparison, Tally};

/// How often a disturbed run is tried again before it is kept, and marked.
const RETRIES: u32 = 4;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Runs of each point and each peer
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Seconds measured in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,

    /// Only these points [default: all]
    #[arg(long, value_name = "POINT,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(point::names()))]
    pub only: Vec<String>,

    /// Without OVS-DPDK
    #[arg(long)]
    pub alone: bool,

    /// CPU of the back-end's one worker
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub worker_cpu: usize,

    /// CPU of the generator
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub generator_cpu: usize,

    /// Percent of one CPU that others may take before a run counts as disturbed
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub disturbed_above: f64,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "out/bench")]
    pub out: PathBuf,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A peer is not installed.
    #[error("{0} is not installed: run scripts/deps peers, or compare with nothing (--alone)")]
    Missing(&'static str),
    /// Something could not be started or made.
    #[error("cannot {what}: {source}")]
    Start {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A tool of a peer failed.
    #[error("{tool}: {said}")]
    Tool {
        /// The command.
        tool: String,
        /// What it said.
        said: String,
    },
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The network namespace for a peer, or a Xen host.
    #[error(transparent)]
    Host(#[from] GuestError),
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Whether the user ended it.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Interrupted)
    }
}

/// What is compared.
struct Peers {
    daemon: Daemon,
    ovs: Option<Ovs>,
}

/// Compares. The table goes to standard output, the result file to `args.out`, progress to standard error. Everything that was started or
/// reserved is gone when this returns, with or without an error.
///
/// # Errors
/// When something is missing or does not start, or the user interrupts. Single runs that fail are part of the result.
pub fn run(args: &Args) -> Result<(), BenchError> {
    interrupt::listen().map_err(|source| BenchError::Start { what: "handle signals", source })?;
    let points = point::select(&args.only);
    let progress = Progress::new();
    let stage = progress.stage(if args.alone { "starting Ringmain" } else { "starting Ringmain and OVS-DPDK" });
    let peers = Peers::start(args)?;
    stage.done("");
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut tallies: Vec<Tally> = points.into_iter().map(Tally::new).collect();
    for number in 0..args.runs {
        let stage = progress.stage(format!("round {} of {}", number + 1, args.runs));
        for tally in &mut tallies {
            stage.at(tally.point.title);
            measure(args, &peers, number, tally)?;
        }
        stage.done("");
    }
    let comparison = Comparison {
        began,
        cpu: cpu_name(),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        ringmain: env!("CARGO_PKG_VERSION"),
        ovs_dpdk: peers.ovs.as_ref().map(|ovs| ovs.version().into()),
        runs: args.runs,
        seconds: args.seconds,
        rows: tallies.iter().flat_map(|tally| tally.rows(peers.ovs.is_some())).collect(),
    };
    drop(peers);
    let file = write(&args.out, began, &comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

impl Peers {
    fn start(args: &Args) -> Result<Self, BenchError> {
        let binary = std::env::current_exe().map_err(|source| BenchError::Start { what: "find ringmain", source })?;
        let cpu = args.worker_cpu;
        let config = |dir: &Path| {
            let port = |name: &str| {
                let socket = dir.join(name).with_extension("sock");
                format!(
                    "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 2\n",
                    socket.display()
                )
            };
            format!("[workers]\ncount = 1\ncpus = [{cpu}]\n{}{}", port("a"), port("b"))
        };
        let ovs = if args.alone { None } else { Some(Ovs::start(cpu, args.generator_cpu)?) };
        let daemon = Daemon::start(&binary, config, None)?;
        Ok(Self { daemon, ovs })
    }

    /// Sockets, process and the generator's side, of peer 0 (Ringmain) or 1.
    fn place(&self, peer: usize) -> Option<(String, u32, &'static str)> {
        let join = |[a, b]: [PathBuf; 2]| format!("{},{}", a.display(), b.display());
        match peer {
            0 => {
                let sockets = ["a.sock", "b.sock"].map(|name| self.daemon.dir().join(name));
                Some((join(sockets), self.daemon.id(), "--client"))
            }
            _ => self.ovs.as_ref().map(|ovs| (join(ovs.sockets()), ovs.id(), "--server")),
        }
    }
}

/// One run of one point on each peer, those that were disturbed again.
fn measure(args: &Args, peers: &Peers, number: u32, tally: &mut Tally) -> Result<(), BenchError> {
    for turn in 0..2 {
        // Who goes first changes from round to round.
        let peer = (turn + number as usize) % 2;
        let Some(place) = peers.place(peer) else { continue };
        if let Some(ovs) = &peers.ovs {
            ovs.let_run(peer == 1);
        }
        for attempt in 0..=RETRIES {
            if interrupt::asked() {
                return Err(BenchError::Interrupted);
            }
            let outcome = once(args, &tally.point, &place);
            if attempt < RETRIES && outcome.as_ref().is_ok_and(|report| report.disturbed) {
                tally.repeated += 1;
                continue;
            }
            note(tally, peer, number, outcome);
            break;
        }
    }
    Ok(())
}

fn once(args: &Args, point: &Point, (sockets, pid, side): &(String, u32, &str)) -> Result<Report, load::Error> {
    let line = format!(
        "--ports {sockets} {side} {} --duration {} --warm-up 0.3 --cpu {} --backend-pid {pid} --disturbed-above {}",
        point.options, args.seconds, args.generator_cpu, args.disturbed_above,
    );
    let options = load::Args::from_words(line.split_whitespace());
    let options = options.map_err(|error| load::Error::Options(error.to_string()))?;
    load::run_until(&options, &interrupt::flag())
}

fn note(tally: &mut Tally, peer: usize, number: u32, outcome: Result<Report, load::Error>) {
    let who = ["Ringmain", "OVS-DPDK"][peer];
    match outcome {
        Ok(report) if report.is_right() => {
            tally.disturbed += u32::from(report.disturbed);
            let figures = tally.point.units.iter().map(|unit| unit.of(&report)).collect();
            tally.figures[peer].push((number, figures));
        }
        Ok(report) => {
            let fault = report.directions.iter().find_map(|d| d.first_fault.clone());
            let fault = fault.unwrap_or_else(|| "frames came late or twice".into());
            tally.failures.push(format!("{who}: {fault}"));
        }
        Err(error) => tally.failures.push(format!("{who}: {error}")),
    }
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

pub(crate) fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    name.trim_start_matches([' ', '\t', ':']).into()
}
