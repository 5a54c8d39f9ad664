//! Ringmain and other datapaths between guests, with the same traffic.

use crate::demo::Over;
use crate::experiment::{
    About, Experiment, Figure, LabError, Measure, Outcome, Platform, Plot, Point, Results, Setup,
    Size,
};
use crate::fixture::{Amount, DaemonSpec, GeneratorSetup, GuestPair, Pairs, Wire, generate};
use crate::ovs::Ovs;
use crate::plot::{Axis, Shape};
use crate::statistics::digits;
use load::Report;
use load::cpu::{GENERATOR_CPU, WORKER_CPU};

const RINGMAIN: &str = "Ringmain";
const BRIDGE: &str = "Linux bridge";
const NETBACK: &str = "xen-netback";
const OVS: &str = "OVS-DPDK";
const SIZES: [u32; 2] = [64, 1514];

const ABOUT: About = About {
    name: "peers",
    title: "Ringmain beside OVS-DPDK, the Linux bridge and xen-netback",
    what: "TCP between two processes in namespaces, behind Ringmain's embedded hypervisor and \
           behind a Linux bridge with veth; and frames of the traffic generator through \
           vhost-user, with Ringmain and with OVS-DPDK, one worker each. With guests under QEMU: \
           TCP between two of them, over Ringmain, over a Linux bridge with multi-queue TAP \
           devices and over OVS-DPDK; on Xen, over Ringmain and over the kernel's xen-netback with \
           a Linux bridge. All alternate on the same machine.",
    source: None,
    platforms: &[Platform::Embedded, Platform::Qemu, Platform::Xen],
    figures: &[
        Figure::THROUGHPUT,
        Figure::ALL_CPU,
        Figure { name: "frames", title: "frames of the generator", unit: "million/s" },
    ],
    plots: &[
        Plot {
            name: "tcp",
            title: "TCP between two guests",
            shape: Shape::Columns,
            x: Axis { title: "streams", log: false, labels: &["1 stream", "8 streams"] },
            y: Axis::linear("throughput, Gb/s"),
            figures: &["throughput"],
        },
        Plot {
            name: "frames",
            title: "Frames through vhost-user",
            shape: Shape::Columns,
            x: Axis { title: "size of frames", log: false, labels: &["64 bytes", "1514 bytes"] },
            y: Axis::linear("frames, million a second"),
            figures: &["frames"],
        },
    ],
    published: &[],
};

/// See [`ABOUT`].
pub(super) struct Peers;

impl Experiment for Peers {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn points(&self, platform: Platform, size: Size) -> Vec<Point> {
        let tcp = |who: &str, (place, streams): (u16, u16)| {
            Point::new(who, place).with("who", who).with("streams", streams)
        };
        let frames = |who: &str, (place, size): (u16, u32)| {
            Point::new(format!("{who}, vhost-user"), place).with("who", who).with("size", size)
        };
        // Programs that take seconds to start, and huge pages, are no part of the tiny form.
        let generator: &[&str] =
            if size == Size::Tiny || !Ovs::installed() { &[RINGMAIN] } else { &[RINGMAIN, OVS] };
        let generator = if platform == Platform::Embedded { generator } else { &[] };
        let others: &[&str] = match platform {
            Platform::Xen => &[NETBACK],
            Platform::Qemu if size != Size::Tiny && Ovs::installed() => &[BRIDGE, OVS],
            Platform::Qemu | Platform::Embedded => &[BRIDGE],
        };
        let all = || std::iter::once(RINGMAIN).chain(others.iter().copied());
        let streams = (0..).zip([1, 8]).flat_map(|place| all().map(move |who| tcp(who, place)));
        let sizes =
            (0..).zip(SIZES).flat_map(|place| generator.iter().map(move |who| frames(who, place)));
        streams.chain(sizes).collect()
    }

