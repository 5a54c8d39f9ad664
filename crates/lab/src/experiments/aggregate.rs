//! Many pairs of guests at once: the hypervisor's old inner design against its new one, with more
//! and more workers.

use std::io;

use hypervisor::embedded::Design;

use crate::bench::embedded::{Use, use_grants};
use crate::experiment::{
    About, Change, Experiment, Figure, Finding, LabError, Measure, Outcome, Platform, Plot, Point,
    Published, Results, Setup, Size, Source, Verdict,
};
use crate::fixture::{DaemonSpec, Pairs};
use crate::plot::{Axis, Shape};
use crate::statistics::digits;
use load::cpu::Snapshot;

const DESIGNS: [(&str, Design); 2] = [("old design", Design::OLD), ("new design", Design::NEW)];

const ABOUT: About = About {
    name: "aggregate",
    title: "throughput of many pairs of guests, by backend CPUs",
    what: "One to twenty pairs of guests send to each other at once, one TCP stream each, with one \
           worker and more: once with the hypervisor's inner design of Xen 4.5, once with the \
           newest. In addition, the rates of threads that only use grants of one guest.",
    source: Some(Source {
        title: "XenServer 7.0 performance improvements part 4: Aggregate I/O throughput improvements",
        by: "Jonathan Davies, 2016",
    }),
    platforms: &[Platform::Embedded],
    figures: &[
        Figure { name: "throughput", title: "throughput of all pairs", unit: "Gb/s" },
        Figure::DAEMON_CPU,
        Figure::ALL_CPU,
        Figure { name: "copies", title: "grant copies", unit: "million/s" },
        Figure { name: "maps", title: "grants mapped and unmapped", unit: "million/s" },
    ],
    plots: &[
        Plot {
            name: "throughput",
            title: "Throughput of all pairs",
            shape: Shape::Lines,
            x: Axis::linear("backend CPUs (workers)"),
            y: Axis::linear("throughput, Gb/s"),
            figures: &["throughput"],
        },
        Plot {
            name: "copies",
            title: "Granted pages copied, by threads that do nothing else",
            shape: Shape::Lines,
            x: Axis::linear("threads"),
            y: Axis::linear("copies, million a second"),
            figures: &["copies"],
        },
        Plot {
            name: "maps",
            title: "Granted pages mapped and unmapped, by threads that do nothing else",
            shape: Shape::Lines,
            x: Axis::linear("threads"),
            y: Axis::linear("pages, million a second"),
            figures: &["maps"],
        },
    ],
    // Its plots are pictures; what its text says of them is held against ours in findings.
    published: &[] as &[Published],
};

/// See [`ABOUT`].
pub(super) struct Aggregate;

