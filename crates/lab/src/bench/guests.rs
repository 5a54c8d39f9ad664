//! Stock guests under QEMU: alternately over the daemon and over multi-queue TAP devices on a Linux
//! bridge.
//!
//! The guests of both boot once, and those whose turn it is not are stopped.

use super::point::Kind;
use super::state::State;
use super::tally::{Run, Tally, Who};
use super::{Args, BenchError};
use crate::demo::{DemoError, Outcome, Over, Streams};
use crate::guest::GuestError;
use crate::interrupt;
use crate::progress::Progress;
use crate::statistics::turns;

/// Seconds that the streams are measured, at least.
const SECONDS: u16 = 4;

/// How often a disturbed run is tried again before it is kept.
const RETRIES: u32 = 2;

/// Queues of each guest: as many as it has CPUs.
const QUEUES: u16 = 2;

/// Measures the points that consist of guests. A point that `--only` does not name is left out
/// where guests cannot run.
///
/// # Errors
/// When a named point needs files of guests that are missing, or when the user interrupts. Runs
/// that fail are noted.
pub(super) fn measure(
    args: &Args,
    tallies: &mut Vec<Tally>,
    progress: &Progress,
) -> Result<(), BenchError> {
    let Some(at) = tallies.iter().position(|tally| tally.point.kind == Kind::Guests) else {
        return Ok(());
    };
    let seconds = (args.seconds.ceil() as u16).clamp(SECONDS, 600);
    let streams = match Streams::prepare(&args.program, &args.cache, QUEUES, seconds) {
        Ok(streams) => streams,
        Err(_) if args.only.is_empty() => {
            progress
                .stage("QEMU guests")
                .done("left out: scripts/deps guests brings what they need");
            tallies.remove(at);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let mut backends = vec![(Who::Ringmain, Over::Ringmain)];
    if !args.alone {
        backends.push((Who::Peer, Over::Bridge));
    }
    let over: Vec<Over> = backends.iter().map(|(_, over)| *over).collect();
    let sites = match streams.start(&over, progress) {
        Ok(sites) => sites,
        Err(error) => return note(&mut tallies[at], "guests", error),
    };
    for number in 0..args.runs {
        let all = backends.iter().map(|(who, _)| *who).enumerate().collect();
        for (which, who) in turns(all, number) {
            let run = || streams.over(&sites, which, progress);
            once(args, run, (who, number), &mut tallies[at])?;
        }
    }
    Ok(())
}

/// One run, again when something disturbed it.
fn once(
    args: &Args,
    run: impl Fn() -> Result<Outcome, DemoError>,
    (who, round): (Who, u32),
    tally: &mut Tally,
) -> Result<(), BenchError> {
    for attempt in 0..=RETRIES {
        if interrupt::asked() {
            return Err(GuestError::Interrupted.into());
        }
        match run() {
            Ok(outcome) if disturbed(args, &outcome) && attempt < RETRIES => tally.repeated += 1,
            Ok(outcome) => {
                // Guests run on all CPUs, for longer than the machine stays in one state, so the
                // state is not compared.
                let state = State::default();
                let disturbed = disturbed(args, &outcome);
                tally.runs.push(Run { who, round, figures: vec![outcome.gbps], state, disturbed });
                break;
            }
            Err(error) => return note(tally, &format!("{who:?}"), error),
        }
    }
    Ok(())
}

/// Notes why a run failed; what the user interrupted is an error.
fn note(tally: &mut Tally, what: &str, error: DemoError) -> Result<(), BenchError> {
    if error.is_interrupt() {
        return Err(error.into());
    }
    // Further lines have the output of the guest's console.
    let said = error.to_string();
    tally.failures.push(format!("{what}: {}", said.lines().next().unwrap_or_default()));
    Ok(())
}

/// Whether other processes took more CPU time than allowed.
fn disturbed(args: &Args, outcome: &Outcome) -> bool {
    outcome.others * 100.0 > args.disturbed_above
}
