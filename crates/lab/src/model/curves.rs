//! Predictions for more workers, queues and guests as curves, and what was measured beside them, on
//! a page.

use std::fs;
use std::path::{Path, PathBuf};

use maud::{Markup, PreEscaped, html};

use super::advise::MOST_QUEUES;
use super::check::{self, Point, What};
use super::costs::{Costs, Era, Frames, Transport};
use super::inputs::Inputs;
use super::measure::GUESTS;
use super::{ASSUMPTIONS, ModelError};
use crate::page::{facts, page};
use crate::plot::{Axis, Dot, Kind, Line, lines};
use simulation::run;
use simulation::scene::{Host, Scene};

/// Numbers of workers. The simulation of many takes long.
const WORKERS: &[usize] =
    if cfg!(test) { &[1, 2, 4, 8] } else { &[1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 32, 48, 64] };
/// Numbers of pairs of guests, and the workers that carry for them.
const PAIRS: [usize; 4] = [1, 5, 10, 20];
const SOME: usize = 8;
/// TCP streams of each pair.
const STREAMS: usize = 8;
/// Frames to simulate, for each worker and for each pair.
const FRAMES: u64 = if cfg!(test) { 60 } else { 600 };

/// A plot.
struct Curve {
    name: &'static str,
    title: &'static str,
    /// Remarks that hold for any figures.
    text: &'static str,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
}

const fn axis(title: &'static str) -> Axis {
    Axis { title, log: false, labels: &[] }
}

