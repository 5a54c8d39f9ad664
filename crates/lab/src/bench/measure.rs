//! One round of a point: everybody who plays, one after the other, in the same state of the machine.

use std::thread;
use std::time::Duration;

use super::peers::Peers;
use super::point::{Kind, Unit};
use super::state::State;
use super::tally::{Run, Tally, Who};
use super::{Args, BenchError};
use crate::interrupt;
use crate::load::{self, Report};

/// How often something of a round is tried again, disturbed runs and rounds in which the machine changed together, before it is kept
/// as it is.
const RETRIES: u32 = 4;

/// A pause before that, for what disturbs to pass.
const PAUSE: Duration = Duration::from_millis(300);

/// Plays round `number` of a point.
///
/// # Errors
/// When the user interrupts, or a CPU is not there. Runs that fail are noted in the tally.
pub(super) fn round(args: &Args, peers: &Peers, number: u32, tally: &mut Tally) -> Result<(), BenchError> {
    let mut order = peers.of(&tally.point);
    // Who goes first changes from round to round.
    if !number.is_multiple_of(2) {
        order.reverse();
    }
    let mut retries = RETRIES;
    loop {
        let mut runs = Vec::new();
        for who in &order {
            runs.extend(steady(args, peers, (*who, number), tally, &mut retries)?);
        }
        let alike = runs.iter().all(|run| runs.iter().all(|other| run.state.is_like(&other.state)));
        if alike || runs.len() < order.len() || retries == 0 {
            tally.runs.extend(runs);
            return Ok(());
        }
        retries -= 1;
        tally.repeated += runs.len() as u32;
    }
}

/// One run that nothing disturbed, if that can be had. `None`: it failed.
fn steady(
    args: &Args,
    peers: &Peers,
    (who, round): (Who, u32),
    tally: &mut Tally,
    retries: &mut u32,
) -> Result<Option<Run>, BenchError> {
    let look = || {
        State::look([args.generator_cpu, args.worker_cpu])
            .map_err(|source| BenchError::Start { what: "look at the CPUs", source })
    };
    loop {
        if interrupt::asked() {
            return Err(BenchError::Interrupted);
        }
        let state = look()?;
        let report = match peers.play(who, || once(args, peers, who, tally.point.kind)) {
            Ok(report) => report,
            Err(what) => {
                tally.failures.push(format!("{who:?}: {what}"));
                return Ok(None);
            }
        };
        let disturbed = report.disturbed || !look()?.is_like(&state);
        if !disturbed || *retries == 0 {
            let figures = tally.point.figures.iter().map(|(unit, _): &(Unit, _)| unit.of(&report)).collect();
            return Ok(Some(Run { who, round, figures, state, disturbed }));
        }
        *retries -= 1;
        tally.repeated += 1;
        thread::sleep(PAUSE);
    }
}

/// One run; what went wrong, in one line.
fn once(args: &Args, peers: &Peers, who: Who, kind: Kind) -> Result<Report, String> {
    let Kind::Traffic { options, at_least_ms, .. } = kind else { return Err("no traffic of the generator's".into()) };
    let place = peers.place(who).ok_or("it does not play")?;
    let seconds = args.seconds.max(at_least_ms as f64 / 1e3);
    let line = format!(
        "{place} {options} --duration {seconds} --warm-up 0.3 --cpu {} --disturbed-above {}",
        args.generator_cpu, args.disturbed_above,
    );
    let options = load::Args::from_words(line.split_whitespace()).map_err(|error| error.to_string())?;
    let report = load::run_until(&options, &interrupt::flag()).map_err(|error| error.to_string())?;
    match report.is_right() {
        true => Ok(report),
        false => {
            let fault = report.directions.iter().find_map(|direction| direction.first_fault.clone());
            Err(fault.unwrap_or_else(|| "frames came late or twice".into()))
        }
    }
}
