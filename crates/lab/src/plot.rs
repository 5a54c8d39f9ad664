//! Plots as SVG text, to be embedded in a page. Colour-blind people can distinguish the colours,
//! and no information is given by colour alone.

mod columns;
mod frame;
mod hatch;
mod lines;
mod scale;

pub use columns::{Column, columns};
pub use lines::{Dot, Kind, Line, lines};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Okabe and Ito's palette without its yellow and black, dark ones first.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
];
const WIDTH: u32 = 760;
const TEXT: (&str, i32) = ("sans-serif", 15);
const SMALL: (&str, i32) = ("sans-serif", 13);

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlotError(String);

/// One axis of a plot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Axis {
    /// The title, with the unit.
    pub title: &'static str,
    /// Whether equal distances are equal ratios.
    pub log: bool,
    /// The names of 0, 1, 2, ... on an axis with names instead of numbers.
    pub labels: &'static [&'static str],
}

impl Axis {
    /// An axis of numbers, on which equal distances are equal differences.
    pub const fn linear(title: &'static str) -> Axis {
        Axis { title, log: false, labels: &[] }
    }
}

/// How figures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line for each series.
    Lines,
    /// Columns beside each other for each place.
    Columns,
    /// Columns whose parts are figures.
    Stacks,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError(error.to_string())
}

/// One series of a bar chart.
#[derive(Clone, Debug)]
pub struct Bars {
    /// The name of the series.
    pub name: String,
    /// One value for each label.
    pub values: Vec<f64>,
}

/// Bars side by side for each of `labels`, with their values on top.
///
/// # Errors
/// When drawing fails.
pub fn bars(x: &str, y: &str, labels: &[String], series: &[Bars]) -> Result<String, PlotError> {
    drawn(380, |area| {
        let most = series.iter().flat_map(|bars| &bars.values).copied().fold(0.0, f64::max);
        let top = if most > 0.0 { most * 1.2 } else { 1.0 };
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(52)
            .y_label_area_size(64)
            .build_cartesian_2d(0.5..labels.len() as f64 + 0.5, 0.0..top)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(x)
            .y_desc(y)
            .axis_desc_style(TEXT)
            .label_style(TEXT)
            .x_labels(labels.len())
            .x_label_formatter(&|at| {
                let nearest = at.round();
                let label = labels
                    .get((nearest as usize).wrapping_sub(1))
                    .filter(|_| (at - nearest).abs() < 1e-6);
                label.cloned().unwrap_or_default()
            })
            .draw()
            .map_err(failed)?;
        let width = 0.7 / series.len().max(1) as f64;
        for (number, bars) in series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let left = |index: usize| index as f64 + 1.0 - 0.35 + width * number as f64;
            let boxes = bars.values.iter().enumerate().map(|(index, value)| {
                Rectangle::new(
                    [(left(index) + 0.01, 0.0), (left(index) + width - 0.01, *value)],
                    colour.filled(),
                )
            });
            let key = move |(x, y)| Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled());
            chart.draw_series(boxes).map_err(failed)?.label(&bars.name).legend(key);
            let above =
                TEXT.into_font().into_text_style(area).pos(Pos::new(HPos::Center, VPos::Bottom));
            let figures = bars.values.iter().enumerate().map(|(index, value)| {
                Text::new(
                    format!("{value:.2}"),
                    (left(index) + width / 2.0, value + top * 0.01),
                    above.clone(),
                )
            });
            chart.draw_series(figures).map_err(failed)?;
        }
        if series.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .label_font(TEXT)
                .draw()
                .map_err(failed)?;
        }
        Ok(())
    })
}

/// One row of a stack chart: shares of a whole.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The quantity that is shared.
    pub name: String,
    /// The shares, 0 to 1, in their order.
    pub shares: Vec<f64>,
}

/// Rows of shares from left to right, each with its number and its percentage where that fits.
///
/// # Errors
/// When drawing fails.
pub fn stacks(x: &str, rows: &[Stack]) -> Result<String, PlotError> {
    let count = rows.len() as f64;
    drawn(70 + 34 * rows.len() as u32, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(52)
            .y_label_area_size(150)
            .build_cartesian_2d(0.0..100.0, count + 0.5..0.5)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc(x)
            .axis_desc_style(TEXT)
            .label_style(TEXT)
            .x_label_formatter(&|at| format!("{at:.0}"))
            .y_labels(rows.len())
            .y_label_formatter(&|at| {
                let nearest = at.round();
                let row = rows
                    .get((nearest as usize).wrapping_sub(1))
                    .filter(|_| (at - nearest).abs() < 1e-6);
                row.map(|row| row.name.clone()).unwrap_or_default()
            })
            .draw()
            .map_err(failed)?;
        let inside = SMALL
            .into_font()
            .color(&WHITE)
            .into_text_style(area)
            .pos(Pos::new(HPos::Center, VPos::Center));
        for (index, row) in rows.iter().enumerate() {
            let middle = index as f64 + 1.0;
            let mut left = 0.0;
            for (number, share) in row.shares.iter().enumerate() {
                let right = left + share * 100.0;
                let colour = COLOURS[number % COLOURS.len()];
                let part = Rectangle::new(
                    [(left, middle - 0.36), (right, middle + 0.36)],
                    colour.filled(),
                );
                let edge = PathElement::new(
                    vec![(right, middle - 0.36), (right, middle + 0.36)],
                    WHITE.stroke_width(2),
                );
                chart.plotting_area().draw(&part).map_err(failed)?;
                chart.plotting_area().draw(&edge).map_err(failed)?;
                if *share > 0.12 {
                    let style = if number == 0 { inside.clone() } else { inside.color(&BLACK) };
                    let text = format!("queue {number}: {:.0} %", share * 100.0);
                    let label = Text::new(text, ((left + right) / 2.0, middle), style);
                    chart.plotting_area().draw(&label).map_err(failed)?;
                }
                left = right;
            }
        }
        Ok(())
    })
}

/// Draws on white, `height` pixels high.
fn drawn(
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_carry_their_labels_units_and_values() {
        let labels = ["1", "2", "4"].map(String::from);
        let one = Bars { name: "one".into(), values: vec![1.25, 2.5, 2.75] };
        let two = Bars { name: "two".into(), values: vec![0.5, 0.75, 1.0] };
        let svg = bars("queues", "Gb/s", &labels, &[one, two]).unwrap();
        for text in ["queues", "Gb/s", "1.25", "2.50", "2.75", "one", "two"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        for label in labels {
            assert!(svg.contains(&format!("\n{label}\n")), "{label} is missing in {svg}");
        }
    }

    #[test]
    fn shares_say_their_queue_and_percentage() {
        let row = |name: &str, shares: &[f64]| Stack { name: name.into(), shares: shares.to_vec() };
        let svg =
            stacks("share, %", &[row("two, sender", &[0.25, 0.75]), row("none", &[])]).unwrap();
        for text in ["share, %", "two, sender", "queue 0: 25 %", "queue 1: 75 %"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
    }

    #[test]
    fn a_plot_without_measurements_is_drawn() {
        bars("x", "y", &[], &[]).unwrap();
        stacks("x", &[]).unwrap();
    }
}
