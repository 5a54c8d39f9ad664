//! Stock guests under QEMU: alternately over the daemon and over multi-queue TAP devices on a Linux
//! bridge.
//!
//! Each run boots new guests, so that earlier runs have no effect on a figure.

use super::point::Kind;
use super::state::State;
use super::tally::{Run, Tally, Who};
use super::{Args, BenchError};
use crate::demo::{Outcome, Over, Streams};
use crate::guest::GuestError;
use crate::interrupt;
use crate::progress::Progress;

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
    for number in 0..args.runs {
        let mut order = vec![(Who::Ringmain, Over::Ringmain)];
        if !args.alone {
            order.push((Who::Peer, Over::Bridge));
        }
        if !number.is_multiple_of(2) {
            order.reverse();
        }
        for (who, over) in order {
            once(args, &streams, (who, over, number), &mut tallies[at], progress)?;
        }
    }
    Ok(())
}

/// One run, again when something disturbed it.
fn once(
    args: &Args,
    streams: &Streams,
    (who, over, round): (Who, Over, u32),
    tally: &mut Tally,
    progress: &Progress,
) -> Result<(), BenchError> {
    for attempt in 0..=RETRIES {
        if interrupt::asked() {
            return Err(GuestError::Interrupted.into());
        }
        match streams.over(over, progress) {
            Ok(outcome) if disturbed(args, &outcome) && attempt < RETRIES => tally.repeated += 1,
            Ok(outcome) => {
                // Guests run on all CPUs, for longer than the machine stays in one state, so the
                // state is not compared.
                let state = State::default();
                let disturbed = disturbed(args, &outcome);
                tally.runs.push(Run { who, round, figures: vec![outcome.gbps], state, disturbed });
                break;
            }
            Err(error) if error.is_interrupt() => return Err(error.into()),
            Err(error) => {
                // Further lines have the output of the guest's console.
                tally.failures.push(format!(
                    "{who:?}: {}",
                    error.to_string().lines().next().unwrap_or_default()
                ));
                break;
            }
        }
    }
    Ok(())
}

/// Whether other processes took more CPU time than allowed.
fn disturbed(args: &Args, outcome: &Outcome) -> bool {
    outcome.others * 100.0 > args.disturbed_above
}
