//! The cost of receiving a frame, and who pays it: the six classes of Netchannel 2's authors, with
//! each improvement added in their order.

use control::categories::categories;

use hypervisor::embedded::Design;

use crate::experiment::{
    About, Change, Experiment, Figure, Finding, LabError, Measure, Outcome, Platform, Plot, Point,
    Published, Results, Setup, Size, Source, Verdict,
};
use crate::fixture::{
    Amount, Batches, Cable, CounterSnapshot, DEVICE, DaemonSpec, Flow, GuestNetwork, GuestSpec,
    UPLINK, Wire, WireOutcome, at_rest, carry, whole_frames,
};
use crate::plot::{Axis, Shape};
use crate::statistics::digits;
use load::cpu::cycles_per_nanosecond;

/// Payload of a frame as long as the MTU.
const SEGMENT: u32 = 1448;
/// The rate on the cable, in bits a second: so little that a guest has taken a batch, and sleeps,
/// before the next one comes. One that is awake takes frames without being interrupted.
const RATE: u64 = 250_000_000;
/// Frames that come at once, as from a network card that interrupts only then: what the series is
/// called.
const THROTTLES: [(&str, u32); 2] = [("6 frames an interrupt", 6), ("64 frames an interrupt", 64)];
/// How far from a published cost, or number of frames, ours may be and be called the same.
const BAND: f64 = 0.25;
/// The lines of the port with all that was added up to each step, and whether the guest has a queue
/// of the device's. Frames that the device delivers are not copied again. The first step has
/// the hypervisor's oldest inner design, the others the newest.
const STEPS: [(&str, bool); 5] = [
    ("", false),
    ("align = true\n", false),
    ("align = true\ncopy = \"guest\"\n", false),
    ("align = true\n", true),
    ("align = true\ncache = 8192\n", true),
];
const LABELS: &[&str] = &[
    "baseline",
    "+ implementation",
    "+ guest copies",
    "device queue",
    "+ pages cached",
    "kernel alone",
];
const NATIVE: f64 = 5.0;
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
    Plot { name, title, shape, x: X, y: Axis::linear(y), figures }
}

const X: Axis = Axis { title: "what was added", log: false, labels: LABELS };

