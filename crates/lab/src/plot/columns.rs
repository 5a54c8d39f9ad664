//! Columns beside each other, or made of parts.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::frame::Frame;
use super::hatch::fill;
use super::scale::Scale;
use super::{Area, Axis, PlotError, SMALL, drawn, failed};

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its place on the x axis.
    pub x: f64,
    /// The position of the column among those at its place.
    pub beside: usize,
    /// The parts from below, each with the number of its entry in the legend.
    pub parts: Vec<(usize, f64)>,
    /// The total, which is written above the column.
    pub whole: f64,
    /// The range over which the total scatters.
    pub scatter: [f64; 2],
    /// Whether only the outline is drawn, because the figure cannot be trusted fully.
    pub hollow: bool,
}

/// Columns over `x`, `width` of them beside each other at each place; `names` are the names of
/// parts.
///
/// # Errors
/// When drawing fails.
pub fn columns(
    x: &Axis,
    y: &Axis,
    names: &[String],
    columns: &[Column],
    width: usize,
) -> Result<String, PlotError> {
    let height = |column: &Column| column.parts.iter().map(|(_, part)| part).sum::<f64>();
    let values = columns.iter().flat_map(|column| [height(column), column.scatter[1]]);
    // Whole places, so that columns at the edge have room.
    let places = columns.iter().map(|column| column.x).collect();
    let mut x_scale = Scale::of_places(&Axis { labels: &["x"], ..*x }, places);
    x_scale.name(x.labels);
    let frame = Frame::new(x_scale, Scale::of_values(y, values), names);
    drawn(frame.height(), |area| {
        let key = |area: &Area<'_>, entry: usize, (x, y): (i32, i32)| {
            fill(area, entry, [(x - 12, y - 8), (x + 12, y + 8)], false)
        };
        frame.draw(area, (x, y), names, &key)?;
        columns.iter().try_for_each(|column| draw(area, &frame, column, width.max(1)))
    })
}

fn draw(area: &Area<'_>, frame: &Frame, column: &Column, width: usize) -> Result<(), PlotError> {
    let each = 0.8 / width as f64;
    let left = column.x - 0.4 + each * column.beside as f64;
    let mut bottom = 0.0;
    for (entry, part) in column.parts.iter().filter(|(_, part)| part.is_finite()) {
        let ((x0, y0), (x1, y1)) = (frame.at(left, bottom), frame.at(left + each, bottom + part));
        fill(area, *entry, [(x0 + 1, y1), (x1 - 1, y0)], column.hollow)?;
        area.draw(&PathElement::new(vec![(x0 + 1, y1), (x1 - 1, y1)], WHITE.stroke_width(1)))
            .map_err(failed)?;
        bottom += part;
    }
    let middle = left + each / 2.0;
    let [least, most] = column.scatter;
    let top = most.max(bottom);
    if most > least {
        let ((x, low), (_, high)) = (frame.at(middle, least), frame.at(middle, most));
        // Black on white is legible on any fill.
        for style in [WHITE.stroke_width(4), BLACK.stroke_width(2)] {
            for ends in [
                [(x, low), (x, high)],
                [(x - 4, low), (x + 4, low)],
                [(x - 4, high), (x + 4, high)],
            ] {
                area.draw(&PathElement::new(ends.to_vec(), style)).map_err(failed)?;
            }
        }
    }
    let (x, y) = frame.at(middle, top);
    let above = SMALL.into_font().into_text_style(area).pos(Pos::new(HPos::Center, VPos::Bottom));
    area.draw(&Text::new(crate::statistics::digits(column.whole), (x, y - 3), above))
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_carry_their_values_and_names() {
        let axis = |title| Axis { title, log: false, labels: &["before", "after"] };
        let column = |x, value| {
            let (parts, whole) = (vec![(0, value), (1, 1.0)], value + 1.0);
            Column { x, beside: 0, parts, whole, scatter: [1.0, 4.0], hollow: false }
        };
        let names = ["copy".to_owned(), "kernel".to_owned()];
        let drawn = columns(
            &axis("step"),
            &Axis { title: "cycles", ..Axis::default() },
            &names,
            &[column(0.0, 1.25), column(1.0, 2.0)],
            1,
        );
        let svg = drawn.unwrap();
        for text in ["step", "cycles", "copy", "kernel", "before", "after", "2.25", "3.00"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn doubtful_figures_are_drawn_as_outlines() {
        let draw = |hollow| {
            let one = Column {
                x: 0.0,
                beside: 0,
                parts: vec![(0, 1.0)],
                whole: 1.0,
                scatter: [1.0, 1.0],
                hollow,
            };
            columns(&Axis::default(), &Axis::default(), &[], &[one], 1).unwrap()
        };
        let filled = |svg: &str| svg.matches("fill=\"#0072B2\"").count();
        assert_eq!((filled(&draw(false)), filled(&draw(true))), (1, 0));
    }

    #[test]
    fn an_empty_plot_is_drawn() {
        columns(&Axis::default(), &Axis::default(), &[], &[], 0).unwrap();
    }
}
