//! The report of a demonstration: one HTML file with everything in it.

use super::{Args, DemoError, Kind, Over, Point, Series, point};
use crate::guest::{Accel, Release};
use crate::page::{facts, page};
use crate::plot;
use control::categories::{Category, categories};
use maud::{Markup, PreEscaped, html};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

/// Writes the report. Its path.
pub(super) fn write(args: &Args, kind: Kind, results: &[Series]) -> Result<PathBuf, DemoError> {
    let draw = |error: plot::PlotError| DemoError::Draw(error.to_string());
    let throughput = draw_throughput(results).map_err(draw)?;
    let shares = draw_shares(results).map_err(draw)?;
    let body = html! {
        @if let Some(caveat) = caveat(kind) { p { strong { (caveat) } } }
        p { (summary(args, kind, results)) }
        @for series in results {
            h2 { (series.over.title()) }
            (table(&series.points))
        }
        @for remark in results.iter().filter_map(|series| more_queues(args, series)) {
            p { (remark) }
        }
        h2 { "Throughput" }
        figure { (throughput) }
        h2 { "How the streams are distributed over the queues" }
        @for figure in &shares { figure { (figure) } }
        p {
            "The sending guest's kernel chooses the queue by which a stream leaves; the switch \
             chooses the queue by which it arrives. With few streams the shares are uneven by \
             chance, because a hash distributes them."
        }
        (times(results))
        h2 { "How it was measured" }
        (facts(&properties(args, kind)))
    };
    let path = args.out.join("report.html");
    let file =
        |source| DemoError::File { what: format!("cannot write {}", path.display()), source };
    std::fs::create_dir_all(&args.out).map_err(file)?;
    std::fs::write(&path, page("Ringmain: TCP between two guests", &body)).map_err(file)?;
    Ok(path)
}

/// The caveat for all figures.
fn caveat(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Qemu(Accel::Tcg) => Some(
            "The guests ran on software emulation, without KVM: every figure is far below that of \
             real hardware, and most of the time is the emulator's.",
        ),
        Kind::Xen => Some(
            "Xen itself ran on software emulation: every figure is far below that of real \
             hardware, and hypercalls are especially slow.",
        ),
        Kind::Qemu(Accel::Kvm) | Kind::Embedded => None,
    }
}

/// Why more queues were slower, if they were.
fn more_queues(args: &Args, series: &Series) -> Option<String> {
    let (first, last) = (series.points.first()?, series.points.last()?);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (last.gbps < first.gbps).then(|| {
        format!(
            "{}: {} queues carried less than {}. A further queue helps only where there is a CPU \
             for its worker and for the guests that fill and empty it. This machine has {cpus} \
             CPUs for the daemon's workers and for two guests of {} vCPUs, so more queues mean \
             more threads that wait for the same CPUs, shorter bursts and more interrupts.",
            series.over.title(),
            last.queues,
            first.queues,
            args.cpus
        )
    })
}

fn draw_throughput(results: &[Series]) -> Result<Markup, plot::PlotError> {
    let bars: Vec<plot::Bars> = results.iter().map(throughput).collect();
    let labels: Vec<String> = super::QUEUES.iter().map(u16::to_string).collect();
    let (x, y) = ("queue pairs in use in both guests", "throughput of all streams, Gb/s");
    plot::bars(x, y, &labels, &bars).map(PreEscaped).map(|svg| html! { (svg) })
}

/// For each of what carried frames, how the queues shared the bytes.
fn draw_shares(results: &[Series]) -> Result<Vec<Markup>, plot::PlotError> {
    let one = |series: &Series| {
        let stacks: Vec<plot::Stack> = series.points.iter().flat_map(shares).collect();
        let title = format!("share of the bytes over {}, %", series.over.title());
        plot::stacks(&title, &stacks).map(PreEscaped).map(|svg| html! { (svg) })
    };
    results.iter().map(one).collect()
}

fn summary(args: &Args, kind: Kind, results: &[Series]) -> String {
    let (what, how) = match kind {
        Kind::Qemu(_) => (
            "stock Linux guests",
            "The number of queue pairs was changed with ethtool -L while both guests ran.",
        ),
        Kind::Xen => (
            "stock Linux guests on Xen",
            "The number of queue pairs was changed by binding their network driver anew while both guests ran.",
        ),
        Kind::Embedded => {
            ("processes as guests", "For each number of queue pairs both were started anew.")
        }
    };
    let mut text = format!("Two {what}, {} TCP streams from one to the other. {how}", args.streams);
    for series in results {
        let best = series.points.iter().max_by(|a, b| a.gbps.total_cmp(&b.gbps));
        if let Some(best) = best {
            let _ = write!(
                text,
                " {}: {} Gb/s at best, with {} queues.",
                series.over.title(),
                best.rate(),
                best.queues
            );
        }
    }
    text
}

fn table(points: &[Point]) -> Markup {
    html! {
        table {
            tr {
                th { "queues" } th { "Gb/s" } th { "daemon CPU" } th { "frames per interrupt" }
                th { "ns per kB" } th { "sender's queues" }
                th { "receiver's queues" } th { "CPU of others" }
            }
            @for point in points { (row(point)) }
        }
        @if points.iter().any(Point::disturbed) {
            p { "* Other processes took more than a tenth of a CPU meanwhile: the figure is too low." }
        }
    }
}

