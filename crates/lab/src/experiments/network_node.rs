//! Streams through a guest that forwards, with two interfaces of more and more queues.

use std::time::Duration;

use super::queues::highest;
use crate::experiment::{
    About, Change, Experiment, Figure, Finding, LabError, Measure, Outcome, Platform, Plot, Point,
    Published, Results, Setup, Size, Source, Verdict,
};
use crate::fixture::{
    Amount, CounterSnapshot, DaemonSpec, Flow, GuestNetwork, GuestSpec, NetworkGuest, TrafficEnd,
    at_rest, carry,
};
use crate::guest::GuestError;
use crate::plot::{Axis, Shape};

/// Receivers; each gets one stream.
const RECEIVERS: u8 = 6;
const SERIES: &str = "Ringmain";
const NEW: &str = "Linux 4.4 (published)";
const OLD: &str = "Linux 3.13 (published)";
const TIMEOUT: Duration = Duration::from_secs(30);
/// The share of what receivers get that the forwarding guest must have got before: all of it, but
/// for what was on the way when it was looked at.
const THROUGH: f64 = 0.95;
/// Bytes of a stream that goes before anything is counted.
const GREETING: u64 = 1 << 12;

const ABOUT: About = About {
    name: "network-node",
    title: "throughput through a forwarding guest, by its queues",
    what: "One guest sends a TCP stream to each of six others, all through a guest between them \
           that forwards. Its two interfaces have 1, 2, 4 and 8 queue pairs.",
    source: Some(Source {
        title: "Tuning Virtualized Network Node: multi-queue virtio-net",
        by: "SWITCH Cloud Blog, 2016",
    }),
    platforms: &[Platform::Embedded],
    figures: &[
        Figure::THROUGHPUT,
        Figure::DAEMON_CPU,
        Figure::ALL_CPU,
        Figure { name: "busiest", title: "share of the busiest queue of the way in", unit: "%" },
        Figure::FRAMES_PER_INTERRUPT,
    ],
    plots: &[
        Plot {
            name: "throughput",
            title: "Throughput",
            shape: Shape::Lines,
            x: Axis::linear("queue pairs of either interface"),
            y: Axis::linear("throughput of 6 streams, Gb/s"),
            figures: &["throughput"],
        },
        Plot {
            name: "cpu",
            title: "CPU",
            shape: Shape::Lines,
            x: Axis::linear("queue pairs of either interface"),
            y: Axis::linear("CPU, % of one"),
            figures: &["daemon", "busy"],
        },
    ],
    published: &[
        published(NEW, 1.0, 3.23),
        published(NEW, 2.0, 6.00),
        published(NEW, 4.0, 8.02),
        published(NEW, 8.0, 8.42),
        published(OLD, 1.0, 3.28),
        published(OLD, 2.0, 3.41),
        published(OLD, 4.0, 3.51),
        published(OLD, 8.0, 3.57),
    ],
};

const fn published(series: &'static str, x: f64, value: f64) -> Published {
    Published { figure: "throughput", series, x, value }
}

/// See [`ABOUT`].
pub(super) struct NetworkNode;

impl Experiment for NetworkNode {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let queues: &[u16] = if size == Size::Tiny { &[1, 2] } else { &[1, 2, 4, 8] };
        queues.iter().map(|queues| Point::new(SERIES, *queues).with("queues", queues)).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| measure(setup, point.get("queues")?)))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let finding = |published: &str, queues: f64, wanted: f64| {
            let change = results.change((SERIES, 1.0), (SERIES, queues), "throughput");
            let verdict = change.as_ref().map_or(Verdict::Unknown, |change| change.above(wanted));
            Finding { published: published.into(), here: Change::said(change.as_ref()), verdict }
        };
        vec![
            finding("two queues carry 6.00 Gb/s where one carries 3.23: 1.86 times", 2.0, 1.86),
            finding("four queues carry 8.02 Gb/s: 2.48 times", 4.0, 2.48),
            finding("eight queues carry 8.42 Gb/s: 2.61 times", 8.0, 2.61),
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let cpus = results.record.configuration.machine.cpus;
        let mut all: Vec<String> = highest(results, SERIES).into_iter().collect();
        let busy = results.median(SERIES, 1, "busy").map(|percent| percent / cpus as f64);
        if let Some(busy) = busy.filter(|busy| *busy >= 90.0) {
            all.push(format!(
                "With one queue pair {busy:.0} % of this machine's {cpus} CPUs are busy already: \
                 sender, receivers, the forwarding guest and the switch all run on them. In the \
                 publication, each had a machine of its own."
            ));
        }
        all
    }
}

