//! Ways of waiting for frames, under loads from none to full: their cost, and the delay of frames.

use crate::experiment::{
    About, Experiment, Figure, LabError, Measure, Outcome, Platform, Plot, Point, Results, Setup,
    Size,
};
use crate::fixture::GeneratorSetup;
use crate::plot::{Axis, Shape};
use crate::statistics::digits;
use load::Report;

/// The ways that are compared: values of the configuration's `polling`.
const WORDS: [&str; 6] = ["balanced", "eco", "latency", "always", "never", "50us"];
/// Frames a second.
const RATES: [u32; 5] = [1_000, 10_000, 80_000, 400_000, 1_600_000];
/// The place in the plot of a sender that never waits.
const FULL: u32 = 10_000_000;
/// The rate of idle guests: connected, without frames.
const IDLE: u32 = 0;

const X: Axis = Axis {
    title: "offered load, frames/s; 10 M stands for a sender that never waits",
    log: true,
    labels: &[],
};

const fn over_load(
    name: &'static str,
    title: &'static str,
    y: &'static str,
    figure: &'static [&'static str],
) -> Plot {
    let y = Axis { title: y, log: true, labels: &[] };
    Plot { name, title, shape: Shape::Lines, x: X, y, figures: figure }
}

const ABOUT: About = About {
    name: "polling",
    title: "ways of waiting, over load from idle to full",
    what: "Frames of 64 bytes from one guest to another, at rates from zero to the highest rate \
           that is carried, with gaps of mixed lengths: bursts, random gaps, and silences. One \
           worker waits according to the configuration's polling: by the worth of a shorter delay \
           (balanced, eco, latency), always or never, or for a fixed time. Both guests poll all \
           the time, so only the worker delays a frame.",
    source: None,
    platforms: &[Platform::Embedded],
    figures: &[
        Figure::DAEMON_CPU,
        Figure { name: "each", title: "CPU of the daemon for a frame", unit: "us" },
        Figure { name: "p50", title: "latency, median", unit: "us" },
        Figure { name: "p99", title: "latency, 99th percentile", unit: "us" },
        Figure { name: "idle", title: "CPU of the daemon, idle", unit: "% of a CPU" },
        Figure { name: "carried", title: "frames carried", unit: "thousand/s" },
    ],
    plots: &[
        over_load("cpu", "CPU of the daemon", "CPU, % of one", &["daemon"]),
        over_load("each", "CPU for each frame", "CPU time, us a frame", &["each"]),
        over_load("p50", "Latency, median", "latency, us", &["p50"]),
        over_load("p99", "Latency, 99th percentile", "latency, us", &["p99"]),
        Plot {
            name: "idle",
            title: "CPU of the daemon when nothing comes",
            shape: Shape::Columns,
            x: Axis { title: "two guests, connected", log: false, labels: &["idle"] },
            y: Axis::linear("CPU, % of one"),
            figures: &["idle"],
        },
    ],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Polling;

impl Experiment for Polling {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let rates = match size {
            Size::Tiny => vec![IDLE, RATES[1]],
            Size::Quick | Size::Full => [&[IDLE], &RATES[..], &[FULL]].concat(),
        };
        let words = if size == Size::Tiny { &WORDS[..1] } else { &WORDS[..] };
        let point = |word: &str, rate: u32| {
            let options = match rate {
                IDLE => "--size 64 --rate 0 --interrupts".to_owned(),
                FULL => "--size 64".to_owned(),
                rate => format!("--size 64 --rate {rate} --gaps mixed"),
            };
            Point::new(word, rate).with("polling", word).with("options", options)
        };
        rates.iter().flat_map(|rate| words.iter().map(move |word| point(word, *rate))).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| {
            let rig = GeneratorSetup::start(
                setup,
                1,
                1,
                &format!("polling = \"{}\"", point.text("polling")),
            )?;
            match point.x > 0.0 {
                true => busy(setup, &rig, point.text("options")),
                false => idle(setup, &rig, point.text("options")),
            }
        }))
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let [ours, always, never] = [WORDS[0], WORDS[3], WORDS[4]];
        let at =
            |word: &str, rate: u32, figure: &str| results.median(word, rate, figure).map(digits);
        let three = |rate: u32, figure: &str| {
            Some((at(ours, rate, figure)?, at(always, rate, figure)?, at(never, rate, figure)?))
        };
        let mut all = Vec::new();
        for rate in [RATES[0], RATES[2]] {
            if let Some(((cpu, most, least), (p99, best, worst))) =
                three(rate, "daemon").zip(three(rate, "p99"))
            {
                all.push(format!(
                    "At {rate} frames a second \"{ours}\" takes {cpu} % of a CPU, where \
                     \"{always}\" takes {most} and \"{never}\" {least}; its latency is {p99} us at \
                     the 99th percentile, and theirs {best} and {worst}."
                ));
            }
        }
        all
    }

    fn notes(&self, _: &Results) -> Vec<String> {
        vec![
            "The generator sends and receives alternately on one CPU, which is part of every \
             latency. Where the sender never waits, its ring is full all the time, and the latency \
             of a frame is that of a full ring."
                .into(),
        ]
    }
}

fn busy(setup: &Setup, rig: &GeneratorSetup, options: &str) -> Result<Outcome, LabError> {
    let mut outcome = Outcome::default();
    let reports = rig.run(setup, &[options], &mut outcome)?;
    let Some((report, to)) =
        reports.first().and_then(|report: &Report| Some((report, report.directions.first()?)))
    else {
        return Err(LabError::Setting("options"));
    };
    let percent = report.cpu.backend.unwrap_or_default();
    outcome.figure("daemon", percent);
    outcome.figure("each", percent / 100.0 / report.mpps.max(1e-9));
    outcome.figure("p50", to.latency.p50);
    outcome.figure("p99", to.latency.p99);
    outcome.figure("carried", report.mpps * 1e3);
    Ok(outcome)
}

/// Guests that are there and send nothing but that they are.
fn idle(setup: &Setup, rig: &GeneratorSetup, options: &str) -> Result<Outcome, LabError> {
    let mut outcome = Outcome::default();
    let reports = rig.run(setup, &[options], &mut outcome)?;
    outcome
        .figure("idle", reports.first().and_then(|report| report.cpu.backend).unwrap_or_default());
    Ok(outcome)
}
