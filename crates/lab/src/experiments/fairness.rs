//! The host to many guests, and many guests to the host: one worker for all, or a worker each.

use crate::experiment::{
    About, Change, Experiment, Figure, Finding, LabError, Measure, Outcome, Platform, Plot, Point,
    Results, Setup, Size, Source, Verdict,
};
use crate::fixture::{
    Amount, CounterSnapshot, DaemonSpec, Flow, GuestNetwork, GuestSpec, TrafficEnd, at_rest, carry,
};
use crate::guest::Namespace;
use crate::plot::{Axis, Shape};
use crate::statistics::{Centre, Summary, digits};

const HOST: &str = "10.77.0.254";
const UPLINK: &str =
    "[[port]]\nname = \"host\"\nkind = \"tap\"\ndevice = \"rm-host\"\nqueues = 1\n";
const ONE: &str = "one worker for all";
const EACH: &str = "a worker each";

const fn throughput(name: &'static str, title: &'static str) -> Figure {
    Figure { name, title, unit: "Gb/s" }
}

const fn even(name: &'static str, title: &'static str) -> Figure {
    Figure { name, title, unit: "% of the mean" }
}

const fn cpu(name: &'static str, title: &'static str) -> Figure {
    Figure { name, title, unit: "% of a CPU" }
}

const fn plot(
    name: &'static str,
    title: &'static str,
    y: &'static str,
    figures: &'static [&'static str],
) -> Plot {
    let x = Axis::linear("guests");
    Plot { name, title, shape: Shape::Lines, x, y: Axis::linear(y), figures }
}

const GBPS: &str = "throughput of all guests, Gb/s";
const EVEN: &str = "slowest guest, % of the mean guest";
const CPU: &str = "CPU of the daemon, % of one";

