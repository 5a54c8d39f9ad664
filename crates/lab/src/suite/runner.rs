//! Runs an experiment: round after round over all of its points, so that slow changes of the
//! machine affect all points alike.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::experiment::host::{self, Machine};
use crate::experiment::record::{Configuration, Record, Repetition, now};
use crate::experiment::{
    Attempt, Experiment, LabError, Measure, Outcome, Platform, Point, Setup, Size,
};
use crate::experiments;
use crate::interrupt;
use crate::program::Program;
use crate::progress::Progress;
use crate::statistics::digits;

/// How often a repetition that was disturbed is tried again before it is kept as it is.
const AGAIN: usize = 4;
/// How often one that failed is.
const ONCE_MORE: usize = 1;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Order {
    /// The platform that guests run on.
    pub platform: Platform,
    /// How much is measured.
    pub size: Size,
    /// Repetitions of each point, if not as many as the experiment says.
    pub rounds: Option<u32>,
    /// How long each measures, if not as long as the experiment says.
    pub time: Option<Duration>,
    /// CPUs that others may take before a repetition counts as disturbed.
    pub disturbed_above: f64,
    /// Whether to begin again instead of continuing an unfinished run.
    pub fresh: bool,
    /// The folder for records.
    pub out: PathBuf,
    /// The folder with the images that guests boot.
    pub cache: PathBuf,
    /// The daemon's program.
    pub program: Program,
}

/// Runs an experiment, or continues an unfinished run with the same settings. The record is
/// complete at any time. Returns its path.
///
/// # Errors
/// When the experiment does not run there, something it needs is missing, or the user interrupts. A
/// repetition that fails ends nothing; when all is measured, [`LabError::Broken`] says how many
/// did.
pub fn run(
    experiment: &dyn Experiment,
    order: &Order,
    progress: &Progress,
) -> Result<PathBuf, LabError> {
    let about = experiment.about();
    if !about.platforms.contains(&order.platform) {
        let possible: Vec<&str> = about.platforms.iter().map(|platform| platform.name()).collect();
        let (experiment, platform) = (about.name, order.platform.name());
        return Err(LabError::Platform { experiment, platform, possible: possible.join(", ") });
    }
    std::fs::create_dir_all(&order.out).map_err(LabError::file(&order.out))?;
    let _alone = alone(&order.out)?;
    let binary = order.program.find().map_err(LabError::system("find ringmain"))?;
    let asked = configuration(experiment, order, &binary);
    let mut run = Run { record: find(order, asked)?, order, progress, name: about.name };
    let setup = Setup {
        binary,
        cache: order.cache.clone(),
        platform: order.platform,
        size: order.size,
        time: Duration::from_secs_f64(run.record.configuration.seconds),
        progress,
    };
    if !run.record.repetitions.is_empty() {
        progress.line(&format!(
            "{}: going on with {}",
            about.name,
            order.out.join(run.record.file()).display()
        ));
    }
    run.record.write(&order.out)?;
    if run.left() > 0 {
        run.all(experiment.open(&setup)?)?;
    }
    run.record.finished = Some(now());
    let path = run.record.write(&order.out)?;
    match run.faults() {
        (0, _) => Ok(path),
        (count, first) => Err(LabError::Broken { count, first, record: path }),
    }
}

/// A lock on the folder: two runs at a time would disturb each other, and take each other's records
/// for unfinished.
fn alone(out: &Path) -> Result<File, LabError> {
    let folder = File::open(out).map_err(LabError::file(out))?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(folder),
        Err(_) => Err(LabError::Busy(out.into())),
    }
}

fn configuration(experiment: &dyn Experiment, order: &Order, binary: &Path) -> Configuration {
    let mut versions = host::versions(binary, order.platform, &order.cache);
    versions.extend(
        experiment
            .versions(order.platform)
            .into_iter()
            .map(|(name, version)| (name.to_owned(), version)),
    );
    let time = order.time.unwrap_or_else(|| experiment.time(order.size));
    // The tiny form goes by bytes.
    let (_, least) =
        if order.size == Size::Tiny { Default::default() } else { order.platform.least() };
    Configuration {
        experiment: experiment.about().name.into(),
        platform: order.platform,
        size: order.size,
        seconds: time.max(least).as_secs_f64(),
        rounds: order.rounds.unwrap_or_else(|| experiment.repetitions(order.size)),
        disturbed_above: order.disturbed_above,
        points: experiment.points(order.platform, order.size),
        machine: Machine::probe(),
        versions,
    }
}

/// The newest record of the same run that was left unfinished, or a new one.
fn find(order: &Order, asked: Configuration) -> Result<Record, LabError> {
    let (records, _) = Record::all(&order.out)?;
    let same = |record: &Record| record.finished.is_none() && record.configuration == asked;
    let unfinished = records.into_iter().rev().find(same).filter(|_| !order.fresh);
    let mut record = unfinished.unwrap_or_else(|| Record::new(asked));
    // Two runs that begin in one second have two records.
    while record.repetitions.is_empty() && order.out.join(record.file()).exists() {
        record.began += 1;
    }
    Ok(record)
}

struct Run<'a> {
    record: Record,
    order: &'a Order,
    progress: &'a Progress,
    name: &'static str,
}

