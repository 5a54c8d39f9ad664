//! Many guests that read disks at once: the hypervisor's old inner design against its new one, with
//! more and more workers.

use hypervisor::embedded::Design;

use super::aggregate::{ends, workers};
use crate::experiment::{
    About, Change, Experiment, Figure, Finding, LabError, Measure, Outcome, Platform, Plot, Point,
    Published, Results, Setup, Size, Source, Verdict,
};
use crate::fixture::{DiskHost, DiskHostSpec, Placement};
use crate::plot::{Axis, Shape};
use crate::statistics::{Summary, digits};

/// A series: its name, the hypervisor's design, and whether the backend maps pages.
type Series = (&'static str, Design, bool);

const SERIES: [Series; 4] = [
    ("old design", Design::OLD, false),
    ("new design", Design::NEW, false),
    ("old design, pages mapped", Design::OLD, true),
    ("new design, pages mapped", Design::NEW, true),
];

const X: Axis = Axis::linear("backend CPUs (workers)");

const ABOUT: About = About {
    name: "storage",
    title: "reads of many guests, by backend CPUs",
    what: "Twenty guests read a disk each, 4 KB at a time, one read after the other, with one \
           worker and more: once with the hypervisor's inner design of Xen 4.5, once with the \
           newest. The hypervisor copies the data into the guest's pages, or the backend maps each \
           page of the guest.",
    source: Some(Source {
        title: "XenServer 7.0 performance improvements part 4: Aggregate I/O throughput improvements, and comments of readers on part 2",
        by: "Jonathan Davies, 2016",
    }),
    platforms: &[Platform::Embedded],
    figures: &[
        Figure { name: "iops", title: "reads of all guests", unit: "1000/s" },
        Figure { name: "each", title: "reads of a guest, in the middle", unit: "1000/s" },
        Figure { name: "slowest", title: "reads of the slowest guest", unit: "1000/s" },
        Figure { name: "backend", title: "CPU of the backend", unit: "% of a CPU" },
        Figure { name: "cost", title: "CPU of the backend for each read", unit: "us" },
        Figure::ALL_CPU,
    ],
    plots: &[
        Plot {
            name: "iops",
            title: "Reads of all guests",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("reads of 4 KB, 1000 a second"),
            figures: &["iops"],
        },
        Plot {
            name: "each",
            title: "Reads of each guest",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("reads of 4 KB, 1000 a second"),
            figures: &["each"],
        },
        Plot {
            name: "cost",
            title: "CPU of the backend for each read",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("CPU time, us"),
            figures: &["cost"],
        },
    ],
    // The plot of its source is lost. A reader gave figures of one process on one core.
    published: &[Published {
        figure: "iops",
        series: "tapdisk3 on one core, random reads, at best (a reader)",
        x: 1.0,
        value: 35.0,
    }],
};

/// See [`ABOUT`].
pub(super) struct Storage;

impl Experiment for Storage {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let guests = if size == Size::Tiny { 3 } else { 20 };
        let of = |(name, ..): Series| {
            let point = move |workers: usize| {
                let point = Point::new(name, workers as u16).with("workers", workers);
                point.with("guests", guests)
            };
            workers(size).into_iter().map(point)
        };
        SERIES.into_iter().flat_map(of).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| measure(setup, point)))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let (first, last) = ends(results, SERIES[0].0);
        let change = |from: (Series, f64), to: (Series, f64)| {
            results.change((from.0.0, from.1), (to.0.0, to.1), "iops")
        };
        let [old, new, old_mapped, new_mapped] = SERIES;
        let [copied, mapped] = [(old, new), (old_mapped, new_mapped)]
            .map(|(old, new)| change((old, last), (new, last)));
        let more = change((new, first), (new, last)).filter(|_| last > first);
        let verdict = |change: &Option<Change>| {
            change.as_ref().map_or(Verdict::Unknown, |change| change.above(1.0))
        };
        let alone = results.median(new.0, first, "iops").map(digits);
        vec![
            Finding {
                published: "an improvement to aggregate storage throughput, new against old".into(),
                here: format!(
                    "{last} workers: {} where pages are mapped, {} where the hypervisor copies",
                    Change::said(mapped.as_ref()),
                    Change::said(copied.as_ref())
                ),
                verdict: verdict(&mapped),
            },
            Finding {
                published: "more CPUs for the backend carry more".into(),
                here: format!(
                    "{last} workers against {first}, new design: {}",
                    Change::said(more.as_ref())
                ),
                verdict: verdict(&more),
            },
            // Of random reads of one guest from a storage network: nothing that can be held against
            // these figures.
            Finding {
                published: "20 000 to 35 000 random reads of 4 KB a second, with one tapdisk3 that keeps one core busy (a reader)"
                    .into(),
                here: format!(
                    "{} thousand a second with one worker, new design, out of the page cache",
                    alone.unwrap_or("not measured".into())
                ),
                verdict: Verdict::Unknown,
            },
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let (_, last) = ends(results, SERIES[0].0);
        let said = |(copied, mapped): (Series, Series)| {
            let change = results.change((mapped.0, last), (copied.0, last), "cost")?;
            Some(format!(
                "With the {} and {last} workers a read costs the backend {} us of CPU time where \
                 the hypervisor copies, and {} us where each page is mapped and unmapped: {}.",
                copied.0,
                digits(change.to.median),
                digits(change.from.median),
                Change::said(Some(&change))
            ))
        };
        [(SERIES[0], SERIES[2]), (SERIES[1], SERIES[3])].into_iter().filter_map(said).collect()
    }

    fn notes(&self, results: &Results) -> Vec<String> {
        let cpus = results.record.configuration.machine.cpus;
        vec![
            format!(
                "The published machine had an NVMe drive, Windows guests, and many more CPUs than \
                 the {cpus} of this one, which also run the guests. Here images are in the page \
                 cache, and a guest is a thread of this process that drives its ring itself and \
                 sleeps until it is interrupted. So these figures are those of the backend alone."
            ),
            "In Ringmain, the hypervisor copies. The backend that maps pages is for comparison: \
            the locks and flushes that the publication removed belong to mapping. Each mapped \
            page is written to, so no design saves its flush; flushes also interrupt guests in \
            the same process."
                .into(),
        ]
    }

    fn repetitions(&self, size: Size) -> u32 {
        match size {
            Size::Tiny => 1,
            Size::Quick => 3,
            Size::Full => 5,
        }
    }
}

