//! The command line of the experiments.

use std::path::PathBuf;
use std::time::Duration;

use super::report;
use super::runner::{self, Order};
use crate::experiment::{Experiment, LabError, Platform, Record, Size, compare};
use crate::experiments;
use crate::folders::folder;
use crate::interrupt;
use crate::program::Program;
use crate::progress::Progress;

/// The command of the laboratory.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// List the experiments, and the platforms on which their guests can run
    List,
    /// Run experiments. An interrupted run is continued by default
    Run(Run),
    /// Make a page with plots of the newest runs, or of the given runs
    Report(Report),
    /// Show two runs side by side, with the significance of differences
    Compare(Compare),
}

/// `ringmain-lab run`.
#[derive(Clone, Debug, clap::Args)]
pub struct Run {
    /// Names of the experiments
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,

    /// Run all experiments; with --guests, only the experiments that can run on that platform
    #[arg(long, conflicts_with = "names")]
    pub all: bool,

    /// Platform of the guests [default: the first platform of the experiment]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub guests: Option<Platform>,

    /// Measure fewer points, with fewer and shorter repetitions
    #[arg(long, conflicts_with = "tiny")]
    pub quick: bool,

    /// Run for only a few seconds, to test the experiment; the results are not meaningful
    #[arg(long)]
    pub tiny: bool,

    /// Number of repetitions of each point [default: set by the experiment]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,

    /// Length of the measurement in each repetition, in seconds [default: set by the experiment]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,

    /// Limit of the CPU time of other processes, in percent of one CPU. A repetition above the
    /// limit counts as disturbed, and is repeated
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0, value_parser = percent)]
    pub disturbed_above: f64,

    /// Start a new run instead of continuing an unfinished one
    #[arg(long)]
    pub fresh: bool,

    /// Folder for the records of runs
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/lab", value_parser = folder)]
    pub out: PathBuf,

    /// Folder with the files that guests boot, filled by scripts/deps
    #[arg(long, value_name = "DIR", env = "RINGMAIN_CACHE", default_value = "CLONE/.cache", value_parser = folder)]
    pub cache: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// `ringmain-lab report`.
#[derive(Clone, Debug, clap::Args)]
pub struct Report {
    /// Records of runs [default: the newest record of each experiment in the folder]
    #[arg(value_name = "RECORD")]
    pub records: Vec<PathBuf>,

    /// Folder with the records, where the report is written, too
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/lab", value_parser = folder)]
    pub out: PathBuf,
}

/// `ringmain-lab compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct Compare {
    /// Record of a run
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// Record of another run of the same experiment
    #[arg(value_name = "B")]
    pub b: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let range = "give seconds, 0.05 to 3600";
    let seconds: f64 = text.parse().map_err(|_| range.to_owned())?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(range.into())
    }
}

/// Percent of one CPU, of which the machine has several.
fn percent(text: &str) -> Result<f64, String> {
    let most = 100 * std::thread::available_parallelism().map_or(1, usize::from);
    let range = || format!("give percent of one CPU, 0 to {most}");
    let percent: f64 = text.parse().map_err(|_| range())?;
    if (0.0..=most as f64).contains(&percent) { Ok(percent) } else { Err(range()) }
}

/// Carries out the command. Results go to standard output, progress to standard error.
///
/// # Errors
/// See [`LabError`].
pub fn command(command: &Command) -> Result<(), LabError> {
    match command {
        Command::List => list(),
        Command::Run(args) => return run(args),
        Command::Report(args) => return make_report(args),
        Command::Compare(args) => println!("{}", compared(args)?),
    }
    Ok(())
}

fn list() {
    for experiment in experiments::ALL {
        let about = experiment.about();
        let platforms: Vec<&str> = about.platforms.iter().map(|platform| platform.name()).collect();
        println!("{:<14} {} (--guests {})", about.name, about.title, platforms.join(", "));
    }
}

fn run(args: &Run) -> Result<(), LabError> {
    interrupt::listen().map_err(LabError::system("handle signals"))?;
    let progress = Progress::new();
    let mut broken = None;
    for experiment in chosen(args)? {
        let order = order(args, experiment);
        match runner::run(experiment, &order, &progress) {
            Ok(record) => println!("{}", record.display()),
            // The results of the others are kept.
            Err(error @ LabError::Broken { .. }) => {
                progress.line(&error.to_string());
                broken.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    broken.map_or(Ok(()), Err)
}

fn chosen(args: &Run) -> Result<Vec<&'static dyn Experiment>, LabError> {
    if args.all {
        let here = |it: &&&dyn Experiment| {
            args.guests.is_none_or(|platform| it.about().platforms.contains(&platform))
        };
        return Ok(experiments::ALL.iter().filter(here).copied().collect());
    }
    let find =
        |name: &String| experiments::find(name).ok_or_else(|| LabError::Unknown(name.clone()));
    args.names.iter().map(find).collect()
}

fn order(args: &Run, experiment: &dyn Experiment) -> Order {
    let first = experiment.about().platforms.first().copied().unwrap_or(Platform::Embedded);
    let size = match (args.tiny, args.quick) {
        (true, _) => Size::Tiny,
        (_, true) => Size::Quick,
        _ => Size::Full,
    };
    Order {
        platform: args.guests.unwrap_or(first),
        size,
        rounds: args.repetitions,
        time: args.seconds,
        // The tiny form shows only what other processes have no effect on.
        disturbed_above: if args.tiny { 1e6 } else { args.disturbed_above / 100.0 },
        fresh: args.fresh,
        out: args.out.clone(),
        cache: args.cache.clone(),
        program: args.program.clone(),
    }
}

fn make_report(args: &Report) -> Result<(), LabError> {
    let records = match args.records.as_slice() {
        [] => {
            let (records, faults) = Record::all(&args.out)?;
            faults.iter().for_each(|fault| eprintln!("left out: {fault}"));
            report::newest(records)
        }
        named => named.iter().map(|path| Record::read(path)).collect::<Result<_, _>>()?,
    };
    if records.is_empty() {
        return Err(LabError::Nothing(args.out.clone()));
    }
    println!("{}", report::write(&records, &args.out)?.display());
    Ok(())
}

fn compared(args: &Compare) -> Result<String, LabError> {
    let (a, b) = (Record::read(&args.a)?, Record::read(&args.b)?);
    let name = &a.configuration.experiment;
    let experiment = experiments::find(name).ok_or_else(|| LabError::Unknown(name.clone()))?;
    compare::table(&a, &b, experiment.about())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(
            seconds("0").is_err()
                && seconds("-1").is_err()
                && seconds("NaN").is_err()
                && seconds("1e9").is_err()
        );
        assert_eq!((percent("0"), percent("99.5")), (Ok(0.0), Ok(99.5)));
        assert!(["inf", "NaN", "-1", "1e9", "x"].iter().all(|text| percent(text).is_err()));
    }
}