fn measure(setup: &Setup, queues: u16) -> Result<Outcome, LabError> {
    let daemon_spec = DaemonSpec { queues, ..DaemonSpec::default() };
    let network: GuestNetwork =
        GuestNetwork::start::<LabError>(&setup.binary, daemon_spec, guests(queues))?;
    let [node, far, sender, receivers @ ..] = network.members() else {
        return Err(LabError::Setting("guests"));
    };
    forward(node, far, sender, receivers)?;
    let own = network.ids();
    let flows: Vec<Flow<'_>> = receivers.iter().map(|to| Flow::between(sender, to, 1)).collect();
    // The greeting lets all stations learn each other's addresses.
    carry(&flows, Amount::Bytes(GREETING), |_| Ok::<_, LabError>(()))?;
    let carried = carry(&flows, Amount::of(setup), |ids| {
        Ok::<_, LabError>(CounterSnapshot::now(network.daemon(), &[&own[..], ids].concat())?)
    })?;
    let seen = carried.seen();
    let mut outcome = Outcome::default();
    let ports: Vec<String> = receivers.iter().map(NetworkGuest::port).collect();
    seen.note(&mut outcome, ports.iter().map(String::as_str), carried.time);
    let shares = seen.queues(&node.port(), |counts| counts.rx_bytes);
    outcome.figure("busiest", shares.iter().copied().fold(0.0, f64::max) * 100.0);
    outcome.list("node_queues", shares);
    carried.check(&mut outcome);
    let (into, out_of) =
        (seen.received([node.port().as_str()]), seen.received(ports.iter().map(String::as_str)));
    let text = format!("the forwarding guest got {into} bytes, the receivers {out_of}");
    outcome.check(
        "all goes through the forwarding guest",
        out_of > 0 && into as f64 >= out_of as f64 * THROUGH,
        text,
    );
    at_rest(network.daemon(), &mut outcome)?;
    Ok(outcome)
}

/// The forwarding guest, a guest that lends it its interface, the sender, and the receivers.
fn guests(queues: u16) -> Vec<GuestSpec> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u16);
    let guest = |name: String, address: String, queues: u16| GuestSpec {
        name,
        address,
        queues,
        vcpus: queues.min(cpus),
        ..GuestSpec::default()
    };
    let receiver = |n: u8| guest(format!("receiver-{n}"), format!("10.77.2.{}", n + 10), 1);
    let mut all = vec![
        guest("node".into(), "10.77.1.1".into(), queues),
        guest("far".into(), "10.77.2.1".into(), queues),
        guest("sender".into(), "10.77.1.2".into(), queues),
    ];
    all.extend((0..RECEIVERS).map(receiver));
    all
}

/// Moves the interface of `far` to the forwarding guest, and tells everybody the way.
fn forward(
    node: &NetworkGuest,
    far: &NetworkGuest,
    sender: &NetworkGuest,
    receivers: &[NetworkGuest],
) -> Result<(), GuestError> {
    run(far, "ip link set eth0 down")?;
    run(far, &format!("ip link set eth0 netns {} name eth1", node.id()))?;
    run(node, "ip addr add 10.77.2.1/24 dev eth1")?;
    // Both are in one network of the switch: each answers for its own address only.
    for (key, value) in
        [("conf/all/arp_ignore", 1), ("conf/all/arp_announce", 2), ("ip_forward", 1)]
    {
        run(node, &format!("sh -c 'echo {value} > /proc/sys/net/ipv4/{key}'"))?;
    }
    run(node, "ip link set eth1 up")?;
    run(sender, "ip route add 10.77.2.0/24 via 10.77.1.1")?;
    for receiver in receivers {
        run(receiver, "ip route add 10.77.1.0/24 via 10.77.2.1")?;
    }
    Ok(())
}

fn run(at: &NetworkGuest, command: &str) -> Result<(), GuestError> {
    at.launch(command)?.wait(TIMEOUT).map(drop)
}
