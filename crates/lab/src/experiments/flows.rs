//! More and more flows, and a flood of flows that have one frame each beside them.

use crate::daemon::{Daemon, DaemonError};
use crate::experiment::{
    About, Experiment, Figure, LabError, Measure, Outcome, Platform, Plot, Point, Results, Setup,
    Size,
};
use crate::fixture::GeneratorSetup;
use crate::plot::{Axis, Shape};
use crate::statistics::digits;

const FLOWS: [u32; 4] = [1, 64, 4096, 100_000];
/// The series: what it is called, the sender's option, and that of the second pair's sender if
/// there is one.
const SERIES: [(&str, &str, &str); 4] = [
    ("one pair of addresses", "own", ""),
    ("a source address for each flow", "flow", ""),
    ("beside a pair with one flow", "flow", "own"),
    ("beside a flood of one-frame flows", "flow", "frame"),
];
const X: Axis = Axis { title: "flows of the first pair", log: true, labels: &[] };

const ABOUT: About = About {
    name: "flows",
    title: "frames a second by the number of flows",
    what: "Frames of 64 bytes from one guest to another through one worker, in 1 to 100 000 flows: \
    all with the same addresses, or each with a source address of its own. Then the same beside \
    a second pair of guests that sends as much as possible: in one flow, or each frame from an \
    address that was not seen before.",
    source: None,
    platforms: &[Platform::Embedded],
    figures: &[
        Figure { name: "frames", title: "frames", unit: "million/s" },
        Figure { name: "first_pair", title: "frames of the first pair", unit: "million/s" },
        Figure { name: "flood", title: "frames of the second pair", unit: "million/s" },
        Figure { name: "hits", title: "frames found in the flow cache", unit: "%" },
        Figure {
            name: "full",
            title: "times that the first sender found its ring full",
            unit: "%",
        },
    ],
    plots: &[
        Plot {
            name: "frames",
            title: "Alone",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("frames, million a second"),
            figures: &["frames"],
        },
        Plot {
            name: "first_pair",
            title: "Beside a second pair",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("frames of the first pair, million/s"),
            figures: &["first_pair"],
        },
        Plot {
            name: "hits",
            title: "Found in the worker's flow cache, over all pairs",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("frames found, %"),
            figures: &["hits"],
        },
    ],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Flows;

impl Experiment for Flows {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let flows = if size == Size::Tiny { &FLOWS[1..2] } else { &FLOWS };
        let of = |(name, sources, beside): (&str, &str, &str)| {
            let point = |flows: &u32| {
                let options = format!("--size 64 --flows {flows} --sources {sources}");
                Point::new(name, *flows).with("options", options).with("beside", beside)
            };
            flows.iter().map(point).collect::<Vec<_>>()
        };
        SERIES.into_iter().flat_map(of).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| measure(setup, point.text("options"), point.text("beside"))))
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let most =
            results.record.configuration.points.iter().map(|point| point.x).fold(0.0, f64::max);
        let [_, own, beside, flood] = SERIES.map(|(name, ..)| name);
        let mut all = Vec::new();
        if let Some(change) = results.change((own, 1.0), (own, most), "frames") {
            let (share, hedge) = (digits(change.ratio() * 100.0), change.hedge());
            all.push(format!(
                "{most} flows with addresses of their own are carried at {share} % of the rate of one{hedge}."
            ));
        }
        if let Some(change) = results.change((beside, 64.0), (flood, 64.0), "first_pair") {
            let (share, hedge) = (digits(change.ratio() * 100.0), change.hedge());
            let hits = results.median(flood, 64, "hits").map_or("-".into(), digits);
            all.push(format!(
                "Where the other pair floods the switch with new addresses, 64 flows keep {share} \
                 % of the rate that they have beside a pair with one flow{hedge}. The cache has \
                 the flow of {hits} % of all frames, and never those of the flood."
            ));
        }
        all
    }

    fn notes(&self, _: &Results) -> Vec<String> {
        vec![
            "A flow of the worker's cache is a pair of addresses in a network: headers above \
             Ethernet have no effect on the decision, so a million connections between two guests \
             are one flow. The cache holds 4096 flows, and the switch learns up to 2048 addresses \
             of a port."
                .into(),
            "Where the sender finds its ring full most of the time, the switch limits the rate. \
            Where the ring is seldom full, the generator limits the rate, because it makes \
            frames with so many addresses on one CPU."
                .into(),
        ]
    }
}

fn measure(setup: &Setup, options: &str, beside: &str) -> Result<Outcome, LabError> {
    let second = format!("--size 64 --sources {beside}");
    let lines: &[&str] = if beside.is_empty() { &[options] } else { &[options, &second] };
    let rig = GeneratorSetup::start(setup, lines.len() as u16, 1, "")?;
    let mut outcome = Outcome::default();
    let before = looked_up(rig.daemon())?;
    let reports = rig.run(setup, lines, &mut outcome)?;
    let after = looked_up(rig.daemon())?;
    let names: &[&str] = if beside.is_empty() { &["frames"] } else { &["first_pair", "flood"] };
    for (name, report) in names.iter().zip(&reports) {
        outcome.figure(name, report.mpps);
    }
    if let Some(first) = reports.first() {
        outcome.figure("full", first.full);
    }
    let [hits, all] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    outcome.figure("hits", hits as f64 / all.max(1) as f64 * 100.0);
    Ok(outcome)
}

/// Frames that were found in the workers' flow caches, and all that were looked for.
fn looked_up(daemon: &Daemon) -> Result<[u64; 2], DaemonError> {
    let workers = daemon.stats()?.workers;
    let hits = workers.iter().map(|worker| worker.cache_hits).sum::<u64>();
    Ok([hits, hits + workers.iter().map(|worker| worker.cache_misses).sum::<u64>()])
}
