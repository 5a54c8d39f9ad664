//! The report: one HTML file with everything in it, and the figures as JSON.

use std::path::PathBuf;

use maud::{Markup, PreEscaped, html};
use serde_json::json;

use super::point::{HEADS, PHASES, Phase, Point, cells};
use super::site::QUEUES;
use super::{Args, DiskDemoError, Kind, Results};
use crate::guest::Accel;
use crate::page::{facts, page};
use crate::plot::{self, Bars, PlotError};
use crate::table::REMARK;
use crate::tool;
use load::cpu::cpu_name;

/// Writes the report. The paths of the page and of the figures.
pub(super) fn write(args: &Args, results: &Results) -> Result<[PathBuf; 2], DiskDemoError> {
    let body = body(args, results)?;
    let [html, json] = ["report.html", "report.json"].map(|name| args.out.join(name));
    let failed = |source| DiskDemoError::File {
        what: format!("cannot write to {}", args.out.display()),
        source,
    };
    std::fs::create_dir_all(&args.out).map_err(failed)?;
    std::fs::write(&html, page("Ringmain: disks of a guest", &body)).map_err(failed)?;
    let figures = json!({
        "ringmain": env!("CARGO_PKG_VERSION"),
        "guest": guest(args, results.kind),
        "image_mib": args.size,
        "seconds": args.seconds,
        "points": results.points,
        "verified": results.verified,
    });
    std::fs::write(&json, format!("{figures:#}\n")).map_err(failed)?;
    Ok([html, json])
}

fn body(args: &Args, results: &Results) -> Result<Markup, PlotError> {
    let figures = [
        plot(results, 4 << 10, "1000 requests of 4 KiB per second", |p| p.figures.iops / 1e3)?,
        plot(results, 128 << 10, "MB/s in requests of 128 KiB", |p| p.figures.megabytes)?,
    ];
    let bytes: u64 = results.verified.iter().map(|verified| verified.bytes).sum();
    Ok(html! {
        @if let Some(caveat) = caveat(results.kind) { p { strong { (caveat) } } }
        p {
            "A guest with three disks, of one, two and four queues. Before anything was measured, "
            (bytes >> 20)
            " MiB were written to them, read back and compared, without a difference."
        }
        (table(&results.points))
        @for figure in &figures { figure { (figure) } }
        h2 { "How it was measured" }
        (facts(&properties(args, results.kind)))
    })
}

/// The remark that applies to all figures.
fn caveat(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Qemu(Accel::Tcg) => Some(
            "The guest ran on software emulation, without KVM: every figure is far below that of \
             real hardware, and most of the time is the emulator's.",
        ),
        Kind::Xen => Some(
            "Xen itself ran on software emulation: every figure is far below that of real \
             hardware, and hypercalls are especially slow. Times are those of the emulated \
             machine.",
        ),
        Kind::Qemu(Accel::Kvm) | Kind::Embedded => None,
    }
}

fn table(points: &[Point]) -> Markup {
    html! {
        table {
            tr { @for head in HEADS { th { (head) } } }
            @for point in points { tr { @for cell in cells(point) { td { (cell) } } } }
        }
        @if points.iter().any(Point::disturbed) { p { (REMARK) } }
    }
}

/// Bars for the phases with requests of this size.
fn plot(
    results: &Results,
    bytes: u32,
    axis: &str,
    of: fn(&Point) -> f64,
) -> Result<Markup, PlotError> {
    let values = |phase: &Phase| Bars {
        name: phase.name.into(),
        values: results.points.iter().filter(|p| p.requests == phase.name).map(of).collect(),
    };
    let series: Vec<Bars> =
        PHASES.iter().filter(|phase| phase.bytes == bytes).map(values).collect();
    let labels = QUEUES.map(|queues| queues.to_string());
    let svg = plot::bars("queues of the disk", axis, &labels, &series)?;
    Ok(html! { (PreEscaped(svg)) })
}

fn guest(args: &Args, kind: Kind) -> String {
    match kind {
        Kind::Qemu(accel) => format!(
            "a stock kernel with {} vCPUs under QEMU, {}",
            args.cpus,
            match accel {
                Accel::Kvm => "on KVM",
                Accel::Tcg => "in software",
            }
        ),
        Kind::Xen => format!(
            "a stock kernel with {} vCPUs on Xen, which ran under QEMU, in software",
            args.cpus
        ),
        Kind::Embedded => {
            "a thread that drives the rings itself, and sleeps until it is interrupted".into()
        }
    }
}

fn properties(args: &Args, kind: Kind) -> Vec<(&'static str, String)> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let version = |program| tool::version(program, "--version").unwrap_or("unknown".into());
    let mut facts =
        vec![("Host", format!("{cpus} CPUs, {}", cpu_name())), ("Guest", guest(args, kind))];
    if kind != Kind::Embedded {
        facts.push(("QEMU", version("qemu-system-x86_64")));
        facts.push(("fio", version("fio")));
    }
    facts.extend([
        ("Ringmain", env!("CARGO_PKG_VERSION").into()),
        (
            "Images",
            format!("raw files of {} MiB, past the host's page cache where possible", args.size),
        ),
        (
            "Requests",
            format!(
                "in each queue 8 of 128 KiB or 32 of 4 KiB at a time, {} s for each row",
                args.seconds
            ),
        ),
        ("Latency", "from submission to completion, as the guest sees it".into()),
        (
            "Daemon us per request",
            "CPU time of all threads of the daemon, by requests served".into(),
        ),
    ]);
    facts
}
