//! Instructions per frame, step by step, of the way between guests: the `bench-instructions`
//! command, and the program that it counts.
//!
//! Times show the performance for users, but on a shared machine only to within some percent. This
//! program counts instructions: the same program on the same traffic executes the same number,
//! whatever else the machine does. Instructions do not show cache misses, so they do not replace
//! times, but a step that grew is seen at once.

#![forbid(unsafe_code)]

mod args;
mod budget;
mod callgrind;
mod case;
mod error;
mod result;
mod rounds;
mod stage;
mod tap;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;

use args::Args;
use budget::{Budget, COMPILER};
use callgrind::Profile;
use case::Case;
use error::InstructionsError;
use result::{Count, Counted, header};
use stage::Stages;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts. The table, or JSON, goes to standard output; the result file and callgrind's own files
/// to `args.out`.
///
/// # Errors
/// When valgrind is missing, a case cannot be run, or a case exceeds the budget that must
/// be kept.
fn run(args: &Args) -> Result<(), InstructionsError> {
    if let Some(name) = &args.play {
        for case in case::select(std::slice::from_ref(name)) {
            println!("{}", rounds::run_case(&case)?);
        }
        return Ok(());
    }
    std::fs::create_dir_all(&args.out)
        .map_err(|e| InstructionsError::system("make a folder for the results", e))?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if !args.json {
        println!("{}", header());
    }
    let counts = case::select(&args.only)
        .into_iter()
        .map(|case| count(args, case))
        .collect::<Result<Vec<_>, _>>()?;
    let counted =
        Counted { began, ringmain: env!("CARGO_PKG_VERSION"), compiler: COMPILER, counts };
    let file = counted.write(&args.out)?;
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

/// Compares the counts with the recorded budget, and reports differences.
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
    let said = callgrind::run(&["--play", case.name], &out)?;
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