const ABOUT: About = About {
    name: "receive-cost",
    title: "what receiving a frame costs",
    what: "A guest receives TCP from the far end of a cable, in frames as long as the MTU that \
           come in batches of 6 or of 64, and is interrupted once for each batch. Cycles by class \
           for each frame, with the oldest design of the hypervisor, then with improvements added. \
           CPU time of the whole machine for each frame, against two network namespaces with \
           nothing but the kernel between them.",
    source: Some(Source {
        title: "Netchannel 2: Optimizing Network Performance",
        by: "J. Renato Santos, G. (John) Janakiraman, Yoshio Turner, Ian Pratt; Xen Summit 2007",
    }),
    platforms: &[Platform::Embedded],
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
        Figure::FRAMES_PER_INTERRUPT,
    ],
    plots: &[
        plot(
            "classes",
            "A received frame by class: at each place with 6 frames an interrupt, then with 64",
            Shape::Stacks,
            "cycles a frame",
            &["user", "kernel", "guest_hypervisor", "grant_copy", "backend", "backend_hypervisor"],
        ),
        plot("machine", "CPU of the whole machine", Shape::Columns, "cycles a frame", &["machine"]),
        // Where cycles have no fixed length.
        plot(
            "classes-ns",
            "A received frame by class: at each place with 6 frames an interrupt, then with 64",
            Shape::Stacks,
            "time, ns a frame",
            &[
                "user_ns",
                "kernel_ns",
                "guest_hypervisor_ns",
                "grant_copy_ns",
                "backend_ns",
                "backend_hypervisor_ns",
            ],
        ),
        plot(
            "machine-ns",
            "CPU time of the whole machine",
            Shape::Columns,
            "time, ns a frame",
            &["machine_ns"],
        ),
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

    fn points(&self, _: Platform, size: Size) -> Vec<Point> {
        let tiny = size == Size::Tiny;
        let of = |(series, frames): (&str, u32)| {
            let point = move |x: f64| Point::new(series, x).with("frames", frames);
            let steps = STEPS.iter().enumerate().filter(|(x, _)| !tiny || matches!(x, 0 | 3));
            let native = (!tiny).then(|| point(NATIVE).with("native", true));
            let step = |(x, (keys, device)): (usize, &(&str, bool))| {
                let point = point(x as f64).with("keys", keys).with("device", device);
                if x == 0 { point.with("design", "old") } else { point }
            };
            steps.map(step).chain(native).collect::<Vec<_>>()
        };
        THROTTLES.into_iter().flat_map(of).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        Ok(Box::new(|point, _| match point.text("native") {
            "" => guest(setup, point),
            _ => native(setup, point.get("frames")?),
        }))
    }

    fn findings(&self, results: &Results) -> Vec<Finding> {
        let finding = |published: &str, throttle: usize, step: f64, percent: f64| {
            let (series, _) = THROTTLES[throttle];
            let change = cost(results, (series, NATIVE), (series, step));
            let said = |change: &Change| {
                format!("{:.0} % over the kernel alone", (change.ratio() - 1.0) * 100.0)
            };
            let most = |by: f64| 1.0 + percent / 100.0 * by;
            let verdict = change.as_ref().map_or(Verdict::Unknown, |change| {
                change.between(most(1.0 - BAND), most(1.0 + BAND))
            });
            Finding {
                published: published.into(),
                here: change.as_ref().map_or("not measured".into(), said),
                verdict,
            }
        };
        vec![
            finding(
                "6 frames an interrupt: the baseline costs 370 % more than native Linux",
                0,
                0.0,
                370.0,
            ),
            finding(
                "6 frames an interrupt: with all software improvements it is 100 % more",
                0,
                2.0,
                100.0,
            ),
            finding(
                "64 frames an interrupt: with the queue of a device and cached grants 23 % more",
                1,
                4.0,
                23.0,
            ),
        ]
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        LABELS
            .iter()
            .zip([0.0, 1.0, 2.0, 3.0, 4.0, NATIVE])
            .filter_map(|(label, x)| throttled(results, label, x))
            .collect()
    }

    fn notes(&self, _: &Results) -> Vec<String> {
        vec![
            format!(
                "A cost counts as the published one when its overhead is within {:.0} % of that. \
                Overheads here are those of the CPU time of the whole machine, which includes \
                the sender. Published overheads are those of the receiving machine alone, with \
                UDP, which has no acknowledgements.",
                BAND * 100.0
            ),
            "\"Copy to user\" is all work of the receiving program. The kernel's work below the \
             daemon is only part of the CPU of everything: cable, bridge and TAP or, with a queue \
             of the device, the copy into the guest's pages. Cycles are those of the time stamp \
             counter, if its rate is constant. Otherwise times are given."
                .to_owned(),
        ]
    }
}

/// The saving by fewer interrupts at one place, with the measured numbers of frames for each.
fn throttled(results: &Results, label: &str, x: f64) -> Option<String> {
    let change = cost(results, (THROTTLES[0].0, x), (THROTTLES[1].0, x))?;
    let by = (change.ratio() - 1.0) * 100.0;
    let (more, by) = (if by < 0.0 { "less" } else { "more" }, digits(by.abs()));
    let costs = format!(
        "a frame costs {by} % {more} with 64 frames an interrupt than with 6{}",
        change.hedge()
    );
    if x == NATIVE {
        return Some(format!("{label}: {costs}."));
    }
    let seen = |(series, _): (&str, u32)| {
        results.median(series, x as u16, "frames_per_interrupt").map(digits)
    };
    let [few, many] = THROTTLES.map(seen);
    Some(format!("{label}: {costs}; {} and {} were measured.", few?, many?))
}

