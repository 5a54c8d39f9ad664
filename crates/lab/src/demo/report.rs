//! The report of a demonstration: one HTML file with everything in it.

use super::{Args, DemoError, Kind, Over, Point, Series, point};
use crate::guest::Accel;
use crate::page::{self, escape};
use crate::plot;
use control::categories::{Category, categories};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

/// Writes the report, and gives its path.
pub(super) fn write(args: &Args, kind: Kind, results: &[Series]) -> Result<PathBuf, DemoError> {
    let draw = |error: plot::PlotError| DemoError::Draw(error.to_string());
    let mut body = String::new();
    paragraph(&mut body, &summary(args, kind, results));
    for series in results {
        let _ = write!(body, "<h2>{}</h2>\n{}", series.over.title(), table(&series.points));
    }
    let bars: Vec<plot::Bars> = results.iter().map(throughput).collect();
    let labels: Vec<String> = super::QUEUES.iter().map(u16::to_string).collect();
    let chart = plot::bars(
        "queue pairs in use in both guests",
        "throughput of all streams, Gb/s",
        &labels,
        &bars,
    );
    let _ = write!(body, "<h2>Throughput</h2>\n<figure>{}</figure>\n", chart.map_err(draw)?);

    body.push_str("<h2>How the streams spread over the queues</h2>\n");
    for series in results {
        let stacks: Vec<plot::Stack> = series.points.iter().flat_map(spread).collect();
        let chart =
            plot::stacks(&format!("share of the bytes over {}, %", series.over.title()), &stacks);
        let _ = writeln!(body, "<figure>{}</figure>", chart.map_err(draw)?);
    }
    paragraph(
        &mut body,
        "The sending guest's kernel chooses the queue that a stream leaves by; what carries it chooses the queue that it \
         arrives by. With few streams the shares are uneven by chance: a hash deals them out like dice.",
    );
    body.push_str(&times(results));
    let _ = write!(body, "<h2>How it was measured</h2>\n{}", page::facts(&facts(args, kind)));

    let path = args.out.join("report.html");
    let file =
        |source| DemoError::File { what: format!("cannot write {}", path.display()), source };
    std::fs::create_dir_all(&args.out).map_err(file)?;
    std::fs::write(&path, page::page("Ringmain: TCP between two guests", &body)).map_err(file)?;
    Ok(path)
}

fn paragraph(body: &mut String, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(body, "<p>{}</p>", escape(text));
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
        Kind::Embedded => ("processes as guests", "For each number of queue pairs both came anew."),
    };
    let mut text = format!("Two {what}, {} TCP streams from one to the other. {how}", args.streams);
    for series in results {
        let best = series.points.iter().max_by(|a, b| a.gbps.total_cmp(&b.gbps));
        if let Some(best) = best {
            let _ = write!(
                text,
                " {}: {:.2} Gb/s at best, with {} queues.",
                series.over.title(),
                best.gbps,
                best.queues
            );
        }
    }
    text
}

fn table(points: &[Point]) -> String {
    let mut rows = String::new();
    for point in points {
        let cpu = point.daemon.map_or("–".into(), |cpu| format!("{:.0} %", cpu * 100.0));
        let frames =
            point.frames_per_interrupt.map_or("–".into(), |frames| format!("{frames:.1}"));
        let mark = if point.disturbed() { "*" } else { "" };
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td>{:.2}{mark}</td><td>{cpu}</td><td>{frames}</td><td>{}</td><td>{}</td><td>{:.0} %</td></tr>",
            point.queues,
            point.gbps,
            point::percent(&point.sender),
            point::percent(&point.receiver),
            point.others * 100.0,
        );
    }
    let note = if points.iter().any(Point::disturbed) {
        "<p>* Others took more than a tenth of a CPU meanwhile: the figure is too low.</p>\n"
    } else {
        ""
    };
    format!(
        "<table>\n<tr><th>queues</th><th>Gb/s</th><th>daemon CPU</th><th>frames per interrupt</th>\
         <th>sender's queues</th><th>receiver's queues</th><th>CPU of others</th></tr>\n{rows}</table>\n{note}"
    )
}

/// Where the time of a received frame went, for each number of queues that it was looked at with.
fn times(results: &[Series]) -> String {
    let points = results.iter().flat_map(|series| &series.points);
    let columns: Vec<(u16, [Category; 6])> = points
        .filter_map(|point| Some((point.queues, categories(point.profile.as_ref()?))))
        .collect();
    let Some((_, names)) = columns.first() else { return String::new() };
    let cell = |category: &Category| {
        category.per_frame().map_or("–".into(), |time| format!("{time:.0}"))
    };
    let mut text = String::from(
        "<h2>Where the time of a received frame goes</h2>\n<table>\n<tr><th>nanoseconds a frame</th>",
    );
    for (queues, _) in &columns {
        let _ = write!(text, "<th>{queues} {}</th>", if *queues == 1 { "queue" } else { "queues" });
    }
    for (n, category) in names.iter().enumerate() {
        let _ = write!(text, "</tr>\n<tr><td>{}</td>", escape(category.name));
        for (_, categories) in &columns {
            let _ = write!(text, "<td>{}</td>", categories.get(n).map(cell).unwrap_or_default());
        }
    }
    text.push_str("</tr>\n</table>\n<p>By time stamps at the borders of bursts, in the second after the measurement. ");
    text.push_str("What the receiving program does inside its guest is not seen.</p>\n");
    text
}

fn throughput(series: &Series) -> plot::Bars {
    plot::Bars {
        name: series.over.title().into(),
        values: series.points.iter().map(|point| point.gbps).collect(),
    }
}

fn spread(point: &Point) -> [plot::Stack; 2] {
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

fn facts(args: &Args, kind: Kind) -> Vec<(&'static str, String)> {
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
                ("QEMU", first_line(Command::new("qemu-system-x86_64").arg("--version")))
            }
            Kind::Embedded => ("Hypervisor", "the daemon's own".into()),
        },
        (
            "Guests",
            match kind {
                Kind::Qemu(Accel::Kvm) => format!("{} vCPUs and 256 MiB each, on KVM", args.cpus),
                Kind::Qemu(Accel::Tcg) => format!(
                    "{} vCPUs and 256 MiB each, on software emulation: far slower than in real life, busy with themselves \
                     most of the time; their queues share one interrupt line, so receive packet steering deals the work to \
                     their CPUs",
                    args.cpus
                ),
                Kind::Xen => format!(
                    "{} vCPUs each, paravirtualised, on Xen 4.17 with 2 processors, which dom0 and the daemon in it use, too; \
                     all of it on software emulation: far slower than in real life, and every hypercall dear",
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
                })
                .collect::<Vec<_>>()
                .join("; "),
        ),
    ]
}