fn row(point: &Point) -> Markup {
    let cpu = point.daemon.map_or("–".into(), |cpu| format!("{:.0} %", cpu * 100.0));
    let frames = point.frames_per_interrupt.map_or("–".into(), |frames| format!("{frames:.1}"));
    let beyond = point.beyond_per_kilobyte().map_or("–".into(), |time| format!("{time:.0}"));
    html! {
        tr {
            td { (point.queues) }
            td { (point.rate()) @if point.disturbed() { "*" } }
            td { (cpu) }
            td { (frames) }
            td { (beyond) }
            td { (point::percent(&point.sender)) }
            td { (point::percent(&point.receiver)) }
            td { (format!("{:.0} %", point.others * 100.0)) }
        }
    }
}

/// Where the time of a received frame went, for each number of queues that has a profile.
fn times(results: &[Series]) -> Markup {
    let points = results.iter().flat_map(|series| &series.points);
    let columns: Vec<(u16, [Category; 6])> = points
        .filter_map(|point| Some((point.queues, categories(point.profile.as_ref()?))))
        .collect();
    let Some((_, names)) = columns.first() else { return html! {} };
    let cell = |category: &Category| {
        category.per_frame().map_or("–".into(), |time| format!("{time:.0}"))
    };
    html! {
        h2 { "Where the time of a received frame goes" }
        table {
            tr {
                th { "nanoseconds per frame" }
                @for (queues, _) in &columns {
                    th { (queues) @if *queues == 1 { " queue" } @else { " queues" } }
                }
            }
            @for (n, category) in names.iter().enumerate() {
                tr {
                    td { (category.name) }
                    @for (_, categories) in &columns {
                        td { (categories.get(n).map(cell).unwrap_or_default()) }
                    }
                }
            }
        }
        p {
            "By time stamps at the borders of bursts, in the second after the measurement. The \
             time of the receiving program inside its guest is not included."
        }
    }
}

fn throughput(series: &Series) -> plot::Bars {
    plot::Bars {
        name: series.over.title().into(),
        values: series.points.iter().map(|point| point.gbps).collect(),
    }
}

fn shares(point: &Point) -> [plot::Stack; 2] {
    let stack = |who: &str, shares: &[f64]| plot::Stack {
        name: format!(
            "{} {}, {who}",
            point.queues,
            if point.queues == 1 { "queue" } else { "queues" }
        ),
        shares: shares.to_vec(),
    };
    [stack("sender", &point.sender), stack("receiver", &point.receiver)]
}

fn properties(args: &Args, kind: Kind) -> Vec<(&'static str, String)> {
    let first_line = |command: &mut Command| {
        let output = command
            .output()
            .map(|done| String::from_utf8_lossy(&done.stdout).into_owned())
            .unwrap_or_default();
        output.lines().next().unwrap_or("unknown").to_owned()
    };
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor =
        processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        (
            "Host",
            format!("{cpus} CPUs,{}", processor.trim_start_matches([' ', '\t', ':']).trim_end())
                .replace(",", ", "),
        ),
        ("Host's kernel", first_line(Command::new("uname").arg("-sr"))),
        match kind {
            Kind::Qemu(_) | Kind::Xen => {
                let emulator = args.release.emulator(&args.cache);
                ("QEMU", emulator.map_or("unknown".into(), |qemu| first_line(&mut qemu.version())))
            }
            Kind::Embedded => ("Hypervisor", "the daemon's own".into()),
        },
        (
            "Guests",
            match kind {
                Kind::Qemu(Accel::Kvm) => format!("{} vCPUs and 256 MiB each, on KVM", args.cpus),
                Kind::Qemu(Accel::Tcg) => format!(
                    "{} vCPUs and 256 MiB each, on software emulation: far slower than on \
                    hardware, and most CPU time is that of the emulator; {}",
                    args.cpus,
                    match args.release {
                        Release::Installed =>
                            "over vhost-user, the queues of a guest may share one interrupt line; \
                             receive packet steering distributes the work over its CPUs then",
                        Release::Backports => "each queue has an interrupt of its own",
                    }
                ),
                Kind::Xen => format!(
                    "{} vCPUs each, paravirtualised, on Xen 4.17 with 2 processors, which dom0 and \
                     the daemon in it use, too; all of it on software emulation: far slower than \
                     on hardware, and each hypercall is expensive",
                    args.cpus
                ),
                Kind::Embedded => format!(
                    "processes in network namespaces of their own, a multi-queue TAP inside, driven by up to {} threads",
                    args.cpus
                ),
            },
        ),
        (
            "Streams",
            format!(
                "iperf, {} TCP streams, {} s counted for each number of queues",
                args.streams, args.seconds
            ),
        ),
        ("Gb/s", "payload, as iperf says".into()),
        (
            "Daemon CPU",
            match kind {
                Kind::Qemu(_) | Kind::Embedded => "100 % is one CPU, wholly".into(),
                Kind::Xen => "100 % is one of dom0's virtual CPUs, wholly".into(),
            },
        ),
        (
            "Frames per interrupt",
            "frames put into both guests' receive queues, by interrupts sent for them".into(),
        ),
        (
            "ns per kB",
            "CPU time of this machine beyond the guests' virtual CPUs, for 1000 bytes of payload"
                .into(),
        ),
        (
            "Over",
            args.over
                .iter()
                .map(|over| match over {
                    Over::Ringmain => {
                        let ports = match kind {
                            Kind::Qemu(_) => "vhost-user",
                            Kind::Xen => "Xen vifs",
                            Kind::Embedded => "Xen rings and grants",
                        };
                        format!("Ringmain {}, {ports}", env!("CARGO_PKG_VERSION"))
                    }
                    Over::Bridge => "Linux bridge, multi-queue TAP".into(),
                    Over::OvsDpdk => "OVS-DPDK, vhost-user".into(),
                    Over::BareWire => "bare wire, vhost-user".into(),
                })
                .collect::<Vec<_>>()
                .join("; "),
        ),
    ]
}
