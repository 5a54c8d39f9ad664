//! The default numbers of workers and queues, against other choices.

use control::config::defaults;

use crate::experiment::{
    About, Experiment, Figure, Finding, LabError, Measure, Platform, Plot, Point, Results, Setup,
    Size, Source, Verdict,
};
use crate::fixture::{DaemonSpec, Pairs};
use crate::plot::{Axis, Shape};
use crate::statistics::digits;

const STREAMS: u16 = 8;

const ABOUT: About = About {
    name: "defaults",
    title: "workers and queues by default, and other choices",
    what: "One pair of guests, each with a thread for every queue pair and no more than there are \
           CPUs, eight TCP streams; workers and queue pairs by the rule of docs/configuration.md, \
           and fewer and more of both.",
    source: Some(Source {
        title: "XenServer 7.0 performance improvements part 2: Parallelised networking datapath, \
                and part 4: Aggregate I/O throughput improvements",
        by: "Jonathan Davies, 2016",
    }),
    platforms: &[Platform::Embedded],
    figures: &[Figure::THROUGHPUT, Figure::DAEMON_CPU, Figure::ALL_CPU],
    plots: &[Plot {
        name: "throughput",
        title: "Throughput by workers and queue pairs",
        shape: Shape::Lines,
        x: Axis::linear("queue pairs of each guest"),
        y: Axis::linear("throughput of 8 streams, Gb/s"),
        figures: &["throughput"],
    }],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Defaults;

impl Experiment for Defaults {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let (workers, queues) = rule(cpus());
        let around = |rule: usize| -> Vec<usize> {
            let mut all = match size {
                Size::Tiny => vec![rule],
                Size::Quick => vec![1, rule, rule * 2],
                Size::Full => vec![1, rule.div_ceil(2), rule, rule * 2, rule * 4],
            };
            all.retain(|choice| (1..=16).contains(choice));
            all.sort_unstable();
            all.dedup();
            all
        };
        let point = |workers: usize, queues: usize| {
            Point::new(series(workers), queues as u16)
                .with("workers", workers)
                .with("queues", queues)
        };
        let choices = around(workers).into_iter();
        choices
            .flat_map(|workers| {
                around(queues).into_iter().map(move |queues| point(workers, queues))
            })
            .collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| {
            let queues = point.get("queues")?;
            let daemon_spec = DaemonSpec {
                workers: Some(point.get("workers")?),
                queues,
                ..DaemonSpec::default()
            };
            Ok(Pairs { count: 1, queues, streams: STREAMS, daemon_spec, profiled: false }
                .measure(setup)?
                .outcome)
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let (workers, queues) = rule(results.record.configuration.machine.cpus);
        let (rule, Some(best)) = ((series(workers), queues as f64), best(results)) else {
            return Vec::new();
        };
        let change = results.change((best.0, best.1), (rule.0.as_str(), rule.1), "throughput");
        let Some(change) = change else { return Vec::new() };
        let (by_rule, most) = (digits(change.to.median), digits(change.from.median));
        let itself = best == (rule.0.as_str(), rule.1);
        vec![Finding {
            published: "the default, as many queues as guest and backend have CPUs, is sensible"
                .into(),
            here: format!(
                "{by_rule} Gb/s by the rule; the best of all, with {} and {} queue pairs, {most}",
                best.0, best.1
            ),
            verdict: if itself { Verdict::So } else { change.above(0.9) },
        }]
    }

    fn notes(&self, results: &Results) -> Vec<String> {
        let cpus = results.record.configuration.machine.cpus;
        let (workers, queues) = rule(cpus);
        vec![format!(
            "The rule on a machine of {cpus} CPUs: {workers} workers, and {queues} queue pairs for \
             a guest of {cpus} vCPUs. It counts as sensible here when it carries nine tenths of \
             the best choice's throughput."
        )]
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Workers and queue pairs by the rule, for a guest with as many vCPUs as there are CPUs.
fn rule(cpus: usize) -> (usize, usize) {
    let workers = defaults::workers(cpus);
    let vcpus = u16::try_from(cpus).unwrap_or(u16::MAX);
    (workers, defaults::used(vcpus, defaults::offered(workers)).into())
}

fn series(workers: usize) -> String {
    format!("{workers} {}", if workers == 1 { "worker" } else { "workers" })
}

/// The series and the number of queue pairs with which throughput is highest.
fn best<'a>(results: &Results<'a>) -> Option<(&'a str, f64)> {
    let peaks = results
        .series()
        .into_iter()
        .filter_map(|series| Some((series, results.peak(series, "throughput")?)));
    let (series, (queues, _)) = peaks.max_by(|a, b| a.1.1.total_cmp(&b.1.1))?;
    Some((series, queues))
}
