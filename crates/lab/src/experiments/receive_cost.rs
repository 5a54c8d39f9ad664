//! What receiving a frame costs, and whom: the six classes of Netchannel 2's authors, with each improvement added in their order.

use control::api::{Profile, Reply, Request};
use control::categories::categories;

use crate::bed::{Amount, Bed, Flow, Look, Station, Wants, Wish, at_rest, carry};
use crate::daemon::{Daemon, DaemonError};
use crate::experiment::{
    About, Experiment, Figure, Finding, Ground, LabError, Measure, Outcome, Plot, Point, Published, Results, Setup,
    Size, Source, digits,
};
use crate::guest::Namespace;
use crate::plot::{Axis, Shape};

const STREAMS: u16 = 2;
/// How long workers go on taking stamps if nobody asks again, in seconds.
const LEASE: u32 = 600;
/// Frames for each interrupt, at most, and the lines of a port that say so.
const THROTTLES: [(&str, &str); 2] = [
    ("6 frames an interrupt", "interrupt-frames = 6\ninterrupt-microseconds = 1000\n"),
    ("64 frames an interrupt", "interrupt-frames = 64\ninterrupt-microseconds = 1000\n"),
];
const NATIVE: &str = "kernel alone";
/// What is added from step to step, and the lines of the port with all that was added so far.
const STEPS: [(&str, &str); 4] = [
    ("baseline", "locking = \"table\"\nmaptrack = \"single\"\nflush = \"always\"\ncopying = \"release\"\n"),
    ("implementation", "align = true\n"),
    ("guest copies", "align = true\ncopy = \"guest\"\n"),
    ("pages cached", "align = true\ncache = 8192\n"),
];
const LABELS: &[&str] = &["baseline", "+ implementation", "+ guest copies", "or pages cached", "kernel alone"];
/// The classes, as figures call them, in the order of the profile.
const CLASSES: [&str; 6] = ["user", "kernel", "guest_hypervisor", "grant_copy", "backend", "backend_hypervisor"];

const X: Axis = Axis { title: "what was added", log: false, labels: LABELS };

const ABOUT: About = About {
    name: "receive-cost",
    title: "what receiving a frame costs",
    what: "A guest receives TCP in frames as long as the MTU from another guest. Time by class for each frame, with the oldest design of \
           the hypervisor, then with improvements added; the CPU time of the whole machine for each frame, against two network \
           namespaces with nothing but the kernel between them.",
    source: Some(Source {
        title: "Netchannel 2: Optimizing Network Performance",
        by: "J. Renato Santos, G. (John) Janakiraman, Yoshio Turner, Ian Pratt; Xen Summit 2007",
    }),
    grounds: &[Ground::Embedded],
    figures: &[
        Figure { name: "user", title: "copy to user", unit: "ns/frame" },
        Figure { name: "kernel", title: "guest kernel", unit: "ns/frame" },
        Figure { name: "guest_hypervisor", title: "hypervisor for the guest", unit: "ns/frame" },
        Figure { name: "grant_copy", title: "grant copy", unit: "ns/frame" },
        Figure { name: "backend", title: "backend kernel", unit: "ns/frame" },
        Figure { name: "backend_hypervisor", title: "hypervisor for the backend", unit: "ns/frame" },
        Figure { name: "machine", title: "CPU of everything", unit: "ns/frame" },
        Figure { name: "throughput", title: "throughput", unit: "Gb/s" },
        Figure { name: "frames_per_interrupt", title: "frames for each interrupt", unit: "frames" },
    ],
    plots: &[
        Plot {
            name: "classes",
            title: "Time of a received frame by class",
            shape: Shape::Stacks,
            x: X,
            y: Axis { title: "time, ns a frame", log: false, labels: &[] },
            figures: &["kernel", "guest_hypervisor", "grant_copy", "backend", "backend_hypervisor"],
        },
        Plot {
            name: "machine",
            title: "CPU time of the whole machine",
            shape: Shape::Columns,
            x: X,
            y: Axis { title: "CPU time, ns a frame", log: false, labels: &[] },
            figures: &["machine"],
        },
    ],
    // Cycles are in its pictures only; what its text says is held against ours in findings.
    published: &[] as &[Published],
};

/// See [`ABOUT`].
pub(super) struct ReceiveCost;