fn measure(setup: &Setup, point: &Point) -> Result<Outcome, LabError> {
    let series = SERIES.iter().find(|(name, ..)| *name == point.series);
    let (_, design, mapped) = *series.ok_or(LabError::Setting("series"))?;
    let (workers, guests) = (point.get("workers")?, point.get("guests")?);
    let spec = DiskHostSpec { design, mapped, workers, guests, placement: Placement::Free };
    let reads = DiskHost::start(&spec)?.read(setup.time)?;
    let mut outcome = Outcome::default();
    let all: f64 = reads.rates.iter().sum();
    outcome.figure("iops", all / 1e3);
    if let Some(summary) = Summary::of(reads.rates.clone()) {
        outcome.figure("each", summary.median / 1e3);
        outcome.figure("slowest", summary.least / 1e3);
    }
    outcome.figure("backend", reads.backend * 100.0);
    outcome.figure("cost", reads.backend * 1e6 / all);
    outcome.figure("busy", reads.shares.busy() * 100.0);
    outcome.list("guests", reads.rates);
    outcome.disturbance(&reads.shares);
    let (answered, wrong, served) = (reads.answered, reads.wrong, reads.served);
    outcome.check(
        "reads conserved",
        answered == served && answered > 0,
        format!("{answered} answered, {served} served"),
    );
    outcome.check(
        "each block is the one asked for",
        wrong == 0,
        format!("{wrong} of {answered} blocks are others"),
    );
    Ok(outcome)
}