/// The cost of a frame to the whole machine at one place against another, in whatever unit it was
/// measured.
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

/// A guest receives from the far end of a cable.
fn guest(setup: &Setup, point: &Point) -> Result<Outcome, LabError> {
    let (cable, device) = (Cable::lay()?, point.get("device")?);
    whole_frames(&cable.far)?;
    let queue = if device { format!("device-queue = \"{DEVICE}\"\n") } else { String::new() };
    let throttle =
        format!("interrupt-frames = {}\ninterrupt-microseconds = 1000\n", point.text("frames"));
    let keys = format!("{throttle}{queue}{}", point.text("keys"));
    let (keys, namespace) = (keys.as_str(), Some(&cable.host));
    let design = if point.text("design") == "old" { Design::OLD } else { Design::NEW };
    let (workers, design) = (Some(1), Some(design));
    let daemon_spec = DaemonSpec { workers, queues: 1, keys, design, more: UPLINK, namespace };
    let (name, address) = ("receiver".into(), "10.77.0.2".into());
    let receiver = GuestSpec {
        name,
        address,
        queues: 1,
        vcpus: 1,
        device_queue: device,
        ..GuestSpec::default()
    };
    let network: GuestNetwork =
        GuestNetwork::start::<LabError>(&setup.binary, daemon_spec, vec![receiver])?;
    let [receiver] = network.members() else { return Err(LabError::Setting("guests")) };
    cable.plug()?;
    let own = network.ids();
    let flow = Flow {
        from: &cable.far,
        batches: Some(batches(point.get("frames")?)),
        ..Flow::between(receiver, receiver, 1)
    };
    let carried = carry(&[flow], Amount::of(setup), |ids| {
        let look = CounterSnapshot::now(network.daemon(), &[&own[..], ids].concat())?;
        Ok::<_, LabError>((look, network.daemon().profile()?))
    })?;
    let [(before, then), (after, now)] = &carried.looks;
    let (seen, spent) = (after.since(before), now.since(then));
    let (mut outcome, name) = (Outcome::default(), receiver.port());
    seen.note(&mut outcome, [name.as_str()], carried.time);
    if let Some(port) = spent.ports.iter().find(|port| port.name == name) {
        let nanoseconds =
            |cpus: f64| cpus * carried.time.as_secs_f64() * 1e9 / port.frames.max(1) as f64;
        let mut classes = categories(port).map(|class| class.per_frame());
        // Behind the daemon and the guest's own processes, the first is the program that receives.
        classes[0] = seen.shares.of.get(1 + own.len()).map(|cpus| nanoseconds(*cpus));
        for (class, time) in
            CLASSES.iter().zip(classes).filter_map(|(name, time)| Some((name, time?)))
        {
            note(&mut outcome, *class, time);
        }
        note(&mut outcome, MACHINE, nanoseconds(seen.busy()));
        let text = format!("{} frames in {} bursts", port.frames, port.bursts);
        outcome.check("the profile has seen frames", port.frames > 0, text);
    }
    let total = seen.port(&name).map(|port| port.total.clone()).unwrap_or_default();
    let text =
        format!("{} frames by the device, {} by the switch", total.direct_frames, total.rx_frames);
    outcome.check(
        "frames came the way they were to",
        (total.direct_frames > total.rx_frames) == device,
        text,
    );
    carried.check(&mut outcome);
    at_rest(network.daemon(), &mut outcome)?;
    Ok(outcome)
}

/// The same stream between two namespaces, over a cable with nothing but the kernel behind it.
fn native(setup: &Setup, frames: u32) -> Result<Outcome, LabError> {
    let wire = Wire::direct()?;
    whole_frames(wire.sender())?;
    let WireOutcome { mut outcome, frame_ns } = wire.measure(setup, 1, Some(batches(frames)))?;
    note(&mut outcome, MACHINE, frame_ns);
    Ok(outcome)
}

fn batches(frames: u32) -> Batches {
    Batches { bytes: frames * SEGMENT, rate: RATE }
}
