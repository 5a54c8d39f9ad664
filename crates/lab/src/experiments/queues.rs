//! One pair of guests, eight streams, more and more queues.

use crate::demo::Over;
use crate::experiment::{
    About, Change, Experiment, Figure, Finding, LabError, Measure, Outcome, Platform, Plot, Point,
    Published, Results, Setup, Size, Source, Verdict,
};
use crate::fixture::{Amount, DaemonSpec, GuestPair, Pairs, ports};
use crate::plot::{Axis, Shape};
use crate::statistics::digits;

const STREAMS: u16 = 8;
const SERIES: &str = "Ringmain";
const X: Axis = Axis::linear("queue pairs of each guest");

const ABOUT: About = About {
    name: "queues",
    title: "throughput by the number of queues",
    what: "Two guests, eight TCP streams from one to the other, and one to eight queue pairs in both of their interfaces.",
    source: Some(Source {
        title: "XenServer 7.0 performance improvements part 2: Parallelised networking datapath",
        by: "Jonathan Davies, 2016",
    }),
    platforms: &[Platform::Embedded, Platform::Qemu, Platform::Xen],
    figures: &[
        Figure::THROUGHPUT,
        Figure::DAEMON_CPU,
        Figure::ALL_CPU,
        Figure { name: "busiest", title: "the receiver's busiest queue", unit: "% of the bytes" },
        Figure {
            name: "sender_streams",
            title: "on one queue of the sender, at most",
            unit: "streams",
        },
        Figure {
            name: "receiver_streams",
            title: "on one queue of the receiver, at most",
            unit: "streams",
        },
        Figure::FRAMES_PER_INTERRUPT,
    ],
    plots: &[
        Plot {
            name: "throughput",
            title: "Throughput",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("throughput of 8 streams, Gb/s"),
            figures: &["throughput"],
        },
        Plot {
            name: "cpu",
            title: "CPU",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("CPU, % of one"),
            figures: &["daemon", "busy"],
        },
        Plot {
            name: "spread",
            title: "How evenly queues were used",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("receiver's busiest queue, % of the bytes"),
            figures: &["busiest"],
        },
        Plot {
            name: "streams",
            title: "Streams on one queue",
            shape: Shape::Lines,
            x: X,
            y: Axis::linear("streams on the queue that has most"),
            figures: &["sender_streams", "receiver_streams"],
        },
    ],
    published: &[
        Published {
            figure: "throughput",
            series: "XenServer 6.5 (published)",
            x: 1.0,
            value: 17.0,
        },
        Published {
            figure: "throughput",
            series: "XenServer 7.0 (published)",
            x: 8.0,
            value: 41.0,
        },
    ],
};

/// See [`ABOUT`].
pub(super) struct Queues;

