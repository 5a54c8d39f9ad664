//! Streams that hash unevenly onto queues, before and after a worker balances them.

use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::experiment::{
    About, Attempt, Experiment, Figure, LabError, Measure, Outcome, Platform, Plot, Point, Results,
    Setup, Size,
};
use crate::fixture::{GeneratorSetup, generator_ports};
use crate::interrupt;
use crate::plot::{Axis, Shape};
use crate::statistics::digits;

const STREAMS: u32 = 8;
const SERIES: &str = "Ringmain";
/// Repetitions that differ in addresses, and how many of a round may.
const TURNS: u32 = 1000;
const OF_A_ROUND: u32 = 8;
/// The longest time that is measured before a worker changes anything. The measurement ends as soon
/// as a bucket has changed queues: workers check every 100 ms, whenever frames begin to come.
const SOON: Duration = Duration::from_millis(60);
/// The shortest measurement that counts. A shorter one is repeated with a fresh worker, [`TRIES`]
/// times at most. On a machine that others use, eight in a row were too short.
const LEAST: Duration = Duration::from_millis(15);
const TRIES: u32 = 60;
/// Between two looks at that.
const STEP: Duration = Duration::from_millis(5);
/// How long buckets may take to reach their final queues.
const SETTLES: Duration = Duration::from_secs(4);
/// The start of the generator may take so long.
const TIMEOUT: Duration = Duration::from_secs(20);

const ABOUT: About = About {
    name: "spread",
    title: "eight streams over the queues of a guest, before and after",
    what: "Eight streams to a guest with two to eight queues that leaves the choice of the queue \
           to the switch. The plot shows the busiest queue's share of the frames at first, when \
           only the hash has chosen, and after four seconds, in which the worker points buckets of \
           the hash to other queues. All queues of the sender carry the same number of frames, so \
           a stream that is alone on a queue is faster than others.",
    source: None,
    platforms: &[Platform::Embedded],
    figures: &[
        Figure { name: "before", title: "busiest queue at first", unit: "% of the frames" },
        Figure { name: "after", title: "busiest queue after that", unit: "% of the frames" },
        Figure { name: "even", title: "each queue, if all had the same", unit: "% of the frames" },
        Figure { name: "rebalanced", title: "buckets that changed queues", unit: "buckets" },
    ],
    plots: &[Plot {
        name: "busiest",
        title: "The busiest queue's share",
        shape: Shape::Lines,
        x: Axis::linear("queues"),
        y: Axis::linear("frames through the busiest queue, %"),
        figures: &["before", "after", "even"],
    }],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct FlowDistribution;

impl Experiment for FlowDistribution {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let queues: &[u16] = match size {
            Size::Tiny => &[5],
            Size::Quick => &[2, 4, 5, 8],
            Size::Full => &[2, 3, 4, 5, 6, 7, 8],
        };
        queues.iter().map(|queues| Point::new(SERIES, *queues).with("queues", queues)).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(move |point, attempt| {
            measure(setup, point.get("queues")?, first_guest(attempt))
        }))
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let at = |figure: &str| results.median(SERIES, 5, figure).map(digits);
        let (Some(before), Some(after)) = (at("before"), at("after")) else { return Vec::new() };
        vec![format!(
            "With five queues the busiest carries {before} % at first and {after} % in the end; 20 % would be even."
        )]
    }

    fn notes(&self, _: &Results) -> Vec<String> {
        vec![
            "Guests have other addresses in each repetition, so the hash combines other streams on \
             a queue. \"At first\" ends with the first bucket that changes queues, or after 60 ms. \
             Both figures are of the same addresses, each with a fresh worker."
                .into(),
        ]
    }
}

/// The number of the first guest, from which addresses follow. The hash is the same always: other
/// addresses in each repetition, so that it is not always the same luck.
fn first_guest(Attempt { round, earlier }: Attempt) -> u16 {
    let number = round.wrapping_mul(OF_A_ROUND).wrapping_add(earlier) % TURNS;
    2 * number as u16
}

fn measure(setup: &Setup, queues: u16, first: u16) -> Result<Outcome, LabError> {
    let mut outcome = Outcome::default();
    let before = at_first(setup, queues, first, &mut outcome)?;
    let rig = GeneratorSetup::start(setup, 1, queues, "")?.numbered(first);
    let settles = if setup.size == Size::Tiny { SOON } else { SETTLES };
    let after = during(&rig, (setup, settles + setup.time), queues, &mut outcome, || {
        sleep(settles)?;
        let then = CounterDelta::now(rig.daemon())?;
        // The generator stops at about the end of this.
        sleep(setup.time.mul_f64(0.8))?;
        Ok(CounterDelta::now(rig.daemon())?.since(&then))
    })?;
    outcome.figure("before", busiest(&before));
    outcome.figure("after", busiest(&after));
    outcome.figure("even", 100.0 / f64::from(queues));
    outcome.figure("rebalanced", CounterDelta::now(rig.daemon())?.rebalanced as f64);
    outcome.list("queues_before", before);
    outcome.list("queues_after", after);
    outcome.list("guests", vec![f64::from(first), f64::from(first + 1)]);
    Ok(outcome)
}