    fn open<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Measure<'a>, LabError> {
        if setup.platform != Platform::Embedded {
            return Ok(Box::new(|point, _| {
                let over = match point.text("who") {
                    RINGMAIN => Over::Ringmain,
                    OVS => Over::OvsDpdk,
                    _ => Over::Bridge,
                };
                let guests = GuestPair::start(
                    &setup.program(),
                    setup.platform.into(),
                    over,
                    &setup.cache,
                    setup.progress,
                )?;
                guests.measure(2, point.get("streams")?, Amount::of(setup))
            }));
        }
        let mut ovs = None;
        Ok(Box::new(move |point, _| match (point.text("who"), point.text("size")) {
            (BRIDGE, _) => {
                Ok(Wire::bridged()?.measure(setup, point.get("streams")?, None)?.outcome)
            }
            (RINGMAIN, "") => {
                let daemon_spec = DaemonSpec { queues: 2, ..DaemonSpec::default() };
                Ok(Pairs {
                    count: 1,
                    queues: 2,
                    streams: point.get("streams")?,
                    daemon_spec,
                    profiled: false,
                }
                .measure(setup)?
                .outcome)
            }
            (RINGMAIN, _) => own_frames(setup, point.get("size")?),
            _ => {
                if ovs.is_none() {
                    ovs = Some(Ovs::start((2, None), WORKER_CPU, GENERATOR_CPU)?);
                }
                let Some(ovs) = &ovs else { return Err(LabError::Setting("who")) };
                ovs.let_run(true);
                let outcome = their_frames(setup, ovs, point.get("size")?);
                ovs.let_run(false);
                outcome
            }
        }))
    }

    fn remarks(&self, results: &Results) -> Vec<String> {
        let mut all = Vec::new();
        for (place, streams) in [(0.0, "one stream"), (1.0, "eight streams")] {
            for other in [BRIDGE, OVS, NETBACK] {
                if let Some(change) =
                    results.change((other, place), (RINGMAIN, place), "throughput")
                {
                    let (times, hedge) = (digits(change.ratio()), change.hedge());
                    all.push(format!(
                        "TCP, {streams}: Ringmain carries {times} times as much as {other}{hedge}."
                    ));
                }
            }
        }
        for (place, size) in [0.0, 1.0].into_iter().zip(SIZES) {
            let (ours, theirs) = (format!("{RINGMAIN}, vhost-user"), format!("{OVS}, vhost-user"));
            if let Some(change) =
                results.change((theirs.as_str(), place), (ours.as_str(), place), "frames")
            {
                let (times, hedge) = (digits(change.ratio()), change.hedge());
                all.push(format!(
                    "Frames of {size} bytes: Ringmain carries {times} times as many as {OVS}{hedge}."
                ));
            }
        }
        all
    }

    fn notes(&self, results: &Results) -> Vec<String> {
        let configuration = &results.record.configuration;
        if configuration.platform == Platform::Xen {
            return Vec::new();
        }
        let mut all = Vec::new();
        if !configuration.points.iter().any(|point| point.text("who") == OVS) {
            all.push(format!(
                "{OVS} is not part of this run: the program was not installed (scripts/deps \
                peers), or the run is a tiny one."
            ));
        }
        if configuration.platform == Platform::Qemu {
            return all;
        }
        all.push(
            "No traffic is common to all: namespaces have no interface to OVS-DPDK, and the \
             traffic generator has none to a bridge. TCP is therefore compared with the bridge, \
             and frames with OVS-DPDK. Guests under QEMU (--guests qemu) have interfaces to all \
             three."
                .into(),
        );
        all.push(
            "The bridge passes the kernel's own buffers between namespaces and copies nothing, \
             which is impossible between virtual machines. Ringmain copies each frame once, from \
             one memory into another."
                .into(),
        );
        all
    }

    fn versions(&self, platform: Platform) -> Vec<(&'static str, String)> {
        let ovs = if platform == Platform::Xen { None } else { Ovs::said() };
        ovs.map(|version| ("ovs-dpdk", version)).into_iter().collect()
    }

    fn repetitions(&self, size: Size) -> u32 {
        match size {
            Size::Tiny => 1,
            Size::Quick => 3,
            Size::Full => 10,
        }
    }
}

/// The figure of frames that the generator had carried.
fn noted(mut outcome: Outcome, reports: &[Report]) -> Outcome {
    outcome.figure("frames", reports.iter().map(|report| report.mpps).sum());
    outcome
}

/// The generator's frames through a daemon with one worker.
fn own_frames(setup: &Setup, size: u32) -> Result<Outcome, LabError> {
    let mut outcome = Outcome::default();
    let reports = GeneratorSetup::start(setup, 1, 1, "")?.run(
        setup,
        &[&format!("--size {size}")],
        &mut outcome,
    )?;
    Ok(noted(outcome, &reports))
}

/// The same through OVS-DPDK, which connects to the generator.
fn their_frames(setup: &Setup, ovs: &Ovs, size: u32) -> Result<Outcome, LabError> {
    let ports: Vec<_> = ovs.sockets().iter().map(|path| path.display().to_string()).collect();
    let (ports, pid) = (ports.join(","), ovs.id());
    let mut outcome = Outcome::default();
    let line = format!("--ports {ports} --server --size {size} --backend-pid {pid}");
    let reports = generate(setup, &[line], &mut outcome)?;
    Ok(noted(outcome, &reports))
}