impl Run<'_> {
    /// Everything that is not measured yet.
    fn all(&mut self, mut measure: Measure<'_>) -> Result<(), LabError> {
        let Configuration { rounds, points, .. } = self.record.configuration.clone();
        for round in 0..rounds {
            for (number, point) in points.iter().enumerate() {
                while !self.settled(number, round) {
                    self.once(&mut measure, (number, point), round)?;
                }
            }
        }
        Ok(())
    }

    /// One attempt at one repetition.
    fn once(
        &mut self,
        measure: &mut Measure<'_>,
        (number, point): (usize, &Point),
        round: u32,
    ) -> Result<(), LabError> {
        let rounds = self.record.configuration.rounds;
        let stage = self.progress.stage(format!("{} {}/{rounds}: {point}", self.name, round + 1));
        stage.at(self.estimate());
        let (at, state, began) = (now(), host::state(), Instant::now());
        let earlier = self.attempts(number, round).count() as u32;
        let measured = measure(point, Attempt { round, earlier });
        if interrupt::asked() {
            return Err(LabError::Interrupted);
        }
        let (outcome, failed) = match measured {
            Ok(outcome) => (outcome, None),
            Err(error) => (Outcome::default(), Some(error.to_string())),
        };
        let disturbed = outcome.others + outcome.stolen > self.record.configuration.disturbed_above;
        let took = began.elapsed().as_secs_f64();
        let one = Repetition { point: number, round, at, took, state, disturbed, outcome, failed };
        let said = one.fault().unwrap_or_else(|| self.said(&one));
        self.record.repetitions.push(one);
        self.record.write(&self.order.out)?;
        stage.done(&format!("{said}; {}", self.estimate()));
        Ok(())
    }

    /// A repetition's first figure, as a word.
    fn said(&self, one: &Repetition) -> String {
        let about = experiments::find(self.name).map(|experiment| experiment.about());
        let first = about.and_then(|about| {
            about.figures.iter().find(|it| one.outcome.figures.contains_key(it.name))
        });
        let figure = first
            .map(|first| (first, one.outcome.figures.get(first.name).copied().unwrap_or_default()));
        let figure = figure
            .map(|(first, value)| format!("{} {}", digits(value), first.unit))
            .unwrap_or_default();
        if !one.disturbed {
            return figure;
        }
        format!(
            "{figure}, disturbed: others took {:.0} % of a CPU",
            (one.outcome.others + one.outcome.stolen) * 100.0
        )
    }

    fn attempts(&self, point: usize, round: u32) -> impl Iterator<Item = &Repetition> {
        self.record.repetitions.iter().filter(move |one| one.point == point && one.round == round)
    }

    /// Whether no further attempt is made.
    fn settled(&self, point: usize, round: u32) -> bool {
        let good = self.attempts(point, round).any(|one| !one.disturbed && one.failed.is_none());
        let failed = self.attempts(point, round).filter(|one| one.failed.is_some()).count();
        let disturbed = self.attempts(point, round).filter(|one| one.disturbed).count();
        good || failed > ONCE_MORE || disturbed > AGAIN
    }

    /// Repetitions that are left.
    fn left(&self) -> usize {
        let Configuration { rounds, points, .. } = &self.record.configuration;
        let all = (0..*rounds).flat_map(|round| (0..points.len()).map(move |point| (point, round)));
        all.filter(|(point, round)| !self.settled(*point, *round)).count()
    }

    /// How long the rest takes, if it takes as long as the finished part, and as large a part of it
    /// is disturbed and repeated.
    fn estimate(&self) -> String {
        let done = &self.record.repetitions;
        let left = self.left();
        let noun = if left == 1 { "repetition" } else { "repetitions" };
        let total =
            self.record.configuration.rounds as usize * self.record.configuration.points.len();
        match total - left {
            0 if done.is_empty() => {
                let least = self.record.configuration.seconds * left as f64;
                format!("at least {} for {left} {noun}", clock(least))
            }
            finished => {
                let each = done.iter().map(|one| one.took).sum::<f64>() / finished.max(1) as f64;
                let again = done.len().saturating_sub(finished);
                let again = match again {
                    0 => String::new(),
                    again => format!(" ({again} attempts so far did not count)"),
                };
                format!("about {} left for {left} {noun}{again}", clock(each * left as f64))
            }
        }
    }

    /// Points and rounds that have nothing but faults, or broke a rule; and the first of those.
    fn faults(&self) -> (usize, String) {
        let Configuration { points, .. } = &self.record.configuration;
        let good = |one: &Repetition| {
            self.attempts(one.point, one.round).any(|other| other.fault().is_none())
        };
        let bad = |one: &&Repetition| {
            one.outcome.broken().is_some() || one.failed.is_some() && !good(one)
        };
        let all: Vec<&Repetition> = self.record.repetitions.iter().filter(bad).collect();
        let first = all.first().map(|one| {
            let place = points.get(one.point).map(Point::to_string).unwrap_or_default();
            format!("{place}: {}", one.fault().unwrap_or_default())
        });
        (all.len(), first.unwrap_or_default())
    }
}

/// A time like `45 s`, `1:05 min` or `2:10 h`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests;