/// Frames of each of the receiver's queues before any bucket has changed queues.
fn at_first(
    setup: &Setup,
    queues: u16,
    first: u16,
    outcome: &mut Outcome,
) -> Result<Vec<f64>, LabError> {
    for _ in 0..TRIES {
        let rig = GeneratorSetup::start(setup, 1, queues, "")?.numbered(first);
        let seen = during(&rig, (setup, SOON * 2), queues, outcome, || untouched(rig.daemon()))?;
        if let Some(frames) = seen {
            return Ok(frames);
        }
    }
    Err(LabError::Tool {
        tool: "the worker".into(),
        text: format!("a bucket changed queues at once, {TRIES} times"),
    })
}

/// Frames of the receiver's queues while no bucket has changed queues, if that is long enough.
fn untouched(daemon: &Daemon) -> Result<Option<Vec<f64>>, LabError> {
    let (began, then) = (Instant::now(), CounterDelta::now(daemon)?);
    let mut untouched = None;
    while began.elapsed() < SOON {
        sleep(STEP)?;
        // Before the counters are read: what is counted lasted at least as long.
        let lasted = began.elapsed();
        let now = CounterDelta::now(daemon)?;
        if now.rebalanced > 0 {
            break;
        }
        untouched = (lasted >= LEAST).then(|| now.since(&then));
    }
    Ok(untouched)
}

/// Runs the generator for so long, and looks as soon as its frames come.
fn during<T: Send>(
    rig: &GeneratorSetup,
    (setup, time): (&Setup<'_>, Duration),
    queues: u16,
    outcome: &mut Outcome,
    look: impl FnOnce() -> Result<T, LabError>,
) -> Result<T, LabError> {
    let options = format!("--size 64 --queues {queues} --flows {STREAMS}");
    let whole = Setup { time, binary: setup.binary.clone(), cache: setup.cache.clone(), ..*setup };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| rig.run(&whole, &[&options], outcome));
        let looked = frames_come(rig.daemon()).and_then(|()| look());
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        looked
    })
}

fn frames_come(daemon: &Daemon) -> Result<(), LabError> {
    let until = Instant::now() + TIMEOUT;
    // The greetings are a few.
    while CounterDelta::now(daemon)?.frames.iter().sum::<u64>() < 1000 {
        if Instant::now() > until {
            return Err(LabError::Tool {
                tool: "the generator".into(),
                text: "no frames come".into(),
            });
        }
        sleep(Duration::from_millis(2))?;
    }
    Ok(())
}

/// The counters at a moment.
struct CounterDelta {
    /// Frames of each of the receiver's queues.
    frames: Vec<u64>,
    /// Buckets that changed queues.
    rebalanced: u64,
}

impl CounterDelta {
    fn now(daemon: &Daemon) -> Result<CounterDelta, LabError> {
        let [_, name] = generator_ports(0);
        let stats = daemon.stats()?;
        let port = stats.ports.iter().find(|port| port.name == name);
        let frames = port.map_or_else(Vec::new, |port| {
            port.queues.iter().map(|it| it.counts.rx_frames).collect()
        });
        Ok(CounterDelta {
            frames,
            rebalanced: stats.workers.iter().map(|worker| worker.rebalanced).sum(),
        })
    }

    /// Frames of each queue since then.
    fn since(&self, then: &CounterDelta) -> Vec<f64> {
        self.frames
            .iter()
            .zip(&then.frames)
            .map(|(now, then)| now.saturating_sub(*then) as f64)
            .collect()
    }
}

fn sleep(time: Duration) -> Result<(), LabError> {
    if interrupt::sleep(time) { Ok(()) } else { Err(LabError::Interrupted) }
}

/// The busiest queue's share, in percent.
fn busiest(frames: &[f64]) -> f64 {
    let all = frames.iter().sum::<f64>().max(1.0);
    frames.iter().copied().fold(0.0, f64::max) / all * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn repetitions_have_addresses_of_their_own_whenever_they_are_made() {
        let all = (0..10).flat_map(|round| (0..6).map(move |earlier| Attempt { round, earlier }));
        let guests: BTreeSet<u16> = all.map(first_guest).collect();
        assert_eq!(guests.len(), 60);
        assert!(guests.iter().all(|first| first % 2 == 0));
        assert!(first_guest(Attempt { round: u32::MAX, earlier: u32::MAX }) < 2 * TURNS as u16);
    }
}
