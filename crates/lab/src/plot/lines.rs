//! Lines through points, with what they scatter.

use plotters::prelude::*;

use super::frame::Frame;
use super::scale::Scale;
use super::{Area, Axis, COLOURS, PlotError, drawn, failed};

/// A place of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dot {
    /// Where along the x axis.
    pub x: f64,
    /// The value there.
    pub y: f64,
    /// From where the error bar reaches; `y` if there is none.
    pub least: f64,
    /// And to where.
    pub most: f64,
    /// Whether it is only an outline: a figure that is not wholly to be trusted.
    pub hollow: bool,
}

impl Dot {
    /// One without an error bar.
    pub fn new(x: f64, y: f64) -> Dot {
        Dot { x, y, least: y, most: y, hollow: false }
    }
}

/// Where a line's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Measured here: a solid line.
    Measured,
    /// Published by others: grey outlines without a line, for what lies between is not known here.
    Published,
    /// Computed by a model: in dashes of its own, and without points.
    Predicted,
}

/// One series.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name of the line.
    pub name: String,
    /// Where it comes from.
    pub kind: Kind,
    /// Its places, in order.
    pub dots: Vec<Dot>,
}

const GREY: RGBColor = RGBColor(0x59, 0x59, 0x59);
const SIZE: i32 = 5;
/// Pixels between the first and the last of all lines at one x.
const ASIDE: i32 = 36;
/// Markers of different shapes.
const MARKERS: usize = 6;
/// Pixels that are drawn of a line, and that are left out: of those measured, whenever all markers
/// were used once more; and of those predicted.
const SOLID: (f64, f64) = (1.0, 0.0);
const MEASURED: [(f64, f64); 3] = [SOLID, (5.0, 3.0), (2.0, 3.0)];
const PREDICTED: [(f64, f64); 4] = [(8.0, 5.0), (2.0, 4.0), (20.0, 6.0), (4.0, 10.0)];

/// How a line is told from the others: by colour, by marker and by dashes.
#[derive(Clone, Copy)]
struct CounterSnapshot {
    colour: RGBColor,
    marker: usize,
    /// Pixels drawn, and pixels left out; a line without gaps if none are.
    dash: (f64, f64),
    line: bool,
    markers: bool,
    hollow: bool,
}

/// A plot of lines over `x`. Error bars reach from the least to the most.
///
/// # Errors
/// When drawing fails.
pub fn lines(x: &Axis, y: &Axis, lines: &[Line]) -> Result<String, PlotError> {
    let dots = || lines.iter().flat_map(|line| &line.dots);
    let (places, values) =
        (dots().map(|dot| dot.x).collect(), dots().flat_map(|dot| [dot.y, dot.least, dot.most]));
    let names: Vec<String> = lines.iter().map(|line| line.name.clone()).collect();
    let frame = Frame::new(Scale::of_places(x, places), Scale::of_values(y, values), &names);
    let looks = looks(lines);
    drawn(frame.height(), |area| {
        let key = |area: &Area<'_>, entry: usize, (x, y): (i32, i32)| match looks.get(entry) {
            Some(look) => {
                stroke(area, look, &[(x - 16, y), (x + 16, y)])?;
                if look.markers { marker(area, look, (x, y), look.hollow) } else { Ok(()) }
            }
            None => Ok(()),
        };
        frame.draw(area, (x, y), &names, &key)?;
        let offsets = offsets(lines);
        let drawn = lines.iter().zip(looks.iter().zip(offsets));
        drawn
            .into_iter()
            .try_for_each(|(line, (look, aside))| draw(area, &frame, line, look, aside))
    })
}

