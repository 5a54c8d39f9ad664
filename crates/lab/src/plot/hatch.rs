//! Fills that can be distinguished without colour: each is a colour with a pattern of lines.

use plotters::prelude::*;

use super::{Area, COLOURS, PlotError, failed};

/// Pixels between the lines of a pattern.
const STEP: i32 = 7;

/// A line from one pixel to another.
type Stroke = [(i32, i32); 2];
/// The upper left and the lower right corner of a box.
type Corners = [(i32, i32); 2];

/// Fills a box with the colour and pattern of `number`; draws only its outline if `hollow`.
pub(super) fn fill(
    area: &Area<'_>,
    number: usize,
    corners: Corners,
    hollow: bool,
) -> Result<(), PlotError> {
    let colour = COLOURS[number % COLOURS.len()];
    let (inside, lines) = if hollow { (WHITE, colour) } else { (colour, WHITE) };
    area.draw(&Rectangle::new(corners, inside.filled())).map_err(failed)?;
    for stroke in pattern(number, corners) {
        area.draw(&PathElement::new(stroke.to_vec(), lines.stroke_width(1))).map_err(failed)?;
    }
    area.draw(&Rectangle::new(corners, colour.stroke_width(if hollow { 2 } else { 1 })))
        .map_err(failed)
}

/// The lines of a number's pattern within a box: none, rising, falling, horizontal, vertical, and
/// crossing ones.
fn pattern(number: usize, corners: Corners) -> Vec<Stroke> {
    match number % 6 {
        0 => Vec::new(),
        1 => rising(corners),
        2 => falling(corners),
        3 => lying(corners),
        4 => standing(corners),
        _ => [rising(corners), falling(corners)].concat(),
    }
}

/// Lines on which x + y is a multiple of the step.
fn rising([(x0, y0), (x1, y1)]: Corners) -> Vec<Stroke> {
    let line = |sum: i32| {
        let (from, to) = (x0.max(sum - y1), x1.min(sum - y0));
        (from < to).then_some([(from, sum - from), (to, sum - to)])
    };
    multiples(x0 + y0, x1 + y1).filter_map(line).collect()
}

/// Where y - x is.
fn falling([(x0, y0), (x1, y1)]: Corners) -> Vec<Stroke> {
    let line = |difference: i32| {
        let (from, to) = (x0.max(y0 - difference), x1.min(y1 - difference));
        (from < to).then_some([(from, from + difference), (to, to + difference)])
    };
    multiples(y0 - x1, y1 - x0).filter_map(line).collect()
}

fn lying([(x0, y0), (x1, y1)]: Corners) -> Vec<Stroke> {
    multiples(y0, y1).map(|y| [(x0, y), (x1, y)]).collect()
}

fn standing([(x0, y0), (x1, y1)]: Corners) -> Vec<Stroke> {
    multiples(x0, x1).map(|x| [(x, y0), (x, y1)]).collect()
}

/// The multiples of the step between two numbers, both excluded.
fn multiples(from: i32, to: i32) -> impl Iterator<Item = i32> {
    (from.div_euclid(STEP) + 1..).map(|n| n * STEP).take_while(move |at| *at < to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn patterns_differ_and_stay_in_their_area() {
        let corners = [(78, 31), (120, 95)];
        let all: BTreeSet<Vec<Stroke>> = (0..6).map(|number| pattern(number, corners)).collect();
        assert_eq!(all.len(), 6);
        let within = |(x, y): &(i32, i32)| (78..=120).contains(x) && (31..=95).contains(y);
        assert!(all.iter().flatten().flatten().all(within), "{all:?}");
    }

    #[test]
    fn a_plot_without_room_has_no_lines() {
        assert!((0..6).all(|number| pattern(number, [(10, 10), (10, 10)]).is_empty()));
    }
}
