//! Instructions per frame, step by step, of the way between two guests.
//!
//! Times tell what a user gets, but on a shared machine they tell it to within some percent at
//! best. Instructions are counted: the same program on the same traffic executes the same of them,
//! whatever else the machine does. They know nothing of caches, so they are no substitute for
//! times, but a step that grew is seen at once.

mod budget;
mod callgrind;
mod case;
mod result;
pub(super) mod rounds;
mod stage;

use std::io;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use crate::folders::folder;
use crate::load;
use budget::{Budget, COMPILER};
use callgrind::Profile;
use case::Case;
use result::{Count, Counted, header};
use stage::Stages;

/// Options of the count.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only these cases [default: all]
    #[arg(long, value_name = "CASE,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(case::names()))]
    pub only: Vec<String>,

    /// Also show the N source files with the most instructions in each case
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "json")]
    pub files: usize,

    /// Fail if a case takes more instructions than the budget says, or far fewer
    #[arg(long)]
    pub check: bool,

    /// Record the counts as the new budget
    #[arg(long, conflicts_with_all = ["check", "only"])]
    pub record: bool,

    /// File of the budget
    #[arg(long, value_name = "FILE", default_value = "crates/lab/budget.toml")]
    pub budget: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-instructions", value_parser = folder)]
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
        /// The output of the program.
        text: String,
    },
    /// The profile lacks a step.
    #[error(
        "{0}: the steps of the datapath are not in callgrind's output: is this a release build?"
    )]
    NoSteps(&'static str),
    /// The budget is damaged.
    #[error("the budget: {0}")]
    Budget(String),
    /// The result can't be written.
    #[error(transparent)]
    Result(#[from] Box<super::BenchError>),
    /// Some cases are not within the budget.
    #[error("cases that are not as recorded: {0}")]
    Changed(usize),
    /// A round of the worker left frames behind.
    #[error("a round of the worker left {left} of {sent} frames undelivered")]
    Stuck {
        /// Frames sent.
        sent: usize,
        /// Frames not received.
        left: u64,
    },
    /// A capture lacked frames.
    #[error("a capture has {read} of the {frames} frames of a round of the worker")]
    Captured {
        /// Frames that were read.
        read: u64,
        /// Frames that passed.
        frames: u64,
    },
    /// There was no capture.
    #[error(transparent)]
    Capture(#[from] network::capture::CaptureError),
    /// The guests.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// A port.
    #[error(transparent)]
    Port(#[from] vhost_user::net::StartError),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
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

/// Counts. The table, or JSON, goes to standard output; the result file and callgrind's own files
/// to `args.out`.
///
/// # Errors
/// When valgrind is missing, a case cannot be run, or one is not within the budget that is to be
/// kept.
pub fn run(args: &Args) -> Result<(), InstructionsError> {
    if let Some(name) = &args.play {
        for case in case::select(std::slice::from_ref(name)) {
            println!("{}", rounds::run_case(&case)?);
        }
        return Ok(());
    }
    std::fs::create_dir_all(&args.out)
        .map_err(|e| InstructionsError::system("make a folder for the results", e))?;
    let began = super::unix_time();
    if !args.json {
        println!("{}", header());
    }
    let counts = case::select(&args.only)
        .into_iter()
        .map(|case| count(args, case))
        .collect::<Result<Vec<_>, _>>()?;
    let counted =
        Counted { began, ringmain: env!("CARGO_PKG_VERSION"), compiler: COMPILER, counts };
    let file = super::write(&args.out, began, &counted).map_err(Box::new)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&counted).unwrap_or_default());
    } else {
        println!("results: {}", file.display());
    }
    if args.record {
        return Budget::of(&counted.counts).write(&args.budget);
    }
    if args.check { check(args, &counted.counts) } else { Ok(()) }
}

/// Compares with what is recorded, and says what is not the same.
fn check(args: &Args, counts: &[Count]) -> Result<(), InstructionsError> {
    let budget = Budget::read(&args.budget)?;
    let complaints = budget.complaints(counts);
    for line in budget.caution().iter().chain(&complaints) {
        eprintln!("{line}");
    }
    if complaints.is_empty() { Ok(()) } else { Err(InstructionsError::Changed(complaints.len())) }
}

/// Counts one case, and shows its row.
fn count(args: &Args, case: Case) -> Result<Count, InstructionsError> {
    let out = args.out.join(case.name).with_extension("callgrind");
    let said = callgrind::run(&["bench-instructions", "--play", case.name], &out)?;
    let frames: f64 =
        said.trim().parse().map_err(|_| InstructionsError::Failed(said.trim().into()))?;
    let text = std::fs::read_to_string(&out)
        .map_err(|e| InstructionsError::system("read callgrind's output", e))?;
    let profile = Profile::parse(&text)?;
    let stages = Stages::of(&profile, frames).ok_or(InstructionsError::NoSteps(case.name))?;
    let count = Count::new(case.name, case.title, stages);
    if !args.json {
        println!("{}", count.row());
        let mut files: Vec<_> = profile.files.iter().collect();
        files.sort_by(|a, b| b.1.cmp(a.1));
        for (file, cost) in files.into_iter().take(args.files) {
            println!("    {:>8.1}  {file}", *cost as f64 / frames);
        }
    }
    Ok(count)
}