/// Draws everything into the folder of `file`, the file of inputs. Returns the page's path.
///
/// # Errors
/// When something cannot be drawn or written.
pub fn draw(inputs: &Inputs, points: &[Point], file: &Path) -> Result<PathBuf, ModelError> {
    let dir = file.parent().unwrap_or(Path::new("."));
    let mut figures = Vec::new();
    for curve in [
        copies(inputs, points),
        maps(inputs, points),
        workers(inputs, points),
        queues(inputs, points),
        guests(inputs, points),
        storage(inputs, points),
    ] {
        let svg = lines(&curve.x, &curve.y, &curve.lines)?;
        write(&dir.join(format!("{}.svg", curve.name)), &svg)?;
        figures.push(html! {
            h2 { (curve.title) }
            figure { (PreEscaped(&svg)) }
            p { (curve.text) }
        });
    }
    let table = if points.is_empty() {
        "Not measured: ringmain-lab model --measure".into()
    } else {
        check::table(points)
    };
    let body = html! {
        (head(inputs, file))
        @for figure in &figures { (figure) }
        h2 { "Compared with what was measured here" }
        pre { (table) }
        h2 { "Assumptions" }
        pre { (ASSUMPTIONS) }
    };
    let path = dir.join("model.html");
    write(&path, &page("Predictions: more workers, queues and guests", &body))?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> Result<(), ModelError> {
    fs::write(path, text)
        .map_err(|source| ModelError::File { path: path.display().to_string(), source })
}

fn head(inputs: &Inputs, file: &Path) -> Markup {
    let [least, most] = inputs.pace;
    let facts = facts(&[
        ("machine", format!("{}, {} CPUs", inputs.cpu, inputs.cpus)),
        ("inputs", file.display().to_string()),
        ("fixed work, before each measurement", format!("{least:.2} to {most:.2} ms")),
        ("handing over, old design", handovers(inputs.old.handovers)),
        ("handing over, new design", handovers(inputs.new.handovers)),
    ]);
    html! {
        p {
            "Dashed lines are " strong { "predictions" } ": a simulation with the costs of \
            single operations on this machine. Only solid lines with markers are measured."
        }
        (facts)
    }
}

fn handovers(times: super::inputs::Handovers) -> String {
    format!(
        "{:.0} ns (what all guests share), {:.0} ns (what is one guest's), fitted",
        times.shared, times.own
    )
}

/// Predictions of both designs over `places`.
fn predicted(
    inputs: &Inputs,
    places: &[usize],
    rate: impl Fn(&Costs<'_>, usize) -> f64,
) -> Vec<Line> {
    let line = |era: Era| {
        let costs = Costs::new(inputs, era);
        let dots = places.iter().map(|place| Dot::new(*place as f64, rate(&costs, *place)));
        // A simulation that was cut off gives no prediction.
        let dots = dots.filter(|dot| dot.y > 0.0).collect();
        Line { name: format!("{}, predicted", era.name()), kind: Kind::Predicted, dots }
    };
    Era::ALL.map(line).into()
}

/// The measurements of both designs, in multiples of `unit`.
fn measured(points: &[Point], what: What, unit: f64) -> Vec<Line> {
    let line = |era: Era| {
        let transport = Transport::Grants(era);
        let own = points.iter().filter(|point| point.what == what && point.transport == transport);
        let dot = |point: &Point| Dot {
            least: point.measured.least / unit,
            most: point.measured.most / unit,
            ..Dot::new(point.workers as f64, point.measured.median / unit)
        };
        Line {
            name: format!("{}, measured", era.name()),
            kind: Kind::Measured,
            dots: own.map(dot).collect(),
        }
    };
    Era::ALL.map(line).into_iter().filter(|line| !line.dots.is_empty()).collect()
}

fn copies(inputs: &Inputs, points: &[Point]) -> Curve {
    let what = What::Copies { pieces: 4, len: 900, apart: false };
    let mut lines = predicted(inputs, WORKERS, |costs, threads| {
        run(&costs.copying(threads, 4, 900.0, false)).rate() * 4e-6
    });
    lines.extend(measured(points, what, 1e6));
    Curve {
        name: "copies",
        title: "Copies between granted pages of one guest",
        text: "Threads that only copy, all out of the grant table of one guest, like the workers \
        of a guest with many queues.",
        x: axis("threads"),
        y: axis("million copies of 900 bytes in a second"),
        lines,
    }
}

fn maps(inputs: &Inputs, points: &[Point]) -> Curve {
    let mut lines =
        predicted(inputs, WORKERS, |costs, threads| run(&costs.mapping(threads)).rate() / 1e3);
    lines.extend(measured(points, What::Maps, 1e3));
    Curve {
        name: "maps",
        title: "Pages mapped and unmapped",
        text: "A backend that maps the pages that its guests grant. The kernel maps for one \
        thread at a time; in the old design each page that is unmapped interrupts all other \
        threads.",
        x: axis("threads"),
        y: axis("thousand pages in a second"),
        lines,
    }
}

/// Frames of nearly 64 KiB, in Gb/s, between pairs of guests with CPUs of their own.
fn gbps(
    inputs: &Inputs,
    transport: Transport,
    (pairs, workers, queues): (usize, usize, usize),
) -> f64 {
    let costs = Frames::new(inputs, transport);
    let bytes = costs.large();
    let host = Host::Apart { workers, guests: usize::MAX };
    let frames = FRAMES * workers.max(pairs) as u64;
    let scene = Scene { frames, ..Scene::pairs(pairs, workers, queues, STREAMS) };
    run(&costs.carrying(scene, bytes, host)).rate() * bytes * 8e-9
}

/// Predictions for frames over `places`, with the error that predictions with two workers have on
/// this machine.
fn carried(
    inputs: &Inputs,
    points: &[Point],
    places: &[usize],
    size: impl Fn(usize) -> (usize, usize, usize),
) -> Vec<Line> {
    let line = |transport: Transport| {
        let error = check::largest_error(points, transport).unwrap_or(0.0);
        let dot = |place: &usize| {
            let y = gbps(inputs, transport, size(*place));
            // A measurement of 1 was predicted as 1 + error or as 1 - error.
            let (least, most) = (y / (1.0 + error), y / (1.0 - error).max(0.01));
            Dot { least, most, ..Dot::new(*place as f64, y) }
        };
        let dots = places.iter().map(dot).filter(|dot| dot.y > 0.0).collect();
        let name = match error {
            0.0 => format!("{}, predicted", transport.name()),
            error => {
                format!(
                    "{}, predicted, error at two workers {:.0} %",
                    transport.name(),
                    error * 100.0
                )
            }
        };
        Line { name, kind: Kind::Predicted, dots }
    };
    Transport::ALL.map(line).into()
}

fn workers(inputs: &Inputs, points: &[Point]) -> Curve {
    Curve {
        name: "workers",
        title: "Twenty pairs of guests",
        text: "Eight streams from one guest of each pair to the other, as many queues as workers \
               but 16 at most, frames of nearly 64 KiB, guests with CPUs of their own. There are \
               no measured points: they would take more CPUs than are used for measurements here. \
               Bands show the largest error of frames with two workers on this machine.",
        x: axis("workers"),
        y: axis("throughput of all pairs, Gb/s"),
        lines: carried(inputs, points, WORKERS, |workers| (20, workers, workers.min(MOST_QUEUES))),
    }
}

fn queues(inputs: &Inputs, points: &[Point]) -> Curve {
    let queues: Vec<usize> = (1..=SOME).collect();
    Curve {
        name: "queues",
        title: "One pair of guests, eight workers",
        text: "Eight streams, which a hash distributes over the queues: where two streams share \
        a queue, another queue has none.",
        x: axis("queues of each guest"),
        y: axis("throughput of 8 streams, Gb/s"),
        lines: carried(inputs, points, &queues, |queues| (1, SOME, queues)),
    }
}

fn guests(inputs: &Inputs, points: &[Point]) -> Curve {
    Curve {
        name: "guests",
        title: "More and more pairs, eight workers",
        text: "Eight streams and eight queues for each pair.",
        x: axis("pairs of guests"),
        y: axis("throughput of all pairs, Gb/s"),
        lines: carried(inputs, points, &PAIRS, |pairs| (pairs, SOME, SOME)),
    }
}

fn storage(inputs: &Inputs, points: &[Point]) -> Curve {
    let rate = |costs: &Costs<'_>, workers: usize, mapped: bool| {
        let host = Host::Apart { workers, guests: usize::MAX };
        run(&costs.reading(GUESTS, workers, mapped, host)).rate() / 1e3
    };
    let mut lines = predicted(inputs, WORKERS, |costs, workers| rate(costs, workers, false));
    let mapped = predicted(inputs, WORKERS, |costs, workers| rate(costs, workers, true));
    lines.extend(mapped.into_iter().map(|line| Line {
        name: line.name.replacen("design", "design, pages mapped", 1),
        ..line
    }));
    lines.extend(measured(points, What::Reads, 1e3));
    Curve {
        name: "storage",
        title: "Twenty guests that read disks",
        text: "Each guest reads 4 KB at a time, one read after the other, out of the page cache. \
               Predicted guests have CPUs of their own; measured ones share those of this machine \
               with the workers. A page that is mapped is written by the drive only, so the new \
               design does not flush it.",
        x: axis("workers"),
        y: axis("thousand reads in a second"),
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::tests::some;
    use super::super::measure::Measured;
    use super::*;

    #[test]
    fn predictions_are_marked_and_shown_beside_measurements() {
        let dir = tempfile::tempdir().unwrap();
        let measured = Measured { median: 1e5, least: 0.9e5, most: 1.1e5 };
        let transport = Transport::Grants(Era::Old);
        let points = [Point {
            what: What::Maps,
            transport,
            workers: 1,
            measured,
            predicted: 1e5,
            placed_by_kernel: None,
        }];
        let path = draw(&some(), &points, &dir.path().join("inputs.json")).unwrap();
        let page = fs::read_to_string(path).unwrap();
        for text in ["old design, predicted", "old design, measured", "Assumptions", "0 % (median)"]
        {
            assert!(page.contains(text), "{text} is missing");
        }
        let svg = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(svg("maps.svg").contains("measured") && !svg("workers.svg").contains("measured"));
        assert!(svg("storage.svg").contains("pages mapped, predicted"));
    }
}
