//! Instructions per frame, step by step, of the way between two guests.
//!
//! Times tell what a user gets, but on a shared machine they tell it to within some percent at best. Instructions are counted:
//! the same program on the same traffic executes the same of them, whatever else the machine does. They know nothing of
//! caches, so they are no substitute for times, but a step that grew is seen at once.

mod callgrind;
mod case;
mod play;
mod stage;

use std::io;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use crate::load;
use callgrind::Profile;
use case::Case;
use stage::Stage;

/// Options of the count.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these cases [default: all]
    #[arg(long, value_name = "CASE,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(case::names()))]
    pub only: Vec<String>,

    /// Show the source files, too, that the instructions are of: so many of each case
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub files: usize,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "out/bench-instructions")]
    pub out: PathBuf,

    /// Be what is counted
    #[arg(long, value_name = "CASE", hide = true)]
    pub play: Option<String>,
}

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum InstructionsError {
    /// There is no valgrind.
    #[error("valgrind is not installed: run scripts/deps instructions")]
    NoValgrind,
    /// The program failed under valgrind.
    #[error("valgrind: {0}")]
    Failed(String),
    /// Its output is not understood.
    #[error("line {line} of callgrind's output makes no sense: {text}")]
    Nonsense {
        /// Which line, from 1 on.
        line: usize,
        /// What it says.
        text: String,
    },
    /// The profile lacks a step.
    #[error("{0}: the steps of the datapath are not in callgrind's output: is this a release build?")]
    NoSteps(&'static str),
    /// A turn of the worker left frames behind.
    #[error("a turn of the worker left {left} of {sent} frames undelivered")]
    Stuck {
        /// Frames sent.
        sent: usize,
        /// Frames not received.
        left: u64,
    },
    /// The guests.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// A port.
    #[error(transparent)]
    Port(#[from] vhost_user::device::StartError),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl InstructionsError {
    fn system(what: &'static str, source: io::Error) -> Self {
        Self::System { what, source }
    }
}

/// What was counted of one case.
#[derive(Clone, Debug)]
struct Count {
    case: Case,
    /// Per frame, in the order of [`Stage::ALL`].
    stages: [f64; 6],
    total: f64,
    /// Instructions per frame by source file, the most first.
    files: Vec<(String, f64)>,
}

/// Counts. The table goes to standard output, callgrind's own files to `args.out`.
///
/// # Errors
/// When valgrind is missing, or a case can't be played.
pub fn run(args: &Args) -> Result<(), InstructionsError> {
    if let Some(name) = &args.play {
        let case = case::select(std::slice::from_ref(name));
        for case in case.iter().filter(|case| case.name == name) {
            println!("{}", play::play(case)?);
        }
        return Ok(());
    }
    std::fs::create_dir_all(&args.out).map_err(|e| InstructionsError::system("make a folder for the results", e))?;
    println!("{}", header());
    for case in case::select(&args.only) {
        let count = count(args, case)?;
        println!("{}", count.row());
        for (file, cost) in count.files.iter().take(args.files) {
            println!("    {cost:>8.1}  {file}");
        }
    }
    Ok(())
}

fn count(args: &Args, case: Case) -> Result<Count, InstructionsError> {
    let out = args.out.join(case.name).with_extension("callgrind");
    let said = callgrind::run(&["bench-instructions", "--play", case.name], &out)?;
    let frames: f64 = said.trim().parse().map_err(|_| InstructionsError::Failed(said.trim().into()))?;
    let text = std::fs::read_to_string(&out).map_err(|e| InstructionsError::system("read callgrind's output", e))?;
    let profile = Profile::parse(&text)?;
    let (stages, total) = stage::divide(&profile).ok_or(InstructionsError::NoSteps(case.name))?;
    let each = |cost: u64| cost as f64 / frames;
    let mut files: Vec<_> = profile.files.into_iter().map(|(file, cost)| (file, each(cost))).collect();
    files.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(Count { case, stages: stages.map(each), total: each(total), files })
}

fn header() -> String {
    let stages: String = Stage::ALL.map(|stage| format!("{:>10}", stage.name())).concat();
    format!("{:<24}{stages}{:>10}", "instructions per frame", "total")
}

impl Count {
    fn row(&self) -> String {
        let stages: String = self.stages.map(|cost| format!("{cost:>10.1}")).concat();
        format!("{:<24}{stages}{:>10.1}", self.case.title, self.total)
    }
}
