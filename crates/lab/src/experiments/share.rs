//! A quiet guest beside a loud one, on one worker.

use crate::experiment::{
    About, Experiment, Figure, LabError, Measure, Outcome, Platform, Plot, Point, Results, Setup,
    Size,
};
use crate::fixture::GeneratorSetup;
use crate::plot::{Axis, Shape};
use crate::statistics::digits;

const QUIET: &str = "--size 64 --rate 1000";
const SERIES: &str = "the quiet guest";
/// Beside whom: the options of the loud one.
const BESIDE: [&str; 3] = ["", "--size 64", "--size 64294 --tso --rx-ring 1024"];
const X: Axis = Axis {
    title: "beside whom",
    log: false,
    labels: &["nobody", "a flood of 64 B frames", "a flood of 64 KB frames"],
};

const ABOUT: About = About {
    name: "share",
    title: "a quiet guest beside a flooding one",
    what: "A guest sends a thousand small frames a second to another guest. The same worker \
    carries the frames that a third guest sends to a fourth: none, frames of 64 bytes at full \
    rate, or frames of 64 KB at full rate. The worker uses deficit round robin.",
    source: None,
    platforms: &[Platform::Embedded],
    figures: &[
        Figure { name: "p50", title: "latency, median", unit: "us" },
        Figure { name: "p99", title: "latency, 99th percentile", unit: "us" },
        Figure { name: "arrived", title: "frames of the quiet one that arrived", unit: "%" },
        Figure { name: "flood", title: "throughput of the flood", unit: "Gb/s" },
    ],
    plots: &[
        Plot {
            name: "latency",
            title: "Latency of the quiet guest's frames",
            shape: Shape::Columns,
            x: X,
            y: Axis::linear("latency, us"),
            figures: &["p50", "p99"],
        },
        Plot {
            name: "arrived",
            title: "The quiet guest's frames that arrived",
            shape: Shape::Columns,
            x: X,
            y: Axis::linear("frames that arrived, %"),
            figures: &["arrived"],
        },
    ],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Share;

impl Experiment for Share {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, _: Size) -> Vec<Point> {
        let point = |(x, beside): (u16, &str)| Point::new(SERIES, x).with("beside", beside);
        (0..).zip(BESIDE).map(point).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| {
            let all = [QUIET, point.text("beside")];
            let lines = if all[1].is_empty() { &all[..1] } else { &all[..] };
            let rig = GeneratorSetup::start(setup, lines.len() as u16, 1, "")?;
            let mut outcome = Outcome::default();
            let reports = rig.run(setup, lines, &mut outcome)?;
            if let Some(to) = reports.first().and_then(|report| report.directions.first()) {
                outcome.figure("p50", to.latency.p50);
                outcome.figure("p99", to.latency.p99);
                outcome.figure("arrived", to.received as f64 / to.sent.max(1) as f64 * 100.0);
            }
            if let Some(flood) = reports.get(1) {
                outcome.figure("flood", flood.gbps);
            }
            Ok(outcome)
        }))
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let at = |x: u16, figure: &str| results.median(SERIES, x, figure).map(digits);
        let mut all = Vec::new();
        for (x, beside) in [(1, "64 bytes"), (2, "64 KB")] {
            if let Some(((before, after), (p99, flood))) =
                at(0, "p99").zip(at(x, "p99")).zip(at(x, "p50").zip(at(x, "flood")))
            {
                all.push(format!(
                    "Beside a flood of {beside}, which gets {flood} Gb/s, one frame in a hundred \
                     of the quiet guest takes longer than {after} us, and the median is {p99} us. \
                     Alone, one frame in a hundred takes longer than {before} us."
                ));
            }
        }
        all
    }

    fn notes(&self, _: &Results) -> Vec<String> {
        vec![
            "One CPU runs all four guests alternately. Sending and receiving the flood on that CPU \
             also delays the quiet guest's frames, and is part of the latency. Without a flood the \
             worker sleeps between two frames, and wakes up for each."
                .into(),
        ]
    }
}
