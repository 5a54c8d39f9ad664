//! Rates and latencies that innocent guests keep beside a hostile neighbour: each attack beside
//! nobody, beside a fair neighbour and beside the hostile one, in turn, in one invocation.
//!
//! Every run has a daemon of its own. The innocents' frames are first paced, which shows delays and
//! losses, and then sent as fast as their ring takes them, which shows their share of the workers.
//! Ratios are taken round by round; medians are shown.

mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use serde::Serialize;
use vhost_user_driver::DriverError;

use super::{BenchError, catch_signals, find, write};
use crate::daemon::Daemon;
use crate::folders::folder;
use crate::interrupt;
use crate::isolation::case::{CASES, Case, Setting};
use crate::isolation::innocents::{Figures, Innocents, PORTS};
use crate::isolation::neighbour::{Role, Running, Sockets};
use crate::isolation::{config, disks};
use crate::program::Program;
use crate::progress::Progress;
use load::cpu;
use table::Comparison;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of rounds. In each round, every case runs three times: alone, beside the fair
    /// neighbour and beside the hostile neighbour
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Seconds of each measurement; each run is measured once at a fixed rate and once at full
    /// speed
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub seconds: f64,

    /// Fixed rate, in frames per second
    #[arg(long, value_name = "PPS", default_value_t = 20_000)]
    pub rate: u64,

    /// Measure only these cases [default: all]
    #[arg(long, value_name = "CASE,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(CASES.iter().map(|case| case.name)))]
    pub only: Vec<String>,

    /// Fixed rate of an innocent disk, in requests per second
    #[arg(long, value_name = "IOPS", default_value_t = 2000)]
    pub disk_rate: u64,

    /// CPU of the first worker
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub worker_cpu: usize,

    /// CPU of the guests, and of the second worker
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub guest_cpu: usize,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-isolation", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// The neighbour of the innocents in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// Nobody.
    Nobody,
    /// The fair neighbour.
    Fair,
    /// The hostile one.
    Hostile,
}

impl Beside {
    const ALL: [Beside; 3] = [Beside::Nobody, Beside::Fair, Beside::Hostile];

    fn role(self) -> Option<Role> {
        match self {
            Beside::Nobody => None,
            Beside::Fair => Some(Role::Fair),
            Beside::Hostile => Some(Role::Hostile),
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Beside whom.
    pub beside: Beside,
    /// The innocents' paced frames.
    pub paced: Figures,
    /// Their frames at full speed.
    pub full: Figures,
    /// The reason why the neighbour could not continue, if it could not.
    pub neighbour_ended: Option<String>,
}

/// All runs of one case.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The case.
    pub case: &'static Case,
    /// By round, each in the order of [`Beside::ALL`].
    pub rounds: Vec<[Run; 3]>,
    /// Runs that failed, each in one line.
    pub failures: Vec<String>,
}

/// Compares. The table goes to standard output, the result file to `args.out`, progress to standard
/// error.
///
/// # Errors
/// When nothing can be started or written, or the user interrupts. Single runs that fail are part
/// of the result.
pub fn run(args: &Args) -> Result<(), BenchError> {
    catch_signals()?;
    let binary = find(&args.program)?;
    let began = super::unix_time();
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let cases = CASES.iter().filter(|case| wanted(case.name));
    let mut tallies: Vec<Tally> =
        cases.map(|case| Tally { case, rounds: Vec::new(), failures: Vec::new() }).collect();
    let progress = Progress::new();
    for number in 0..args.runs {
        let stage = progress.stage(format!("round {} of {}", number + 1, args.runs));
        for tally in &mut tallies {
            stage.at(tally.case.name);
            round(args, &binary, tally)?;
        }
        stage.done("");
    }
    let comparison = Comparison::new(began, args, &tallies);
    let file = write(&args.out, began, &comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

/// One round of a case.
fn round(args: &Args, binary: &Path, tally: &mut Tally) -> Result<(), BenchError> {
    let mut runs = Vec::new();
    for beside in Beside::ALL {
        if interrupt::asked() {
            return Err(BenchError::Interrupted);
        }
        match once(args, binary, tally.case, beside) {
            Ok(run) => runs.push(run),
            Err(_) if interrupt::asked() => return Err(BenchError::Interrupted),
            Err(error) => {
                tally.failures.push(format!("beside {beside:?}: {error}"));
                return Ok(());
            }
        }
    }
    tally.rounds.extend(<[Run; 3]>::try_from(runs).ok());
    Ok(())
}

/// One run, with a daemon of its own.
fn once(
    args: &Args,
    binary: &Path,
    case: &'static Case,
    beside: Beside,
) -> Result<Run, BenchError> {
    let cpus = [args.worker_cpu, args.guest_cpu];
    let cpus = &cpus[..usize::from(case.workers).min(cpus.len())];
    let image = |source| BenchError::Start { what: "make an image", source };
    let mut written = Ok(());
    let config = |dir: &Path| {
        let text = case.config(dir, cpus);
        text.unwrap_or_else(|error| {
            written = Err(error);
            String::new()
        })
    };
    let daemon = Daemon::start(binary, config, None);
    written.map_err(image)?;
    let daemon = daemon?;
    let decoy = match case.has_decoy() && beside == Beside::Fair {
        true => Some(Daemon::start(binary, config::decoy, None)?),
        false => None,
    };
    let sockets = Sockets {
        shared: daemon.dir().to_owned(),
        decoy: decoy.as_ref().map(|decoy| decoy.dir().to_owned()),
    };
    let neighbour = match beside.role() {
        Some(role) => Some(
            case.start(&sockets, role, Some(args.guest_cpu))
                .map_err(|source| BenchError::Start { what: "start a neighbour", source })?,
        ),
        None => None,
    };
    let third = case.third().filter(|_| neighbour.is_some());
    // The innocents run in a thread of their own, because processes that this thread starts may use
    // all CPUs.
    let [paced, full] = std::thread::scope(|scope| {
        let innocents = scope.spawn(|| match case.setting {
            Setting::InnocentDisk => innocent_disk(args, daemon.dir()),
            _ => innocents(args, daemon.dir(), third),
        });
        innocents.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let ended = neighbour.map(Running::stop).and_then(|ended| ended.error);
    Ok(Run { beside, paced, full, neighbour_ended: ended.map(|error| error.to_string()) })
}

/// The figures of the innocents, paced and at full speed.
fn innocents(args: &Args, dir: &Path, third: Option<u8>) -> Result<[Figures; 2], BenchError> {
    cpu::pin(args.guest_cpu)
        .map_err(|source| BenchError::Start { what: "use the guests' CPU", source })?;
    let [a, b] = PORTS.map(|name| dir.join(name).with_extension("sock"));
    let mut innocents = Innocents::connect([&a, &b], third)?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut run = |rate| -> Result<Figures, DriverError> {
        innocents.run(rate, time / 4)?;
        innocents.run(rate, time)
    };
    Ok([run(Some(args.rate))?, run(None)?])
}

/// The same of a disk with one request at a time.
fn innocent_disk(args: &Args, dir: &Path) -> Result<[Figures; 2], BenchError> {
    let time = Duration::from_secs_f64(args.seconds);
    let read = |rate| disks::read(dir, rate, time, Some(args.guest_cpu));
    Ok([read(Some(args.disk_rate))?, read(None)?])
}
