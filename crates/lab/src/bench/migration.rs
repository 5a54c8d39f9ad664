//! How long a guest that migrates is out of reach: a stock guest goes there and back between two
//! daemons, under a TCP stream whose ends are compared and numbered datagrams at a steady pace.
//!
//! The outage is the longest gap between two datagrams. QEMU stops the guest for a part of it and
//! says for how long; the rest is what is measured.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{BenchError, catch_signals, find, unix_time, write};
use crate::folders::folder;
use crate::guest::{Accel, Image, Release};
use crate::interrupt;
use crate::migration::{Between, Echo, Hosts, HostsError, LIMIT, Machine, Paced};
use crate::program::Program;
use crate::progress::Progress;
use crate::statistics::Summary;
use crate::table::aligned;

/// The outage beyond QEMU's downtime that is wanted, in milliseconds.
const WANTED: f64 = 150.0;
/// How long datagrams must have come before a migration begins, and after it.
const STEADY: Duration = Duration::from_secs(1);
/// Datagrams that must have come in that time.
const ENOUGH: u64 = 20;

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of migrations with each kind of ring
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Measure only this kind of ring [default: both]
    #[arg(long, value_name = "RINGS")]
    pub only: Option<Rings>,

    /// Network between the two hosts
    #[arg(long, value_name = "NETWORK", value_enum, default_value_t)]
    pub between: Between,

    /// Source of QEMU and of the guest's kernel
    #[arg(long, value_name = "RELEASE", value_enum, default_value_t = Release::Installed)]
    pub release: Release,

    /// Pause between two megabytes of the TCP stream, in seconds. With 0, the stream is as fast as
    /// the guest echoes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub pause: f64,

    /// Folder with the files that guests boot, filled by scripts/deps
    #[arg(long, value_name = "DIR", default_value = "CLONE/.cache", env = "RINGMAIN_CACHE", hide_env_values = true, value_parser = folder)]
    pub cache: PathBuf,

    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "CLONE/out/bench-migration", value_parser = folder)]
    pub out: PathBuf,

    /// The program that is measured.
    #[command(flatten)]
    pub program: Program,
}

/// A kind of ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Rings {
    /// Split rings.
    Split,
    /// Packed rings.
    Packed,
}

/// One migration. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Run {
    /// The longest gap between two datagrams.
    pub outage: f64,
    /// How long QEMU says that the guest was stopped.
    pub downtime: f64,
    /// How long the migration took.
    pub total: f64,
    /// The longest gap in the second before.
    pub gap_before: f64,
    /// Datagrams that were lost.
    pub lost: u64,
}

/// All migrations of one kind of ring.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The kind.
    pub rings: Rings,
    /// In their order.
    pub runs: Vec<Run>,
    /// Whether the TCP stream came back as it was sent.
    pub stream_right: bool,
    /// Datagrams that arrived damaged, twice or out of order.
    pub datagrams_wrong: u64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
struct Measurement {
    began: u64,
    release: Release,
    between: Between,
    accelerator: &'static str,
    series: Vec<Series>,
}

impl From<HostsError> for BenchError {
    fn from(error: HostsError) -> BenchError {
        match error {
            HostsError::Daemon(error) => error.into(),
            HostsError::Guest(error) => error.into(),
        }
    }
}

/// Measures. The table goes to standard output, the result file to `args.out`, progress to standard
/// error.
///
/// # Errors
/// When something is missing or cannot be written, a migration fails, a stream is damaged, or the
/// user interrupts.
pub fn run(args: &Args) -> Result<(), BenchError> {
    catch_signals()?;
    let binary = find(&args.program)?;
    let began = unix_time();
    let accel = Accel::probe(&Image::prepare(&args.cache)?, &args.cache)?;
    let (image, emulator) = (args.release.image(&args.cache)?, args.release.emulator(&args.cache)?);
    let progress = Progress::new();
    let mut series = Vec::new();
    for rings in [Rings::Split, Rings::Packed] {
        if args.only.is_some_and(|only| only != rings) {
            continue;
        }
        let options = match rings {
            Rings::Split => Vec::new(),
            Rings::Packed => vec!["packed=on".into()],
        };
        let (image, emulator) = (image.clone(), emulator.clone());
        let machine = Machine { image, accel, emulator, options };
        series.push(measure(args, &binary, rings, machine, &progress)?);
    }
    let accelerator = accel.name();
    let measurement =
        Measurement { began, release: args.release, between: args.between, accelerator, series };
    let file = write(&args.out, began, &measurement)?;
    println!("\n{}\nresults: {}", measurement.table(), file.display());
    if measurement.series.iter().all(Series::is_right) { Ok(()) } else { Err(BenchError::Damaged) }
}

