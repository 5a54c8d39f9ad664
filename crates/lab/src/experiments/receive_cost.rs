//! What receiving a frame costs, and whom: the six classes of Netchannel 2's authors, with each improvement added in their order.

use control::api::{Profile, Reply, Request};
use control::categories::categories;

use crate::bed::{Amount, Bed, Flow, Look, Station, Wants, Wire, Wired, Wish, at_rest, carry};
use crate::cpu::cycles_per_nanosecond;
use crate::daemon::{Daemon, DaemonError};
use crate::experiment::{
    About, Change, Experiment, Figure, Finding, Ground, LabError, Measure, Outcome, Plot, Point, Published, Results,
    Setup, Size, Source, Verdict, digits,
};
use crate::plot::{Axis, Shape};

const STREAMS: u16 = 2;
/// How long workers go on taking stamps if nobody asks again, in seconds.
const LEASE: u32 = 600;
/// Frames after which an interrupt waits no longer: what the series is called, the lines of a port that say so, and how many frames
/// for each interrupt were published. A guest that is awake takes more of them without being told.
const THROTTLES: [(&str, &str, f64); 2] = [
    ("interrupt-frames = 6", "interrupt-frames = 6\ninterrupt-microseconds = 1000\n", 6.0),
    ("interrupt-frames = 64", "interrupt-frames = 64\ninterrupt-microseconds = 1000\n", 64.0),
];
/// How far from a published cost, or number of frames, ours may be and be called the same.
const BAND: f64 = 0.25;
const FRAMES_BAND: f64 = 0.5;
const NATIVE: &str = "kernel alone";
/// What is added from step to step, and the lines of the port with all that was added so far.
const STEPS: [(&str, &str); 4] = [
    ("baseline", "locking = \"table\"\nmaptrack = \"single\"\nflush = \"always\"\ncopying = \"release\"\n"),
    ("implementation", "align = true\n"),
    ("guest copies", "align = true\ncopy = \"guest\"\n"),
    ("pages cached", "align = true\ncache = 8192\n"),
];
const LABELS: &[&str] = &["baseline", "+ implementation", "+ guest copies", "or pages cached", "kernel alone"];
/// The classes, in the order of the profile: as figures call them in cycles, and in nanoseconds.
const CLASSES: [(&str, &str); 6] = [
    ("user", "user_ns"),
    ("kernel", "kernel_ns"),
    ("guest_hypervisor", "guest_hypervisor_ns"),
    ("grant_copy", "grant_copy_ns"),
    ("backend", "backend_ns"),
    ("backend_hypervisor", "backend_hypervisor_ns"),
];
const MACHINE: (&str, &str) = ("machine", "machine_ns");

const fn cycles(name: &'static str, title: &'static str) -> Figure {
    Figure { name, title, unit: "cycles/frame" }
}

const fn time(name: &'static str, title: &'static str) -> Figure {
    Figure { name, title, unit: "ns/frame" }
}

const fn plot(
    name: &'static str,
    title: &'static str,
    shape: Shape,
    y: &'static str,
    figures: &'static [&'static str],
) -> Plot {
    Plot { name, title, shape, x: X, y: Axis { title: y, log: false, labels: &[] }, figures }
}

const X: Axis = Axis { title: "what was added", log: false, labels: LABELS };