/// How many pixels aside of its x each line is drawn, so that series at one x, with equal figures
/// even, hide neither each other's markers nor bars. Predictions are curves and stay in place.
fn offsets(lines: &[Line]) -> Vec<i32> {
    let aside = |line: &Line| line.kind != Kind::Predicted;
    let count = lines.iter().filter(|line| aside(line)).count() as i32;
    let step = if count > 1 { (ASIDE / (count - 1)).clamp(1, 2 * SIZE + 1) } else { 0 };
    let mut number = -1;
    let offset = |line: &Line| {
        number += i32::from(aside(line));
        if aside(line) { (2 * number - (count - 1)) * step / 2 } else { 0 }
    };
    lines.iter().map(offset).collect()
}

fn looks(lines: &[Line]) -> Vec<CounterSnapshot> {
    let number = |line: usize, kind: Kind| {
        lines.iter().take(line).filter(|other| other.kind == kind).count()
    };
    let look = |(at, line): (usize, &Line)| {
        let number = number(at, line.kind);
        let colour = COLOURS[number % COLOURS.len()];
        match line.kind {
            Kind::Measured => {
                let dash = MEASURED[number / MARKERS % MEASURED.len()];
                CounterSnapshot {
                    colour,
                    marker: number,
                    dash,
                    line: true,
                    markers: true,
                    hollow: false,
                }
            }
            Kind::Published => CounterSnapshot {
                colour: GREY,
                marker: number + 2,
                dash: SOLID,
                line: false,
                markers: true,
                hollow: true,
            },
            Kind::Predicted => {
                let dash = PREDICTED[number % PREDICTED.len()];
                CounterSnapshot {
                    colour,
                    marker: number,
                    dash,
                    line: true,
                    markers: false,
                    hollow: false,
                }
            }
        }
    };
    lines.iter().enumerate().map(look).collect()
}

fn draw(
    area: &Area<'_>,
    frame: &Frame,
    line: &Line,
    look: &CounterSnapshot,
    aside: i32,
) -> Result<(), PlotError> {
    let at = |x: f64, y: f64| {
        let (x, y) = frame.at(x, y);
        (x + aside, y)
    };
    let drawable = |dot: &&Dot| dot.x.is_finite() && dot.y.is_finite();
    let dots: Vec<&Dot> = line.dots.iter().filter(drawable).collect();
    let places: Vec<(i32, i32)> = dots.iter().map(|dot| at(dot.x, dot.y)).collect();
    stroke(area, look, &places)?;
    for (dot, place) in dots.iter().zip(places) {
        if dot.most > dot.least {
            let ((x, low), (_, high)) = (at(dot.x, dot.least), at(dot.x, dot.most));
            for ends in [
                [(x, low), (x, high)],
                [(x - 4, low), (x + 4, low)],
                [(x - 4, high), (x + 4, high)],
            ] {
                area.draw(&PathElement::new(ends.to_vec(), look.colour.stroke_width(1)))
                    .map_err(failed)?;
            }
        }
        if look.markers {
            marker(area, look, place, look.hollow || dot.hollow)?;
        }
    }
    Ok(())
}

/// A line through places, with gaps if it has any.
fn stroke(area: &Area<'_>, look: &CounterSnapshot, places: &[(i32, i32)]) -> Result<(), PlotError> {
    let style = look.colour.stroke_width(2);
    let (on, off) = look.dash;
    for pair in places.windows(2).filter(|_| look.line) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let (dx, dy) = (f64::from(x1 - x0), f64::from(y1 - y0));
        let length = dx.hypot(dy);
        let (on, period) = if off > 0.0 { (on, on + off) } else { (length, length.max(1.0)) };
        let at = |way: f64| {
            let share = (way / length.max(1e-9)).min(1.0);
            (x0 + (dx * share).round() as i32, y0 + (dy * share).round() as i32)
        };
        for n in 0..(length / period).ceil() as u32 {
            let from = f64::from(n) * period;
            area.draw(&PathElement::new(vec![at(from), at(from + on)], style)).map_err(failed)?;
        }
    }
    Ok(())
}

