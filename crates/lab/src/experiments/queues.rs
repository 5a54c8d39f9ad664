//! One pair of guests, eight streams, more and more queues.

use crate::bed::{Amount, Paired, Pairs, Wants, ports};
use crate::demo::{Over, Stay};
use crate::experiment::{
    About, Experiment, Figure, Finding, Ground, LabError, Measure, Outcome, Plot, Point, Published, Results, Setup,
    Size, Source, digits,
};
use crate::plot::{Axis, Shape};

const STREAMS: u16 = 8;
const SERIES: &str = "Ringmain";
const X: Axis = Axis { title: "queue pairs of each guest", log: false, labels: &[] };
const PUBLISHED: &str = "XenServer 6.5 and 7.0 (published)";

const ABOUT: About = About {
    name: "queues",
    title: "throughput by the number of queues",
    what: "Two guests, eight TCP streams from one to the other, and one to eight queue pairs in both of their interfaces.",
    source: Some(Source {
        title: "XenServer 7.0 performance improvements part 2: Parallelised networking datapath",
        by: "Jonathan Davies, 2016",
    }),
    grounds: &[Ground::Embedded, Ground::Qemu, Ground::Xen],
    figures: &[
        Figure { name: "throughput", title: "throughput of all streams", unit: "Gb/s" },
        Figure { name: "daemon", title: "CPU of the daemon", unit: "% of a CPU" },
        Figure { name: "busy", title: "CPU of everything", unit: "% of a CPU" },
        Figure { name: "busiest", title: "share of the receiver's busiest queue", unit: "%" },
        Figure { name: "streams", title: "streams on the receiver's busiest queue, by their bytes", unit: "of 8" },
        Figure { name: "frames_per_interrupt", title: "frames for each interrupt", unit: "frames" },
    ],
    plots: &[
        Plot {
            name: "throughput",
            title: "Throughput",
            shape: Shape::Lines,
            x: X,
            y: Axis { title: "throughput of 8 streams, Gb/s", log: false, labels: &[] },
            figures: &["throughput"],
        },
        Plot {
            name: "cpu",
            title: "CPU",
            shape: Shape::Lines,
            x: X,
            y: Axis { title: "CPU, % of one", log: false, labels: &[] },
            figures: &["daemon", "busy"],
        },
        Plot {
            name: "spread",
            title: "How evenly the streams were dealt to queues",
            shape: Shape::Lines,
            x: X,
            y: Axis { title: "streams on the busiest queue, by bytes", log: false, labels: &[] },
            figures: &["streams"],
        },
    ],
    published: &[
        Published { figure: "throughput", series: PUBLISHED, x: 1.0, value: 17.0 },
        Published { figure: "throughput", series: PUBLISHED, x: 8.0, value: 41.0 },
    ],
};

/// See [`ABOUT`].
pub(super) struct Queues;

impl Experiment for Queues {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, ground: Ground, size: Size) -> Vec<Point> {
        let queues: &[u16] = match (size, ground) {
            (Size::Tiny, _) => &[1, 2],
            (Size::Quick, Ground::Embedded) => &[1, 2, 4, 8],
            (Size::Full, Ground::Embedded) => &[1, 2, 3, 4, 5, 6, 7, 8],
            // Their interfaces have no more.
            (Size::Quick, _) => &[1, 2, 4],
            (Size::Full, _) => &[1, 2, 3, 4],
        };
        queues.iter().map(|queues| Point::new(SERIES, *queues).with("queues", queues)).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        if setup.ground == Ground::Embedded {
            return Ok(Box::new(|point| embedded(setup, point.get("queues")?).map(counted)));
        }
        // They take long to boot: the same two serve all repetitions.
        let guests = Stay::start(setup.ground.of_demo(), Over::Ringmain, &setup.cache, setup.progress)?;
        Ok(Box::new(move |point| guests.measure(point.get("queues")?, STREAMS, Amount::of(setup)).map(counted)))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let at = |queues: u16| results.median(SERIES, queues, "throughput");
        let ratio = |queues: u16| Some(at(queues)? / at(1)?);
        let times = |ratio: Option<f64>| ratio.map_or("not measured".into(), |ratio| format!("{ratio:.2} times"));
        let blip = at(4).zip(at(5)).zip(at(6)).map(|((four, five), six)| five < four && five < six);
        vec![
            Finding {
                published: "four queues carry more than double what one does".into(),
                here: times(ratio(4)),
                agrees: ratio(4).map(|ratio| ratio > 2.0),
            },
            Finding {
                published: "eight queues carry 41 Gb/s where one carried 17: 2.41 times".into(),
                here: times(ratio(8)),
                agrees: ratio(8).map(|ratio| ratio >= 2.41),
            },
            Finding {
                published: "five queues carry less than four and six: the hash dealt unevenly".into(),
                here: blip.map_or("not measured".into(), |blip| if blip { "a blip" } else { "no blip" }.into()),
                agrees: blip,
            },
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let Some((best, most)) = results.peak(SERIES, "throughput") else { return Vec::new() };
        let mut text = format!("Throughput is highest with {best} queue pairs, {} Gb/s.", digits(most));
        let cpus = results.record.configuration.machine.cpus;
        // Where others were at work, what is busy says nothing of us.
        let busy = results.median(SERIES, 1, "busy").filter(|_| !results.disturbed(0));
        let busy = busy.map(|percent| percent / 100.0 / cpus as f64);
        if let Some(busy) = busy.filter(|busy| *busy >= 0.9) {
            text.push_str(&format!(
                " With one queue pair {:.0} % of this machine's {cpus} CPUs are busy already, so that no further queue finds a \
                 processor to run on: what more queues can show is left to machines with more of them.",
                busy * 100.0
            ));
        }
        vec![text]
    }
}

/// The busiest queue's share as a number of streams: what that many equal ones would carry.
fn counted(mut outcome: Outcome) -> Outcome {
    if let Some(share) = outcome.figures.get("busiest").copied() {
        outcome.figure("streams", share / 100.0 * f64::from(STREAMS));
    }
    outcome
}

fn embedded(setup: &Setup, queues: u16) -> Result<Outcome, LabError> {
    let wants = Wants { queues, ..Wants::default() };
    let Paired { mut outcome, seen, .. } = Pairs { count: 1, queues, streams: STREAMS, wants }.measure(setup)?;
    let [sender, receiver] = ports(0);
    let shares = seen.queues(&receiver, |counts| counts.rx_bytes);
    outcome.figure("busiest", shares.iter().copied().fold(0.0, f64::max) * 100.0);
    outcome.list("receiver_queues", shares);
    outcome.list("sender_queues", seen.queues(&sender, |counts| counts.tx_bytes));
    Ok(outcome)
}