impl Experiment for Aggregate {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let pairs: &[u8] = match size {
            Size::Tiny => &[1, 2],
            Size::Quick => &[1, 10],
            Size::Full => &[1, 5, 10, 20],
        };
        let mut points = Vec::new();
        for (name, _) in DESIGNS {
            for workers in workers(size) {
                for pairs in pairs {
                    let point =
                        Point::new(series(name, *pairs), workers as u16).with("design", name);
                    points.push(point.with("pairs", pairs).with("workers", workers));
                }
                for what in ["copies", "maps"] {
                    let point =
                        Point::new(format!("{name}: {what}"), workers as u16).with("design", name);
                    points.push(point.with("threads", workers).with("what", what));
                }
            }
        }
        points
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| match point.text("what") {
            "" => streams(setup, point),
            what => grants(setup, point, what),
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let configuration = &results.record.configuration;
        let most = configuration
            .points
            .iter()
            .filter_map(|point| point.get::<u8>("pairs").ok())
            .max()
            .unwrap_or(1);
        let (first, last) = ends(results, &series(DESIGNS[0].0, most));
        let names = DESIGNS.map(|(name, _)| series(name, most));
        let [old, new] = names.each_ref().map(String::as_str);
        let change = |from: (&str, f64), to: (&str, f64)| results.change(from, to, "throughput");
        let with = format!("{last} workers against {first}, {most} pairs");
        let finding = |published: &str,
                       change: Option<Change>,
                       what: &str,
                       verdict: fn(&Change) -> Verdict| {
            let here = format!("{what}: {}", Change::said(change.as_ref()));
            let verdict = change.as_ref().map_or(Verdict::Unknown, verdict);
            Finding { published: published.into(), here, verdict }
        };
        vec![
            finding(
                "with the old design throughput falls as CPUs are added",
                change((old, first), (old, last)).filter(|_| last > first),
                &with,
                |change| change.below(1.0),
            ),
            finding(
                "with the new design it scales",
                change((new, first), (new, last)).filter(|_| last > first),
                &with,
                |change| change.above(1.0),
            ),
            finding(
                "over three times in total, new against old",
                change((old, last), (new, last)),
                &format!("{last} workers, {most} pairs"),
                |change| change.above(3.0),
            ),
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let mut all = Vec::new();
        for what in ["copies", "maps"] {
            let names = DESIGNS.map(|(name, _)| format!("{name}: {what}"));
            let [old, new] = names.each_ref().map(String::as_str);
            let (_, last) = ends(results, old);
            if let Some(change) = results.change((old, last), (new, last), what) {
                all.push(format!(
                    "{last} threads that only use grants make {} million {what} a second with the \
                     new design, {} with the old one: {}.",
                    digits(change.to.median),
                    digits(change.from.median),
                    Change::said(Some(&change))
                ));
            }
        }
        all
    }

    fn notes(&self, results: &Results) -> Vec<String> {
        let cpus = results.record.configuration.machine.cpus;
        vec![format!(
            "The published machine had many more CPUs than the {cpus} of this one, which also run \
             workers, guests and their programs. The backend of that time mapped every page that a \
             guest sent, and flushed TLBs after unmapping. Ringmain copies, so with streams only \
             the locks of the grant table and the page lookups differ, and only the last plot \
             shows mapping."
        )]
    }

    fn repetitions(&self, size: Size) -> u32 {
        match size {
            Size::Tiny => 1,
            Size::Quick => 3,
            Size::Full => 5,
        }
    }
}

fn series(design: &str, pairs: u8) -> String {
    format!("{design}, {pairs} {}", if pairs == 1 { "pair" } else { "pairs" })
}

/// Powers of two up to the number of CPUs, two at least.
pub(super) fn workers(size: Size) -> Vec<usize> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).clamp(2, 16);
    let most = if size == Size::Tiny { 2 } else { cpus };
    std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n <= most).collect()
}

/// The first and the last place of a series.
pub(super) fn ends(results: &Results, series: &str) -> (f64, f64) {
    let xs: Vec<f64> = results.points(series).map(|(_, point)| point.x).collect();
    (xs.iter().copied().fold(f64::INFINITY, f64::min), xs.iter().copied().fold(0.0, f64::max))
}

fn design(point: &Point) -> Result<Design, LabError> {
    let found = DESIGNS.iter().find(|(name, _)| *name == point.text("design"));
    found.map(|(_, design)| *design).ok_or(LabError::Setting("design"))
}

fn streams(setup: &Setup, point: &Point) -> Result<Outcome, LabError> {
    let (workers, design) = (Some(point.get("workers")?), Some(design(point)?));
    let daemon_spec = DaemonSpec { workers, queues: 1, design, ..DaemonSpec::default() };
    let pairs =
        Pairs { count: point.get("pairs")?, queues: 1, streams: 1, daemon_spec, profiled: false };
    Ok(pairs.measure(setup)?.outcome)
}

/// Threads that do nothing but use one guest's grants.
fn grants(setup: &Setup, point: &Point, what: &str) -> Result<Outcome, LabError> {
    let threads = point.get("threads")?;
    let how = if what == "maps" { Use::Map { threads } } else { Use::Copy { threads } };
    let own = [std::process::id()];
    let before = Snapshot::now(&own);
    let rate = use_grants(design(point)?, how, setup.time).map_err(refused)?;
    let mut outcome = Outcome::default();
    outcome.disturbance(&Snapshot::now(&own).since(&before));
    outcome.figure(what, rate);
    outcome.check("no use of a grant was refused", rate > 0.0, format!("{rate} million a second"));
    Ok(outcome)
}

fn refused(error: io::Error) -> LabError {
    LabError::system("use grants")(error)
}