const ABOUT: About = About {
    name: "fairness",
    title: "the host and many guests, with one worker and with a worker each",
    what: "One to eight guests, one to four TCP streams to each and then from each, to and from \
           the host, through its TAP. One worker serves all interfaces, or each interface has a \
           worker of its own; guests have an event channel for each direction, or one for both. \
           Guests are new in each repetition.",
    source: Some(Source {
        title: "Xen-netback NAPI + kThread V1 performance testing",
        by: "A. J. Bennieston, Xen wiki, 2013",
    }),
    platforms: &[Platform::Embedded],
    figures: &[
        throughput("to_1", "host to guests, 1 stream each"),
        throughput("to_2", "host to guests, 2 streams each"),
        throughput("to_3", "host to guests, 3 streams each"),
        throughput("to_4", "host to guests, 4 streams each"),
        throughput("from_1", "guests to host, 1 stream each"),
        throughput("from_2", "guests to host, 2 streams each"),
        throughput("from_3", "guests to host, 3 streams each"),
        throughput("from_4", "guests to host, 4 streams each"),
        even("even_to_1", "slowest guest, host to guests, 1 stream each"),
        even("even_to_2", "slowest guest, host to guests, 2 streams each"),
        even("even_to_3", "slowest guest, host to guests, 3 streams each"),
        even("even_to_4", "slowest guest, host to guests, 4 streams each"),
        even("even_from_1", "slowest guest, guests to host, 1 stream each"),
        even("even_from_2", "slowest guest, guests to host, 2 streams each"),
        even("even_from_3", "slowest guest, guests to host, 3 streams each"),
        even("even_from_4", "slowest guest, guests to host, 4 streams each"),
        cpu("daemon_to_1", "CPU of the daemon, host to guests, 1 stream each"),
        cpu("daemon_to_2", "CPU of the daemon, host to guests, 2 streams each"),
        cpu("daemon_to_3", "CPU of the daemon, host to guests, 3 streams each"),
        cpu("daemon_to_4", "CPU of the daemon, host to guests, 4 streams each"),
        cpu("daemon_from_1", "CPU of the daemon, guests to host, 1 stream each"),
        cpu("daemon_from_2", "CPU of the daemon, guests to host, 2 streams each"),
        cpu("daemon_from_3", "CPU of the daemon, guests to host, 3 streams each"),
        cpu("daemon_from_4", "CPU of the daemon, guests to host, 4 streams each"),
    ],
    plots: &[
        plot("to-1", "Host to guests, one stream each", GBPS, &["to_1"]),
        plot("to-2", "Host to guests, two streams each", GBPS, &["to_2"]),
        plot("to-3", "Host to guests, three streams each", GBPS, &["to_3"]),
        plot("to-4", "Host to guests, four streams each", GBPS, &["to_4"]),
        plot("from-1", "Guests to host, one stream each", GBPS, &["from_1"]),
        plot("from-2", "Guests to host, two streams each", GBPS, &["from_2"]),
        plot("from-3", "Guests to host, three streams each", GBPS, &["from_3"]),
        plot("from-4", "Guests to host, four streams each", GBPS, &["from_4"]),
        plot("even-to", "How even: host to guests, four streams each", EVEN, &["even_to_4"]),
        plot("even-from", "How even: guests to host, four streams each", EVEN, &["even_from_4"]),
        plot("cpu-to-1", "Backend CPU: host to guests, one stream each", CPU, &["daemon_to_1"]),
        plot("cpu-to-2", "Backend CPU: host to guests, two streams each", CPU, &["daemon_to_2"]),
        plot("cpu-to-3", "Backend CPU: host to guests, three streams each", CPU, &["daemon_to_3"]),
        plot("cpu-to-4", "Backend CPU: host to guests, four streams each", CPU, &["daemon_to_4"]),
        plot("cpu-from-1", "Backend CPU: guests to host, one stream each", CPU, &["daemon_from_1"]),
        plot(
            "cpu-from-2",
            "Backend CPU: guests to host, two streams each",
            CPU,
            &["daemon_from_2"],
        ),
        plot(
            "cpu-from-3",
            "Backend CPU: guests to host, three streams each",
            CPU,
            &["daemon_from_3"],
        ),
        plot(
            "cpu-from-4",
            "Backend CPU: guests to host, four streams each",
            CPU,
            &["daemon_from_4"],
        ),
    ],
    // Its plots are pictures; what its text says of them is held against ours in findings.
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Fairness;

impl Experiment for Fairness {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let guests: &[u16] = match size {
            Size::Tiny => &[2],
            Size::Quick => &[1, 4, 8],
            Size::Full => &[1, 2, 3, 4, 5, 6, 7, 8],
        };
        let point = |who: &str, split: bool, guests: u16| {
            let workers = if who == ONE { 1 } else { guests };
            Point::new(series(who, split), guests)
                .with("guests", guests)
                .with("workers", workers)
                .with("split", split)
        };
        let series = [(ONE, true), (EACH, true), (ONE, false), (EACH, false)];
        guests
            .iter()
            .flat_map(|guests| series.map(|(who, split)| point(who, split, *guests)))
            .collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        let streams: &[u16] = if setup.size == Size::Full { &[1, 2, 3, 4] } else { &[1, 4] };
        Ok(Box::new(move |point, _| {
            let site = Site::start(setup, point)?;
            let mut outcome = Outcome::default();
            for streams in streams {
                site.measure(setup, To::Guests, *streams, &mut outcome)?;
                site.measure(setup, To::Host, *streams, &mut outcome)?;
            }
            at_rest(site.network.daemon(), &mut outcome)?;
            Ok(outcome)
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let finding = |published: &str, figure: &str, verdict: fn(&Change) -> Verdict| {
            let change = results.change_overall(&series(ONE, true), &series(EACH, true), figure);
            let here = format!("{}, in the mean over N", Change::said(change.as_ref()));
            let verdict = change.as_ref().map_or(Verdict::Unknown, verdict);
            Finding { published: published.into(), here, verdict }
        };
        vec![
            finding(
                "host to guests, a thread each: no significant change of throughput",
                "to_4",
                |change| change.between(0.9, 1.1),
            ),
            finding(
                "host to guests, a thread each: no significant change of CPU usage",
                "daemon_to_4",
                |change| change.between(0.9, 1.1),
            ),
            finding(
                "guests to host, one stream, a thread each: more than one for all",
                "from_1",
                |change| change.above(1.0),
            ),
            finding(
                "guests to host, four streams, a thread each: significantly less",
                "from_4",
                |change| change.below(0.9),
            ),
            steadier(results),
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let mut all = Vec::new();
        for (figure, what) in [("even_to_4", "from the host"), ("even_from_4", "to the host")] {
            let worst = |who: &str| {
                let curve =
                    results.curve(&series(who, true), figure).into_iter().map(|(_, it)| it.median);
                curve.reduce(f64::min)
            };
            if let Some((one, each)) = worst(ONE).zip(worst(EACH)) {
                all.push(format!(
                    "Four streams each, {what}, at the worst N: the slowest guest gets {} % of the \
                     mean with one worker for all, and {} % with a worker each.",
                    digits(one),
                    digits(each)
                ));
            }
        }
        for (figure, what) in [("to_4", "from the host"), ("from_4", "to the host")] {
            if let Some(change) =
                results.change_overall(&series(ONE, false), &series(ONE, true), figure)
            {
                all.push(format!(
                    "Four streams each, {what}, one worker for all, in the mean over N: the \
                     throughput with an event channel for each direction is {} that with one for \
                     both.",
                    Change::said(Some(&change))
                ));
            }
        }
        all
    }

    fn notes(&self, results: &Results) -> Vec<String> {
        let cpus = results.record.configuration.machine.cpus;
        vec![format!(
            "Ringmain's workers share only the switch, and a worker serves its queues in turn. \
            So a worker for each interface is faster only if each worker has a CPU. This machine \
            has {cpus} of them."
        )]
    }

    fn centre(&self) -> Centre {
        Centre::Mean
    }

    fn repetitions(&self, size: Size) -> u32 {
        if size == Size::Tiny { 1 } else { 3 }
    }
}

fn series(who: &str, split: bool) -> String {
    format!("{who}{}", if split { "" } else { ", single channels" })
}

/// Whether repetitions scatter less with a worker each: of throughput, by how much of their mean,
/// at each N.
fn steadier(results: &Results) -> Finding {
    let scatters = |who: &str| {
        let curve = results.curve(&series(who, true), "to_4").into_iter();
        Summary::of(
            curve
                .map(|(_, it)| it.deviation / it.mean * 100.0)
                .filter(|share| share.is_finite())
                .collect(),
        )
    };
    let change = scatters(ONE).zip(scatters(EACH)).map(|(from, to)| Change { from, to });
    Finding {
        published: "host to guests, a thread each: error bars are typically smaller".into(),
        here: change.as_ref().map_or("not measured".into(), |Change { from, to }| {
            let of = |it: &Summary| digits(it.median);
            format!(
                "the median standard deviation is {} % with a worker each, {} % with one for all",
                of(to),
                of(from)
            )
        }),
        verdict: change.map_or(Verdict::Unknown, |change| change.below(1.0)),
    }
}

/// The receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Guests,
    Host,
}

/// A host, its daemon and its guests.
struct Site {
    // The order of drops matters: the daemon ends before its namespace is removed.
    network: GuestNetwork,
    host: Namespace,
}

impl Site {
    fn start(setup: &Setup, point: &Point) -> Result<Site, LabError> {
        let host = Namespace::new()?;
        let workers = Some(point.get("workers")?);
        let daemon_spec = DaemonSpec {
            workers,
            queues: 1,
            more: UPLINK,
            namespace: Some(&host),
            ..DaemonSpec::default()
        };
        let split: bool = point.get("split")?;
        let guest = |n: u16| GuestSpec {
            name: format!("guest-{n}"),
            address: format!("10.77.0.{}", n + 1),
            queues: 1,
            vcpus: 1,
            single_channel: !split,
            ..GuestSpec::default()
        };
        let guests = (0..point.get("guests")?).map(guest).collect();
        let network = GuestNetwork::start::<LabError>(&setup.binary, daemon_spec, guests)?;
        host.ip(&format!("addr add {HOST}/24 dev rm-host\nlink set rm-host up"))?;
        Ok(Site { network, host })
    }

    fn measure(
        &self,
        setup: &Setup,
        to: To,
        streams: u16,
        outcome: &mut Outcome,
    ) -> Result<(), LabError> {
        let host: &dyn TrafficEnd = &self.host;
        let flow = |member| match to {
            To::Guests => Flow { from: host, ..Flow::between(member, member, streams) },
            To::Host => {
                Flow { to: host, address: HOST.into(), ..Flow::between(member, member, streams) }
            }
        };
        let flows: Vec<Flow<'_>> = self.network.members().iter().map(flow).collect();
        let (daemon, own) = (self.network.daemon(), self.network.ids());
        let carried = carry(&flows, Amount::of(setup), |ids| {
            Ok::<_, LabError>(CounterSnapshot::now(daemon, &[&own[..], ids].concat())?)
        })?;
        let seen = carried.seen();
        let name = if to == To::Guests { "to" } else { "from" };
        let seconds = carried.time.as_secs_f64();
        let bytes = |member: &crate::fixture::NetworkGuest| {
            let total = seen.port(&member.port()).map(|port| &port.total);
            total.map_or(0, |total| if to == To::Guests { total.rx_bytes } else { total.tx_bytes })
                as f64
        };
        let each: Vec<f64> = self
            .network
            .members()
            .iter()
            .map(|member| bytes(member) * 8.0 / seconds / 1e9)
            .collect();
        let (all, least) =
            (each.iter().sum::<f64>(), each.iter().copied().fold(f64::INFINITY, f64::min));
        outcome.figure(&format!("{name}_{streams}"), all);
        outcome.figure(&format!("even_{name}_{streams}"), least * each.len() as f64 / all * 100.0);
        outcome.figure(&format!("daemon_{name}_{streams}"), seen.daemon() * 100.0);
        outcome.list(&format!("guests_{name}_{streams}"), each);
        outcome.others = outcome.others.max(seen.shares.others);
        outcome.stolen = outcome.stolen.max(seen.shares.stolen);
        carried.check(outcome);
        Ok(())
    }
}
