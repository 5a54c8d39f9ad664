//! Rounds of the generator's points: everybody who plays, one after the other, until enough rounds
//! can be compared.

use super::peers::Peers;
use super::point::{Kind, Unit};
use super::state::State;
use super::tally::{Run, Tally, Who};
use super::{Args, BenchError};
use crate::interrupt;
use crate::load::{self, Report};
use crate::progress::Progress;

/// Most rounds for each that is wanted.
const MOST_ROUNDS: u32 = 3;

/// Measures rounds over all points, so that slow changes of the machine affect all alike. A point
/// is finished when it has the wanted number of undisturbed rounds in one state of the machine, or
/// after [`MOST_ROUNDS`] times as many rounds.
///
/// # Errors
/// When the user interrupts, or a CPU does not exist. The tallies have the rounds until then.
pub(super) fn play(
    args: &Args,
    peers: &Peers,
    tallies: &mut [&mut Tally],
    progress: &Progress,
) -> Result<(), BenchError> {
    for number in 0..args.runs * MOST_ROUNDS {
        let unfinished =
            tallies.iter_mut().filter(|tally| tally.needs(args.runs, &peers.of(&tally.point)));
        let unfinished: Vec<_> = unfinished.collect();
        if unfinished.is_empty() {
            break;
        }
        let stage = progress.stage(format!("round {}, {} points", number + 1, unfinished.len()));
        for tally in unfinished {
            stage.at(tally.point.title);
            round(args, peers, number, tally)?;
        }
        stage.done("");
    }
    Ok(())
}

/// Measures round `number` of a point.
fn round(args: &Args, peers: &Peers, number: u32, tally: &mut Tally) -> Result<(), BenchError> {
    let mut order = peers.of(&tally.point);
    // The first back-end changes from round to round.
    if !number.is_multiple_of(2) {
        order.reverse();
    }
    for who in order {
        let run = once(args, peers, (who, number), tally)?;
        tally.runs.extend(run);
    }
    Ok(())
}

/// One run, and what the machine was like. `None`: it failed.
fn once(
    args: &Args,
    peers: &Peers,
    (who, round): (Who, u32),
    tally: &mut Tally,
) -> Result<Option<Run>, BenchError> {
    let look = || {
        State::look([args.generator_cpu, args.worker_cpu])
            .map_err(|source| BenchError::Start { what: "look at the CPUs", source })
    };
    let state = look()?;
    let report = peers.play(who, || carry(args, peers, who, tally.point.kind));
    // What was ended early is no figure.
    if interrupt::asked() {
        return Err(BenchError::Interrupted);
    }
    let report = match report {
        Ok(report) => report,
        Err(what) => {
            tally.failures.push(format!("{who:?}: {what}"));
            return Ok(None);
        }
    };
    let disturbed = report.disturbed || tally.point.follows_state() && !look()?.is_like(&state);
    let figures =
        tally.point.figures.iter().map(|(unit, _): &(Unit, _)| unit.of(&report)).collect();
    Ok(Some(Run { who, round, figures, state, disturbed }))
}

/// Has the generator play; what went wrong, in one line.
fn carry(args: &Args, peers: &Peers, who: Who, kind: Kind) -> Result<Report, String> {
    let Kind::Traffic { options, at_least_ms, .. } = kind else {
        return Err("no traffic of the generator's".into());
    };
    let place = peers.place(who).ok_or("it does not play")?;
    let seconds = args.seconds.max(at_least_ms as f64 / 1e3);
    let line = format!(
        "{place} {options} --duration {seconds} --warm-up 0.2 --cpu {} --disturbed-above {}",
        args.generator_cpu, args.disturbed_above,
    );
    let options =
        load::Args::from_words(line.split_whitespace()).map_err(|error| error.to_string())?;
    let report =
        load::run_until(&options, &interrupt::flag()).map_err(|error| error.to_string())?;
    match report.is_right() {
        true => Ok(report),
        false => {
            let fault =
                report.directions.iter().find_map(|direction| direction.first_fault.clone());
            Err(fault.unwrap_or_else(|| "frames came late or twice".into()))
        }
    }
}