impl Experiment for ReceiveCost {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, _: Ground, size: Size) -> Vec<Point> {
        let steps = if size == Size::Tiny { 2 } else { STEPS.len() };
        let of = |(throttle, interrupts): (&str, &str)| {
            let step = |(x, (_, keys)): (usize, &(&str, &str))| {
                Point::new(throttle, x as u16).with("keys", format!("{interrupts}{keys}"))
            };
            STEPS[..steps].iter().enumerate().map(step).collect::<Vec<_>>()
        };
        let mut points: Vec<Point> = THROTTLES.into_iter().flat_map(of).collect();
        if size != Size::Tiny {
            points.push(Point::new(NATIVE, STEPS.len() as u16).with("native", true));
        }
        points
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point| match point.text("native") {
            "" => guests(setup, point.text("keys")),
            _ => native(setup),
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let machine = |throttle: usize, step: u16| results.median(THROTTLES[throttle].0, step, "machine");
        let native = results.median(NATIVE, STEPS.len() as u16, "machine");
        let over = |cost: Option<f64>| Some((cost? / native? - 1.0) * 100.0);
        let finding = |published: &str, cost: Option<f64>, most: f64| Finding {
            published: published.into(),
            here: over(cost).map_or("not measured".into(), |over| format!("{over:.0} % over the kernel alone")),
            agrees: over(cost).map(|over| over <= most),
        };
        vec![
            finding("the baseline costs 370 % more than native Linux", machine(0, 0), 370.0),
            finding("with all software improvements it is 100 % more", machine(0, 2), 100.0),
            finding("with queues of a device, cached grants and 64 frames an interrupt 23 % more", machine(1, 3), 23.0),
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let mut all = vec![
            "What the receiving program's own system calls take is inside the guest and not seen, so the class \"copy to user\" is \
             empty here. Overheads are of the CPU time of the whole machine, the sender's included, on both sides; what was \
             published is that of the receiving machine alone. The queue of a device is not in this experiment: ringmain \
             bench-embedded --only device-queue compares it."
                .to_owned(),
        ];
        let of = |throttle: usize, step: u16| results.median(THROTTLES[throttle].0, step, "machine");
        if let Some((six, many)) = of(0, 1).zip(of(1, 1)) {
            let change = (many / six - 1.0) * 100.0;
            let (more, by) = (if change < 0.0 { "less" } else { "more" }, digits(change.abs()));
            all.push(format!("With 64 frames an interrupt in place of 6 a frame costs {by} % {more}."));
        }
        all
    }
}

/// What a profile says of all time up to now.
fn profile(daemon: &Daemon, seconds: u32) -> Result<Profile, DaemonError> {
    match daemon.client().ask(&Request::Profile { seconds })? {
        Reply::Profile(profile) => Ok(*profile),
        _ => Err(DaemonError::Answer),
    }
}

fn guests(setup: &Setup, keys: &str) -> Result<Outcome, LabError> {
    let wants = Wants { workers: Some(1), queues: 1, keys, ..Wants::default() };
    let guest = |name: &str, host: u8| Wish {
        name: name.into(),
        address: format!("10.77.0.{host}"),
        queues: 1,
        vcpus: 1,
        single_channel: false,
    };
    let bed: Bed = Bed::start::<LabError>(&setup.binary, wants, vec![guest("sender", 1), guest("receiver", 2)])?;
    let [sender, receiver] = bed.members() else { return Err(LabError::Setting("guests")) };
    whole_frames(sender, "eth0")?;
    let own = bed.ids();
    let mut lease = LEASE;
    let carried = carry(&[Flow::between(sender, receiver, STREAMS)], Amount::of(setup), |ids| {
        let look = Look::now(bed.daemon(), &[&own[..], ids].concat())?;
        // The second look ends it.
        Ok::<_, LabError>((look, profile(bed.daemon(), std::mem::take(&mut lease))?))
    })?;
    let [(before, then), (after, now)] = &carried.looks;
    let (seen, spent) = (after.since(before), now.since(then));
    let (mut outcome, name) = (Outcome::default(), receiver.port());
    seen.note(&mut outcome, [name.as_str()], carried.time);
    if let Some(port) = spent.ports.iter().find(|port| port.name == name) {
        let classes = categories(port);
        for (figure, time) in CLASSES.iter().zip(&classes).filter_map(|(name, class)| Some((name, class.per_frame()?)))
        {
            outcome.figure(figure, time);
        }
        let frames = port.frames.max(1) as f64;
        outcome.figure("machine", seen.busy() * carried.time.as_secs_f64() * 1e9 / frames);
        let text = format!("{} frames in {} bursts", port.frames, port.bursts);
        outcome.check("the profile has seen frames", port.frames > 0, text);
    }
    carried.check(&mut outcome);
    at_rest(bed.daemon(), &mut outcome)?;
    Ok(outcome)
}

/// The same streams between two namespaces, over a pair of interfaces of the kernel.
fn native(setup: &Setup) -> Result<Outcome, LabError> {
    let (from, to) = (Namespace::new()?, Namespace::new()?);
    from.ip(&format!("link add eth0 type veth peer name eth0 netns {}", to.id()))?;
    for (namespace, host) in [(&from, 1), (&to, 2)] {
        namespace.ip(&format!("addr add 10.77.0.{host}/24 dev eth0\nlink set eth0 up"))?;
    }
    whole_frames(&from, "eth0")?;
    let counted = || -> Result<u64, LabError> {
        let table = format!("/proc/{}/net/dev", to.id());
        let text = std::fs::read_to_string(&table).map_err(LabError::file(&table))?;
        // "eth0: bytes packets ..."
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:"));
        let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        packets.ok_or(LabError::Said { tool: table, text })
    };
    let flow = Flow { from: &from, to: &to, address: "10.77.0.2".into(), streams: STREAMS };
    let carried =
        carry(&[flow], Amount::of(setup), |ids| Ok::<_, LabError>((crate::cpu::Moment::now(ids), counted()?)))?;
    let [(before, then), (after, now)] = &carried.looks;
    let shares = after.since(before);
    let busy = shares.of.iter().sum::<f64>() + shares.others;
    let mut outcome = Outcome::default();
    outcome.figure("machine", busy * carried.time.as_secs_f64() * 1e9 / now.saturating_sub(*then).max(1) as f64);
    outcome.disturbance(&shares);
    carried.check(&mut outcome);
    Ok(outcome)
}

/// Has a sender's kernel cut segments by itself, so that a frame is as long as the MTU at most.
fn whole_frames(at: &dyn Station, interface: &str) -> Result<(), LabError> {
    let command = format!("ethtool -K {interface} tso off gso off");
    Ok(at.launch(&command)?.wait(std::time::Duration::from_secs(30)).map(drop)?)
}