const ABOUT: About = About {
    name: "receive-cost",
    title: "what receiving a frame costs",
    what: "A guest receives TCP in frames as long as the MTU from another guest. Cycles by class for each frame, with the oldest design of \
           the hypervisor, then with improvements added; what the whole machine spends on each frame, against two network \
           namespaces with nothing but the kernel between them.",
    source: Some(Source {
        title: "Netchannel 2: Optimizing Network Performance",
        by: "J. Renato Santos, G. (John) Janakiraman, Yoshio Turner, Ian Pratt; Xen Summit 2007",
    }),
    grounds: &[Ground::Embedded],
    figures: &[
        cycles("user", "copy to user"),
        cycles("kernel", "guest kernel"),
        cycles("guest_hypervisor", "hypervisor for the guest"),
        cycles("grant_copy", "grant copy"),
        cycles("backend", "backend kernel"),
        cycles("backend_hypervisor", "hypervisor for the backend"),
        cycles("machine", "CPU of everything"),
        time("user_ns", "copy to user"),
        time("kernel_ns", "guest kernel"),
        time("guest_hypervisor_ns", "hypervisor for the guest"),
        time("grant_copy_ns", "grant copy"),
        time("backend_ns", "backend kernel"),
        time("backend_hypervisor_ns", "hypervisor for the backend"),
        time("machine_ns", "CPU of everything"),
        Figure { name: "throughput", title: "throughput", unit: "Gb/s" },
        Figure { name: "frames_per_interrupt", title: "frames for each interrupt", unit: "frames" },
    ],
    plots: &[
        plot(
            "classes",
            "A received frame by class: at each place with interrupt-frames = 6, then with 64",
            Shape::Stacks,
            "cycles a frame",
            &["kernel", "guest_hypervisor", "grant_copy", "backend", "backend_hypervisor"],
        ),
        plot("machine", "CPU of the whole machine", Shape::Columns, "cycles a frame", &["machine"]),
        // Where cycles have no fixed length.
        plot(
            "classes-ns",
            "A received frame by class: at each place with interrupt-frames = 6, then with 64",
            Shape::Stacks,
            "time, ns a frame",
            &["kernel_ns", "guest_hypervisor_ns", "grant_copy_ns", "backend_ns", "backend_hypervisor_ns"],
        ),
        plot("machine-ns", "CPU time of the whole machine", Shape::Columns, "time, ns a frame", &["machine_ns"]),
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
        let of = |(throttle, interrupts, _): (&str, &str, f64)| {
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
        Ok(Box::new(|point, _| match point.text("native") {
            "" => guests(setup, point.text("keys")),
            _ => native(setup),
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let native = (NATIVE, STEPS.len() as f64);
        let over = |throttle: usize, step: f64| cost(results, native, (THROTTLES[throttle].0, step));
        let said = |change: &Change| format!("{:.0} % over the kernel alone", (change.ratio() - 1.0) * 100.0);
        let finding = |published: &str, step: f64, percent: f64| {
            let change = over(0, step);
            let most = |by: f64| 1.0 + percent / 100.0 * by;
            let verdict =
                change.as_ref().map_or(Verdict::Untold, |change| change.between(most(1.0 - BAND), most(1.0 + BAND)));
            Finding { published: published.into(), here: change.as_ref().map_or("not measured".into(), said), verdict }
        };
        vec![
            finding("the baseline costs 370 % more than native Linux", 0.0, 370.0),
            finding("with all software improvements it is 100 % more", 2.0, 100.0),
            Finding {
                published: "with queues of a device, cached grants and 64 frames an interrupt 23 % more".into(),
                here: over(1, 3.0).as_ref().map_or("not measured".into(), |change| {
                    format!("{}, with cached grants and without the queue of a device", said(change))
                }),
                verdict: Verdict::Untold,
            },
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let series = THROTTLES.map(|(name, ..)| name);
        let frames = series.map(|name| results.median(name, 1, "frames_per_interrupt"));
        let ([Some(six), Some(many)], Some(change)) = (frames, cost(results, (series[0], 1.0), (series[1], 1.0)))
        else {
            return Vec::new();
        };
        let as_published =
            |measured: f64, (.., frames): (&str, &str, f64)| (measured / frames - 1.0).abs() <= FRAMES_BAND;
        let seen = format!(
            "{} frames for each interrupt were measured with {}, {} with {}",
            digits(six),
            series[0],
            digits(many),
            series[1]
        );
        if !as_published(six, THROTTLES[0]) || !as_published(many, THROTTLES[1]) {
            return vec![format!(
                "{seen}: a guest that is awake takes what comes without an interrupt. So this is not the published comparison of 6 \
                 frames with 64."
            )];
        }
        let by = (change.ratio() - 1.0) * 100.0;
        let (more, by) = (if by < 0.0 { "less" } else { "more" }, digits(by.abs()));
        vec![format!("{seen}. A frame costs {by} % {more} with the second{}.", change.hedge())]
    }

    fn notes(&self, _: &Results) -> Vec<String> {
        vec![
            format!(
                "A cost counts as the published one when its overhead is within {:.0} % of that. Overheads are of the CPU time of the \
                 whole machine, the sender's included, on both sides; what was published is that of the receiving machine alone.",
                BAND * 100.0
            ),
            "What the receiving program's own system calls take is inside the guest and not seen, so the class \"copy to user\" is \
             empty here. The queue of a device is not in this experiment: ringmain bench-embedded --only device-queue compares it. \
             Cycles are those of the time stamp counter, which goes at one pace; where it does not, times are given."
                .to_owned(),
        ]
    }
}

/// What a frame costs the whole machine at one place against another, in whatever unit it was measured.
fn cost(results: &Results, from: (&str, f64), to: (&str, f64)) -> Option<Change> {
    let (cycles, time) = MACHINE;
    results.change(from, to, cycles).or_else(|| results.change(from, to, time))
}

/// Notes a cost in cycles where they have a fixed length, and otherwise in nanoseconds.
fn note(outcome: &mut Outcome, (cycles, time): (&str, &str), nanoseconds: f64) {
    match cycles_per_nanosecond() {
        Some(pace) => outcome.figure(cycles, nanoseconds * pace),
        None => outcome.figure(time, nanoseconds),
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
    whole_frames(sender)?;
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
        for (class, time) in CLASSES.iter().zip(&classes).filter_map(|(name, class)| Some((name, class.per_frame()?))) {
            note(&mut outcome, *class, time);
        }
        let frames = port.frames.max(1) as f64;
        note(&mut outcome, MACHINE, seen.busy() * carried.time.as_secs_f64() * 1e9 / frames);
        let text = format!("{} frames in {} bursts", port.frames, port.bursts);
        outcome.check("the profile has seen frames", port.frames > 0, text);
    }
    carried.check(&mut outcome);
    at_rest(bed.daemon(), &mut outcome)?;
    Ok(outcome)
}

/// The same streams between two namespaces, over a pair of interfaces of the kernel.
fn native(setup: &Setup) -> Result<Outcome, LabError> {
    let wire = Wire::direct()?;
    whole_frames(wire.sender())?;
    let Wired { mut outcome, frame_ns } = wire.measure(setup, STREAMS)?;
    note(&mut outcome, MACHINE, frame_ns);
    Ok(outcome)
}

/// Has a sender's kernel cut segments by itself, so that a frame is as long as the MTU at most.
fn whole_frames(at: &dyn Station) -> Result<(), LabError> {
    Ok(at.launch("ethtool -K eth0 tso off gso off")?.wait(std::time::Duration::from_secs(30)).map(drop)?)
}
