//! Streams that hash badly onto queues, and what a worker does about it.

use std::time::{Duration, Instant};

use crate::bed::{Rig, generator_ports};
use crate::daemon::Daemon;
use crate::experiment::{
    About, Experiment, Figure, Ground, LabError, Measure, Outcome, Plot, Point, Results, Setup, Size, digits,
};
use crate::plot::{Axis, Shape};

const STREAMS: u32 = 8;
const SERIES: &str = "Ringmain";
/// Repetitions that differ in addresses.
const TURNS: u16 = 1000;
/// What is looked at before a worker has done anything about it: less than it takes to notice.
const SOON: Duration = Duration::from_millis(60);
/// How long it may take for buckets to come to rest where they are best.
const SETTLES: Duration = Duration::from_secs(4);
/// The start of the generator may take so long.
const PATIENCE: Duration = Duration::from_secs(20);

const ABOUT: About = About {
    name: "spread",
    title: "eight streams over the queues of a guest, before and after",
    what: "Eight streams to a guest with two to eight queues that leaves the choice of the queue to the switch. Its busiest queue's share \
           of the frames at first, when only the hash has chosen, and after four seconds, in which the worker points buckets of the \
           hash to other queues. Each queue of the sender carries the same, so that a stream which has one to itself is a strong one.",
    source: None,
    grounds: &[Ground::Embedded],
    figures: &[
        Figure { name: "before", title: "busiest queue at first", unit: "% of the frames" },
        Figure { name: "after", title: "busiest queue after that", unit: "% of the frames" },
        Figure { name: "even", title: "each queue, if all had the same", unit: "% of the frames" },
        Figure { name: "turned", title: "buckets that changed queues", unit: "buckets" },
    ],
    plots: &[Plot {
        name: "busiest",
        title: "The busiest queue's share",
        shape: Shape::Lines,
        x: Axis { title: "queues", log: false, labels: &[] },
        y: Axis { title: "frames through the busiest queue, %", log: false, labels: &[] },
        figures: &["before", "after", "even"],
    }],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Spread;

impl Experiment for Spread {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Ground, size: Size) -> Vec<Point> {
        let queues: &[u16] = match size {
            Size::Tiny => &[5],
            Size::Quick => &[2, 4, 5, 8],
            Size::Full => &[2, 3, 4, 5, 6, 7, 8],
        };
        queues.iter().map(|queues| Point::new(SERIES, *queues).with("queues", queues)).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        // The hash is the same always: other addresses in each repetition, so that it is not always the same luck.
        let mut turn = 0;
        Ok(Box::new(move |point| {
            turn = (turn + 1) % TURNS;
            let rig = Rig::start(setup, 1, point.get("queues")?, "")?.numbered(2 * turn);
            measure(setup, &rig, point.get("queues")?)
        }))
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let at = |figure: &str| results.median(SERIES, 5, figure).map(digits);
        let (Some(before), Some(after)) = (at("before"), at("after")) else { return Vec::new() };
        vec![format!(
            "With five queues the busiest carries {before} % at first and {after} % in the end; 20 % would be even. Guests \
             have other addresses in each repetition, and so the hash puts other streams together."
        )]
    }
}

fn measure(setup: &Setup, rig: &Rig, queues: u16) -> Result<Outcome, LabError> {
    let settles = if setup.size == Size::Tiny { SOON } else { SETTLES };
    let options = format!("--size 64 --queues {queues} --flows {STREAMS}");
    let whole =
        Setup { time: SOON + settles + setup.time, binary: setup.binary.clone(), cache: setup.cache.clone(), ..*setup };
    let mut outcome = Outcome::default();
    let (played, looked) = std::thread::scope(|scope| {
        let playing = scope.spawn(|| rig.play(&whole, &[&options], &mut outcome));
        let looked = look(rig, settles, setup.time);
        let played = playing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (played, looked)
    });
    played?;
    let (before, after) = looked?;
    outcome.figure("before", busiest(&before));
    outcome.figure("after", busiest(&after));
    outcome.figure("even", 100.0 / f64::from(queues));
    outcome.figure("turned", rig.daemon().stats()?.workers.iter().map(|worker| worker.turned).sum::<u64>() as f64);
    outcome.list("queues_before", before);
    outcome.list("queues_after", after);
    Ok(outcome)
}

/// Frames of each queue of the receiver soon after the first, and when all has settled.
fn look(rig: &Rig, settles: Duration, time: Duration) -> Result<(Vec<f64>, Vec<f64>), LabError> {
    let (until, daemon) = (Instant::now() + PATIENCE, rig.daemon());
    // The greetings are a few.
    while received(daemon)?.iter().sum::<u64>() < 1000 {
        if Instant::now() > until {
            return Err(LabError::Said { tool: "the generator".into(), text: "no frames come".into() });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let during = |time: Duration| {
        let then = received(daemon)?;
        std::thread::sleep(time);
        let now = received(daemon)?;
        Ok::<_, LabError>(
            now.iter().zip(&then).map(|(now, then)| now.saturating_sub(*then) as f64).collect::<Vec<f64>>(),
        )
    };
    let before = during(SOON)?;
    std::thread::sleep(settles);
    // The generator stops at about the end of this.
    Ok((before, during(time.mul_f64(0.8))?))
}

/// Frames of each of the receiver's queues so far.
fn received(daemon: &Daemon) -> Result<Vec<u64>, LabError> {
    let [_, name] = generator_ports(0);
    let stats = daemon.stats()?;
    let port = stats.ports.iter().find(|port| port.name == name);
    Ok(port.map_or_else(Vec::new, |port| port.queues.iter().map(|queue| queue.counts.rx_frames).collect()))
}

/// The busiest queue's share, in percent.
fn busiest(frames: &[f64]) -> f64 {
    let all = frames.iter().sum::<f64>().max(1.0);
    frames.iter().copied().fold(0.0, f64::max) / all * 100.0
}
