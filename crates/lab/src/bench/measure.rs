//! Rounds of the generators' points: everybody who plays, one after the other, until enough rounds
//! can be compared.

use super::peers::Peers;
use super::point::{Kind, Point, Unit};
use super::state::State;
use super::tally::{Run, Tally, Who};
use super::{Args, BenchError};
use crate::interrupt;
use crate::progress::Progress;
use crate::statistics::turns;
use load::Report;

/// Most rounds for each that is wanted, until enough of them can be compared.
const MOST_ROUNDS: u32 = 3;

/// The same until the ratio is known. Where a machine wanders between two paces, ratios of single
/// rounds differ by a factor of two, and the median of 20 still by a fifth.
const MOST_UNTIL_STEADY: u32 = 16;

/// How rounds are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Rounds that are wanted of each point.
    pub(super) runs: u32,
    /// Whether further rounds follow until the ratio to the peer is known, at points that depend on
    /// the state of the machine.
    pub(super) until_steady: bool,
    /// CPUs of the generator and of the back-end's worker.
    pub(super) cpus: [usize; 2],
}

/// One run of a back-end.
pub(super) struct Measured {
    /// The figures, in the order of the point's units.
    pub(super) figures: Vec<f64>,
    /// Others took CPU meanwhile.
    pub(super) disturbed: bool,
}

/// The back-ends that are compared.
pub(super) trait Backends {
    /// The back-ends that are measured at a point, in order.
    fn of(&self, point: &Point) -> Vec<Who>;

    /// Measures one of them. An error is one line.
    fn measure(&self, who: Who, point: &Point) -> Result<Measured, String>;
}

impl Plan {
    fn most_rounds(&self) -> u32 {
        self.runs * if self.until_steady { MOST_UNTIL_STEADY } else { MOST_ROUNDS }
    }

    /// Whether a point is finished: it has the wanted number of undisturbed rounds in one state of
    /// the machine, and the ratio is known if it has to be.
    fn is_finished(&self, tally: &Tally, backends: &[Who]) -> bool {
        let is_known = || {
            let wanted = self.until_steady && tally.point.follows_state();
            !wanted || tally.gave_up(self.runs) || tally.is_steady(backends)
        };
        !tally.needs(self.runs, backends) && is_known()
    }
}

/// Measures rounds over all points, so that slow changes of the machine affect all alike, until
/// each point is finished, or the most rounds have been made.
///
/// # Errors
/// When the user interrupts, or a CPU does not exist. The tallies have the rounds until then.
pub(super) fn measure_rounds(
    plan: Plan,
    backends: &dyn Backends,
    tallies: &mut [&mut Tally],
    progress: &Progress,
) -> Result<(), BenchError> {
    for number in 0..plan.most_rounds() {
        let is_unfinished =
            |tally: &&mut &mut Tally| !plan.is_finished(tally, &backends.of(&tally.point));
        let unfinished: Vec<_> = tallies.iter_mut().filter(is_unfinished).collect();
        if unfinished.is_empty() {
            break;
        }
        let stage = progress.stage(format!("round {}, {} points", number + 1, unfinished.len()));
        for tally in unfinished {
            stage.at(tally.point.title);
            round(plan, backends, number, tally)?;
        }
        stage.done("");
    }
    Ok(())
}

/// Measures round `number` of a point.
fn round(
    plan: Plan,
    backends: &dyn Backends,
    number: u32,
    tally: &mut Tally,
) -> Result<(), BenchError> {
    for who in turns(backends.of(&tally.point), number) {
        let run = once(plan, backends, (who, number), tally)?;
        tally.runs.extend(run);
    }
    Ok(())
}

/// One run, and what the machine was like. `None`: it failed.
fn once(
    plan: Plan,
    backends: &dyn Backends,
    (who, round): (Who, u32),
    tally: &mut Tally,
) -> Result<Option<Run>, BenchError> {
    let look = || {
        State::look(plan.cpus)
            .map_err(|source| BenchError::Start { what: "look at the CPUs", source })
    };
    let state = look()?;
    let measured = backends.measure(who, &tally.point);
    // A run that ended early has no figure.
    if interrupt::asked() {
        return Err(BenchError::Interrupted);
    }
    let Measured { figures, disturbed } = match measured {
        Ok(measured) => measured,
        Err(what) => {
            tally.failures.push(format!("{who:?}: {what}"));
            return Ok(None);
        }
    };
    let disturbed = disturbed || tally.point.follows_state() && !look()?.is_like(&state);
    Ok(Some(Run { who, round, figures, state, disturbed }))
}

/// The back-ends that carry frames.
pub(super) struct FrameBackends<'a> {
    /// The options of the comparison.
    pub(super) args: &'a Args,
    /// The back-ends.
    pub(super) peers: &'a Peers,
}

impl Backends for FrameBackends<'_> {
    fn of(&self, point: &Point) -> Vec<Who> {
        self.peers.of(point)
    }

    fn measure(&self, who: Who, point: &Point) -> Result<Measured, String> {
        let report = self.peers.run_alone(who, || carry(self.args, self.peers, who, point.kind))?;
        let figures = point.figures.iter().map(|(unit, _): &(Unit, _)| unit.of(&report));
        Ok(Measured { figures: figures.collect(), disturbed: report.disturbed })
    }
}

/// Runs the generator. An error is one line.
fn carry(args: &Args, peers: &Peers, who: Who, kind: Kind) -> Result<Report, String> {
    let Kind::Traffic { options, at_least_ms, .. } = kind else {
        return Err("no traffic of the generator's".into());
    };
    let place = peers.place(who, kind).ok_or("it is not part of this point")?;
    let seconds = args.seconds.max(at_least_ms as f64 / 1e3);
    let line = format!(
        "{place} {options} --duration {seconds} --warm-up 0.2 --cpu {} --disturbed-above {}",
        args.generator_cpu, args.disturbed_above,
    );
    let options =
        load::Args::from_words(line.split_whitespace()).map_err(|error| error.to_string())?;
    let run = || load::run_until(&options, &interrupt::flag());
    let report = match peers.network(who) {
        Some(network) => network.open(|| Ok(run())).map_err(|error| error.to_string())?,
        None => run(),
    };
    let report = report.map_err(|error| error.to_string())?;
    match report.is_right() {
        true => Ok(report),
        false => {
            let fault =
                report.directions.iter().find_map(|direction| direction.first_fault.clone());
            Err(fault.unwrap_or_else(|| "frames came late or twice".into()))
        }
    }
}