fn measure(
    args: &Args,
    binary: &Path,
    rings: Rings,
    machine: Machine,
    progress: &Progress,
) -> Result<Series, BenchError> {
    let stage = progress.stage(format!("{rings:?} rings"));
    let hosts = Hosts::start(binary, machine, args.between)?;
    let mut guest = hosts.boot(hosts.socket(0))?;
    let pause = Duration::try_from_secs_f64(args.pause).unwrap_or_default();
    let echo = Echo::start(hosts.network(), &guest, pause)?;
    let paced = Paced::start(hosts.network(), &guest)?;
    let mut series = Series { rings, runs: Vec::new(), stream_right: false, datagrams_wrong: 0 };
    for number in 1..=args.runs {
        stage.at(format!("migration {number} of {}", args.runs));
        let before = steady(&paced)?;
        let (moved, migrated) = hosts.migrate(guest, number as usize % 2)?;
        guest = moved;
        let since = Instant::now();
        let mut during = paced.take();
        while during.arrived == 0 || since.elapsed() < STEADY {
            if interrupt::asked() {
                return Err(BenchError::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(50));
            during.add(paced.take());
        }
        series.datagrams_wrong += before.wrong + during.wrong;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        series.runs.push(Run {
            outage: milliseconds(during.longest_gap),
            downtime: milliseconds(migrated.downtime),
            total: milliseconds(migrated.total),
            gap_before: milliseconds(before.longest_gap),
            lost: during.missing,
        });
    }
    series.stream_right = echo.finish(LIMIT)?;
    stage.done("");
    Ok(series)
}

/// Waits for a second of datagrams, and says what it was like.
fn steady(paced: &Paced) -> Result<crate::migration::Window, BenchError> {
    let mut deadline = crate::guest::Deadline::new(LIMIT);
    loop {
        paced.take();
        if !interrupt::sleep(STEADY) {
            return Err(BenchError::Interrupted);
        }
        let window = paced.take();
        if window.arrived >= ENOUGH {
            return Ok(window);
        }
        if deadline.is_over() {
            return Err(BenchError::Start {
                what: "send datagrams",
                source: std::io::ErrorKind::TimedOut.into(),
            });
        }
    }
}

impl Series {
    fn is_right(&self) -> bool {
        self.stream_right && self.datagrams_wrong == 0
    }

    /// The rows of the table.
    fn row(&self) -> [String; 8] {
        let of = |value: fn(&Run) -> f64| {
            let summary = Summary::of(self.runs.iter().map(value).collect());
            summary.map_or_else(
                || "-".into(),
                |it| format!("{:.0} ({:.0}-{:.0})", it.median, it.least, it.most),
            )
        };
        let beyond = Summary::of(self.runs.iter().map(Run::beyond).collect());
        let reached = beyond.is_some_and(|beyond| beyond.median < WANTED);
        [
            format!("{:?}", self.rings).to_lowercase(),
            self.runs.len().to_string(),
            of(|run| run.total),
            of(|run| run.downtime),
            of(|run| run.outage),
            of(Run::beyond),
            self.runs.iter().map(|run| run.lost).sum::<u64>().to_string(),
            match (self.is_right(), reached) {
                (false, _) => "damaged",
                (true, true) => "yes",
                (true, false) => "no",
            }
            .into(),
        ]
    }
}

impl Run {
    /// The outage beyond QEMU's downtime.
    fn beyond(&self) -> f64 {
        self.outage - self.downtime
    }
}

impl Measurement {
    fn table(&self) -> String {
        let titles = ["rings", "runs", "migration", "downtime", "outage", "beyond", "lost", "ok"];
        let rows: Vec<[String; 8]> = std::iter::once(titles.map(str::to_owned))
            .chain(self.series.iter().map(Series::row))
            .collect();
        format!(
            "{}milliseconds: median (least-most); beyond: outage without QEMU's downtime, wanted \
             under {WANTED} in the median; lost: datagrams\n",
            aligned(&rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(outage: f64) -> Series {
        let run = Run { outage, downtime: 80.0, total: 900.0, gap_before: 9.0, lost: 3 };
        let runs = vec![run; 3];
        Series { rings: Rings::Packed, runs, stream_right: true, datagrams_wrong: 0 }
    }

    #[test]
    fn the_outage_counts_without_the_downtime_of_qemu() {
        let row = series(229.0).row();
        assert_eq!(
            (row[5].as_str(), row[6].as_str(), row[7].as_str()),
            ("149 (149-149)", "9", "yes")
        );
        assert_eq!(series(231.0).row()[7], "no");
        assert_eq!(Series { stream_right: false, ..series(200.0) }.row()[7], "damaged");
    }
}