fn marker(
    area: &Area<'_>,
    look: &CounterSnapshot,
    (x, y): (i32, i32),
    hollow: bool,
) -> Result<(), PlotError> {
    let s = SIZE;
    let outline: Vec<(i32, i32)> = match look.marker % MARKERS {
        0 => {
            let inside = if hollow { WHITE.filled() } else { look.colour.filled() };
            area.draw(&Circle::new((x, y), s, inside)).map_err(failed)?;
            return area.draw(&Circle::new((x, y), s, look.colour.stroke_width(2))).map_err(failed);
        }
        1 => vec![(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)],
        2 => vec![(x, y - s - 1), (x + s + 1, y + s), (x - s - 1, y + s)],
        3 => vec![(x, y - s - 2), (x + s + 2, y), (x, y + s + 2), (x - s - 2, y)],
        4 => vec![(x - s - 1, y - s), (x + s + 1, y - s), (x, y + s + 1)],
        _ => vec![(x - s, y - s), (x + s, y - s), (x - s, y + s), (x + s, y + s)],
    };
    let inside = if hollow { WHITE } else { look.colour };
    area.draw(&Polygon::new(outline.clone(), inside.filled())).map_err(failed)?;
    let closed: Vec<(i32, i32)> = outline.iter().chain(outline.first()).copied().collect();
    area.draw(&PathElement::new(closed, look.colour.stroke_width(2))).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Axis = Axis::linear("queues");
    const Y: Axis = Axis::linear("throughput, Gb/s");

    fn line(name: &str, kind: Kind, ys: &[f64]) -> Line {
        let dots = (1..).zip(ys).map(|(x, y)| Dot {
            least: y - 0.5,
            most: y + 0.5,
            ..Dot::new(f64::from(x), *y)
        });
        Line { name: name.into(), kind, dots: dots.collect() }
    }

    #[test]
    fn axes_have_titles_and_units_and_lines_their_names() {
        let all = [
            line("measured here", Kind::Measured, &[1.0, 2.0, 3.0]),
            line("published", Kind::Published, &[2.0, 4.0]),
            line("predicted", Kind::Predicted, &[1.0, 2.0]),
        ];
        let svg = lines(&X, &Y, &all).unwrap();
        for text in ["queues", "throughput, Gb/s", "measured here", "published", "predicted"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn lines_differ_not_only_by_colour() {
        let kinds =
            [vec![Kind::Measured; 8], vec![Kind::Predicted; 4], vec![Kind::Published; 2]].concat();
        let all: Vec<Line> = kinds.into_iter().map(|kind| line("x", kind, &[1.0])).collect();
        let shape = |look: &CounterSnapshot| {
            (
                look.markers.then_some((look.marker % MARKERS, look.hollow)),
                look.line.then_some(look.dash),
            )
        };
        let shapes: Vec<_> = looks(&all).iter().map(shape).collect();
        for (at, one) in shapes.iter().enumerate() {
            assert!(!shapes[..at].contains(one), "{at} looks like another: {shapes:?}");
        }
    }

    #[test]
    fn lines_at_one_x_stand_side_by_side() {
        let all = |kinds: &[Kind]| -> Vec<i32> {
            let lines: Vec<Line> = kinds.iter().map(|kind| line("x", *kind, &[1.0])).collect();
            offsets(&lines)
        };
        assert_eq!(all(&[Kind::Measured]), [0]);
        assert_eq!(all(&[Kind::Measured, Kind::Predicted, Kind::Published]), [-5, 0, 5]);
        let many = all(&[Kind::Measured; 8]);
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]) && many[7] - many[0] <= ASIDE);
    }

    #[test]
    fn plots_without_valid_figures_are_drawn() {
        lines(&X, &Y, &[]).unwrap();
        let dots = vec![Dot::new(f64::NAN, 1.0), Dot::new(1.0, f64::INFINITY), Dot::new(0.0, 0.0)];
        for log in [false, true] {
            let axis = Axis { log, ..Axis::default() };
            lines(
                &axis,
                &axis,
                &[Line { name: "x".into(), kind: Kind::Measured, dots: dots.clone() }],
            )
            .unwrap();
        }
    }
}
