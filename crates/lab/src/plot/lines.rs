//! Lines through points, with error bars.

use plotters::prelude::*;

use super::frame::Frame;
use super::scale::Scale;
use super::{Area, Axis, COLOURS, PlotError, drawn, failed};

/// A place of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dot {
    /// The place on the x axis.
    pub x: f64,
    /// The value there.
    pub y: f64,
    /// The lower end of the error bar or band; `y` if there is none.
    pub least: f64,
    /// The upper end of the bar or band.
    pub most: f64,
    /// Whether only the outline is drawn, because the figure cannot be trusted fully.
    pub hollow: bool,
}

impl Dot {
    /// A point without an error bar.
    pub fn new(x: f64, y: f64) -> Dot {
        Dot { x, y, least: y, most: y, hollow: false }
    }
}

/// The origin of a line's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Figures measured here: a solid line.
    Measured,
    /// Figures published by others: grey outlines without a line, because the values between them
    /// are not known here.
    Published,
    /// Figures computed by a model: a dashed line without points. The area between the least and
    /// the most is shaded.
    Predicted,
}

/// One series.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name of the line.
    pub name: String,
    /// The origin of the figures.
    pub kind: Kind,
    /// Its places, in order.
    pub dots: Vec<Dot>,
}

const GREY: RGBColor = RGBColor(0x59, 0x59, 0x59);
const SIZE: i32 = 5;
/// Pixels between the first and the last of all lines at one x.
const ASIDE: i32 = 36;
/// How much of its colour a band has.
const BAND: f64 = 0.15;
/// Markers of different shapes.
const MARKERS: usize = 6;
/// Lengths of dashes and gaps, in pixels: of measured lines, for each further use of all markers;
/// and of predicted lines.
const SOLID: (f64, f64) = (1.0, 0.0);
const MEASURED: [(f64, f64); 3] = [SOLID, (5.0, 3.0), (2.0, 3.0)];
const PREDICTED: [(f64, f64); 4] = [(8.0, 5.0), (2.0, 4.0), (20.0, 6.0), (4.0, 10.0)];

/// The style that distinguishes a line from the others: colour, marker and dashes.
#[derive(Clone, Copy)]
struct Style {
    colour: RGBColor,
    marker: usize,
    /// Lengths of dashes and gaps in pixels; a line without gaps if the gap is zero.
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
    let styles = styles(lines);
    drawn(frame.height(), |area| {
        let key = |area: &Area<'_>, entry: usize, (x, y): (i32, i32)| match styles.get(entry) {
            Some(style) => {
                stroke(area, style, &[(x - 16, y), (x + 16, y)])?;
                if style.markers { marker(area, style, (x, y), style.hollow) } else { Ok(()) }
            }
            None => Ok(()),
        };
        frame.draw(area, (x, y), &names, &key)?;
        let offsets = offsets(lines);
        let drawn = lines.iter().zip(styles.iter().zip(offsets));
        drawn
            .into_iter()
            .try_for_each(|(line, (style, aside))| draw(area, &frame, line, style, aside))
    })
}

/// Horizontal offset of each line in pixels, so that series at one x, even with equal figures, hide
/// neither each other's markers nor bars. Predictions are curves and stay in place.
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

fn styles(lines: &[Line]) -> Vec<Style> {
    let number = |line: usize, kind: Kind| {
        lines.iter().take(line).filter(|other| other.kind == kind).count()
    };
    let style = |(at, line): (usize, &Line)| {
        let number = number(at, line.kind);
        let colour = COLOURS[number % COLOURS.len()];
        match line.kind {
            Kind::Measured => {
                let dash = MEASURED[number / MARKERS % MEASURED.len()];
                Style { colour, marker: number, dash, line: true, markers: true, hollow: false }
            }
            Kind::Published => Style {
                colour: GREY,
                marker: number + 2,
                dash: SOLID,
                line: false,
                markers: true,
                hollow: true,
            },
            Kind::Predicted => {
                let dash = PREDICTED[number % PREDICTED.len()];
                Style { colour, marker: number, dash, line: true, markers: false, hollow: false }
            }
        }
    };
    lines.iter().enumerate().map(style).collect()
}