impl Experiment for Queues {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, platform: Platform, size: Size) -> Vec<Point> {
        let queues: &[u16] = match (size, platform) {
            (Size::Tiny, _) => &[1, 2],
            (Size::Quick, Platform::Embedded) => &[1, 2, 4, 8],
            (Size::Full, Platform::Embedded) => &[1, 2, 3, 4, 5, 6, 7, 8],
            // Their interfaces have no more.
            (Size::Quick, _) => &[1, 2, 4],
            (Size::Full, _) => &[1, 2, 3, 4],
        };
        queues.iter().map(|queues| Point::new(SERIES, *queues).with("queues", queues)).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        if setup.platform == Platform::Embedded {
            return Ok(Box::new(|point, _| embedded(setup, point.get("queues")?)));
        }
        // Guests take long to boot: the same two serve all repetitions.
        let guests = GuestPair::start(
            &setup.program(),
            setup.platform.into(),
            Over::Ringmain,
            &setup.cache,
            setup.progress,
        )?;
        Ok(Box::new(move |point, _| {
            guests.measure(point.get("queues")?, STREAMS, Amount::of(setup))
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let change =
            |from: f64, to: f64| results.change((SERIES, from), (SERIES, to), "throughput");
        let more = |published: &str, queues: f64, times: f64| {
            let change = change(1.0, queues);
            let verdict = change.as_ref().map_or(Verdict::Unknown, |change| change.above(times));
            Finding { published: published.into(), here: Change::said(change.as_ref()), verdict }
        };
        let blip = change(4.0, 5.0).zip(change(6.0, 5.0));
        vec![
            more("four queues carry more than double what one does", 4.0, 2.0),
            more("eight queues carry 41 Gb/s where one carried 17: 2.41 times", 8.0, 2.41),
            Finding {
                published: "five queues carry less than four and six: the hash was uneven".into(),
                here: blip.as_ref().map_or("not measured".into(), |(four, six)| {
                    format!(
                        "{:.2} times what four do, {:.2} times what six do",
                        four.ratio(),
                        six.ratio()
                    )
                }),
                verdict: blip
                    .map_or(Verdict::Unknown, |(four, six)| four.below(1.0).and(six.below(1.0))),
            },
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let Some(mut text) = highest(results, SERIES) else { return Vec::new() };
        let cpus = results.record.configuration.machine.cpus;
        let busy = results.median(SERIES, 1, "busy").map(|percent| percent / 100.0 / cpus as f64);
        if let Some(busy) = busy.filter(|busy| *busy >= 0.9) {
            text.push_str(&format!(
                " With one queue pair {:.0} % of this machine's {cpus} CPUs are busy already, so \
                 that no further queue finds a processor to run on: the effect of more queues \
                 shows only on machines with more CPUs.",
                busy * 100.0
            ));
        }
        let most = results.points(SERIES).map(|(_, point)| point.x).fold(1.0, f64::max);
        let dealt =
            if most > 1.0 { dealt(results, 5.0).or_else(|| dealt(results, most)) } else { None };
        [Some(text), dealt].into_iter().flatten().collect()
    }
}

/// The number of queue pairs with the highest throughput of a series, and those whose throughput is
/// within the scatter of that.
pub(super) fn highest(results: &Results, series: &str) -> Option<String> {
    let (best, most) = results.peak(series, "throughput")?;
    let level: Vec<String> =
        results.as_good(series, "throughput").iter().map(ToString::to_string).collect();
    Some(match level.as_slice() {
        [] => format!("Throughput is highest with {best} queue pairs, {} Gb/s.", digits(most)),
        level => format!(
            "The highest median of throughput is {} Gb/s, with {best} queue pairs; the throughput with {} is within the scatter of that.",
            digits(most),
            level.join(", ")
        ),
    })
}

/// How many streams each queue had, most first, in each repetition at that number of queues.
fn dealt(results: &Results, queues: f64) -> Option<String> {
    let (number, _) = results.points(SERIES).find(|(_, point)| point.x == queues)?;
    let deal = |mut streams: Vec<f64>| {
        streams.sort_by(|a, b| b.total_cmp(a));
        streams.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
    };
    let deals = |list: &str| {
        let lists = results
            .counted(number)
            .into_iter()
            .filter_map(|one| one.outcome.lists.get(list).cloned());
        lists.map(deal).collect::<Vec<_>>().join(", ")
    };
    let (sender, receiver) = (deals("sender_streams"), deals("receiver_streams"));
    let text = format!(
        "Streams on each queue with {queues} queue pairs, by repetition: {sender} at the sender, {receiver} at the receiver."
    );
    (!sender.is_empty() && !receiver.is_empty()).then_some(text)
}

fn embedded(setup: &Setup, queues: u16) -> Result<Outcome, LabError> {
    let daemon_spec = DaemonSpec { queues, ..DaemonSpec::default() };
    let paired =
        Pairs { count: 1, queues, streams: STREAMS, daemon_spec, profiled: true }.measure(setup)?;
    let [sender, receiver] = ports(0);
    let shares = paired.seen.queues(&receiver, |counts| counts.rx_bytes);
    let sent = paired.streams(&sender, |flows| flows.sent);
    let received = paired.streams(&receiver, |flows| flows.received);
    let mut outcome = paired.outcome;
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    outcome.figure("busiest", most(&shares) * 100.0);
    outcome.figure("sender_streams", most(&sent));
    outcome.figure("receiver_streams", most(&received));
    // A stream that was pointed to another queue meanwhile counts on both.
    let all = |streams: &[f64]| streams.iter().sum::<f64>() >= f64::from(STREAMS);
    let text = format!("{sent:?} on the sender's, {received:?} on the receiver's");
    outcome.check("each stream is on a queue", all(&sent) && all(&received), text);
    outcome.list("sender_streams", sent);
    outcome.list("receiver_streams", received);
    outcome.list("receiver_queues", shares);
    outcome.list("sender_queues", paired.seen.queues(&sender, |counts| counts.tx_bytes));
    Ok(outcome)
}
