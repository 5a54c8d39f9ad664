//! Every option of the embedded hypervisor and of the port that serves its guests: on against off,
//! alternating, in one invocation.
//!
//! Guests are our own frontend with a thread for each queue, in this process; the daemon is
//! another, started anew for each run. Contention inside the hypervisor is measured without either,
//! by threads that use grants and do nothing else.

pub(crate) mod case;
mod figure;
pub(crate) mod frames;
pub mod grants;
pub(crate) mod load;
mod result;
pub(crate) mod site;
mod streams;
pub(crate) mod test_guest;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use hypervisor::embedded::Design;

use super::{BenchError, catch_signals, find, unix_time, write};
use crate::folders::folder;
use crate::interrupt;
use crate::program::Program;
use crate::progress::Progress;
use case::{CASES, Setting};
use figure::Figure;
use load::Load;
use result::{Comparison, Tally};

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Runs of each load, with each option on and off
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Seconds measured in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub seconds: f64,

    /// Measure only these options [default: all]
    #[arg(long, value_name = "OPTION,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(CASES.iter().map(|case| case.name)))]
    pub only: Vec<String>,

    /// Do not run the loads that need iperf
    #[arg(long)]
    pub without_iperf: bool,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-embedded", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// A way of using grants directly, without guests or a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Granted pages are copied to granted pages.
    Copy {
        /// Threads that do it.
        threads: usize,
    },
    /// Granted pages are mapped and unmapped.
    Map {
        /// Threads that do it.
        threads: usize,
    },
}

/// How many grants of one guest are used, in millions a second, with this inner design of the
/// hypervisor.
///
/// # Errors
/// When memory is short, or when the hypervisor refuses a valid operation.
pub fn use_grants(design: Design, how: Use, time: Duration) -> std::io::Result<f64> {
    let load = match how {
        Use::Copy { threads } => Load::Copy { threads },
        Use::Map { threads } => Load::Map { threads },
    };
    let setting = Setting { label: "", keys: "", design, offset: 0 };
    Ok(grants::measure(&setting, load, time)?.rate)
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
    let began = unix_time();
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let cases = CASES.iter().filter(|case| wanted(case.name));
    let loads = cases.flat_map(|case| case.loads.iter().map(move |load| Tally::new(case, *load)));
    let mut tallies: Vec<Tally> =
        loads.filter(|tally| !args.without_iperf || !tally.load.is_iperf()).collect();
    let progress = Progress::new();
    for number in 0..args.runs {
        let stage = progress.stage(format!("round {} of {}", number + 1, args.runs));
        for tally in &mut tallies {
            stage.at(format!("{}, {}", tally.case.name, tally.load));
            round(args, &binary, number, tally)?;
        }
        stage.done("");
    }
    let comparison = Comparison::new(began, args.runs, args.seconds, &tallies);
    let file = write(&args.out, began, &comparison)?;
    println!("\n{}\nresults: {}", comparison.table(), file.display());
    Ok(())
}

/// One run of one load, off and on; who is first changes from round to round.
fn round(args: &Args, binary: &Path, number: u32, tally: &mut Tally) -> Result<(), BenchError> {
    let time = Duration::from_secs_f64(args.seconds);
    let mut figures = [Figure::default(); 2];
    for half in 0..2 {
        if interrupt::asked() {
            return Err(BenchError::Interrupted);
        }
        let side = (half + number as usize) % 2;
        let setting = [&tally.case.off, &tally.case.on][side];
        match once(binary, setting, tally.load, time) {
            Ok(figure) => figures[side] = figure,
            Err(_) if interrupt::asked() => return Err(BenchError::Interrupted),
            Err(error) => {
                tally.failures.push(format!("{}: {error}", setting.label));
                return Ok(());
            }
        }
    }
    tally.rounds.push(figures);
    Ok(())
}

fn once(
    binary: &Path,
    setting: &Setting,
    load: Load,
    time: Duration,
) -> Result<Figure, BenchError> {
    match load {
        Load::Frames { .. } | Load::Paced | Load::Echo => site::measure(setting, load, time),
        // iperf counts its first second, too.
        Load::Streams => streams::measure(binary, setting, time.max(Duration::from_secs(1))),
        Load::Wire => wire::measure(binary, setting, time.max(Duration::from_secs(1))),
        Load::Map { .. } | Load::Copy { .. } => {
            let failed = |source| BenchError::Start { what: "use grants", source };
            grants::measure(setting, load, time).map_err(failed)
        }
    }
}