fn draw(
    area: &Area<'_>,
    frame: &Frame,
    line: &Line,
    style: &Style,
    aside: i32,
) -> Result<(), PlotError> {
    let at = |x: f64, y: f64| {
        let (x, y) = frame.at(x, y);
        (x + aside, y)
    };
    let drawable = |dot: &&Dot| dot.x.is_finite() && dot.y.is_finite();
    let dots: Vec<&Dot> = line.dots.iter().filter(drawable).collect();
    let places: Vec<(i32, i32)> = dots.iter().map(|dot| at(dot.x, dot.y)).collect();
    if line.kind == Kind::Predicted {
        band(area, style, &dots, &at)?;
        return stroke(area, style, &places);
    }
    stroke(area, style, &places)?;
    for (dot, place) in dots.iter().zip(places) {
        if dot.most > dot.least {
            let ((x, low), (_, high)) = (at(dot.x, dot.least), at(dot.x, dot.most));
            for ends in [
                [(x, low), (x, high)],
                [(x - 4, low), (x + 4, low)],
                [(x - 4, high), (x + 4, high)],
            ] {
                area.draw(&PathElement::new(ends.to_vec(), style.colour.stroke_width(1)))
                    .map_err(failed)?;
            }
        }
        if style.markers {
            marker(area, style, place, style.hollow || dot.hollow)?;
        }
    }
    Ok(())
}

/// Shades the area between the least and the most of dots.
fn band(
    area: &Area<'_>,
    style: &Style,
    dots: &[&Dot],
    at: &impl Fn(f64, f64) -> (i32, i32),
) -> Result<(), PlotError> {
    if dots.iter().all(|dot| dot.most <= dot.least) {
        return Ok(());
    }
    let upper = dots.iter().map(|dot| at(dot.x, dot.most));
    let lower = dots.iter().rev().map(|dot| at(dot.x, dot.least));
    let outline: Vec<(i32, i32)> = upper.chain(lower).collect();
    area.draw(&Polygon::new(outline, style.colour.mix(BAND).filled())).map_err(failed)
}

/// Draws a line through places, with gaps if its style has any.
fn stroke(area: &Area<'_>, style: &Style, places: &[(i32, i32)]) -> Result<(), PlotError> {
    let pen = style.colour.stroke_width(2);
    let (on, off) = style.dash;
    for pair in places.windows(2).filter(|_| style.line) {
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
            area.draw(&PathElement::new(vec![at(from), at(from + on)], pen)).map_err(failed)?;
        }
    }
    Ok(())
}

fn marker(
    area: &Area<'_>,
    style: &Style,
    (x, y): (i32, i32),
    hollow: bool,
) -> Result<(), PlotError> {
    let s = SIZE;
    let outline: Vec<(i32, i32)> = match style.marker % MARKERS {
        0 => {
            let inside = if hollow { WHITE.filled() } else { style.colour.filled() };
            area.draw(&Circle::new((x, y), s, inside)).map_err(failed)?;
            return area
                .draw(&Circle::new((x, y), s, style.colour.stroke_width(2)))
                .map_err(failed);
        }
        1 => vec![(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)],
        2 => vec![(x, y - s - 1), (x + s + 1, y + s), (x - s - 1, y + s)],
        3 => vec![(x, y - s - 2), (x + s + 2, y), (x, y + s + 2), (x - s - 2, y)],
        4 => vec![(x - s - 1, y - s), (x + s + 1, y - s), (x, y + s + 1)],
        _ => vec![(x - s, y - s), (x + s, y - s), (x - s, y + s), (x + s, y + s)],
    };
    let inside = if hollow { WHITE } else { style.colour };
    area.draw(&Polygon::new(outline.clone(), inside.filled())).map_err(failed)?;
    let closed: Vec<(i32, i32)> = outline.iter().chain(outline.first()).copied().collect();
    area.draw(&PathElement::new(closed, style.colour.stroke_width(2))).map_err(failed)
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
        let shape = |style: &Style| {
            (
                style.markers.then_some((style.marker % MARKERS, style.hollow)),
                style.line.then_some(style.dash),
            )
        };
        let shapes: Vec<_> = styles(&all).iter().map(shape).collect();
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
