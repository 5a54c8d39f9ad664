//! A plot of an experiment, drawn from its results.

use super::results::Results;
use super::statistics::Summary;
use super::{About, Plot};
use crate::plot::{self, Column, Dot, Kind, Line, PlotError, Shape};

/// Draws it, as SVG.
///
/// # Errors
/// When drawing fails.
pub fn draw(about: &About, plot: &Plot, results: &Results) -> Result<String, PlotError> {
    match plot.shape {
        Shape::Lines => plot::lines(&plot.x, &plot.y, &lines(about, plot, results)),
        Shape::Columns => beside(about, plot, results),
        Shape::Stacks => stacked(about, plot, results),
    }
}

/// A line for each series and figure, and one for each that was published.
fn lines(about: &About, plot: &Plot, results: &Results) -> Vec<Line> {
    let mut all = Vec::new();
    let alone = results.series().len() == 1 && plot.figures.len() > 1;
    for series in results.series() {
        for figure in plot.figures {
            let dots: Vec<Dot> = dots(results, series, figure);
            if !dots.is_empty() {
                let name = if alone { titled(about, figure).into() } else { named(about, plot, series, figure) };
                all.push(Line { name, kind: Kind::Measured, dots });
            }
        }
    }
    let published = about.published.iter().filter(|one| plot.figures.contains(&one.figure));
    for one in published {
        let dot = Dot::new(one.x, one.value);
        match all.iter_mut().find(|line| line.kind == Kind::Published && line.name == one.series) {
            Some(line) => line.dots.push(dot),
            None => all.push(Line { name: one.series.into(), kind: Kind::Published, dots: vec![dot] }),
        }
    }
    all
}

fn dots(results: &Results, series: &str, figure: &str) -> Vec<Dot> {
    let dot = |(number, point): (usize, &super::Point)| {
        let Summary { median, least, most, .. } = results.at(number, figure)?;
        Some(Dot { x: point.x, y: median, least, most, hollow: results.disturbed(number) })
    };
    results.points(series).filter_map(dot).collect()
}

/// What a line is called: by what distinguishes it.
fn named(about: &About, plot: &Plot, series: &str, figure: &str) -> String {
    match plot.figures.len() {
        1 => series.to_owned(),
        _ => format!("{series}: {}", titled(about, figure)),
    }
}

/// A figure as people call it.
fn titled<'a>(about: &About, figure: &'a str) -> &'a str {
    about.figures.iter().find(|it| it.name == figure).map_or(figure, |it| it.title)
}

/// A column for each series at each place; those that were published stand among them.
fn beside(about: &About, plot: &Plot, results: &Results) -> Result<String, PlotError> {
    let lines = lines(about, plot, results);
    let names: Vec<String> = lines.iter().map(|line| line.name.clone()).collect();
    let column = |(number, line): (usize, &Line)| {
        let of = move |dot: &Dot| Column {
            x: dot.x,
            beside: number,
            parts: vec![(number, dot.y)],
            scatter: Some((dot.least, dot.most)),
        };
        line.dots.iter().map(of).collect::<Vec<_>>()
    };
    let columns: Vec<Column> = lines.iter().enumerate().flat_map(column).collect();
    plot::columns(&plot.x, &plot.y, &names, &columns, names.len())
}

/// A column for each series at each place, whose parts are the figures.
fn stacked(about: &About, plot: &Plot, results: &Results) -> Result<String, PlotError> {
    let names: Vec<String> = plot.figures.iter().map(|figure| titled(about, figure).to_owned()).collect();
    let measured = |series: &&str| plot.figures.iter().any(|figure| !results.curve(series, figure).is_empty());
    let series: Vec<&str> = results.series().into_iter().filter(measured).collect();
    let mut columns = Vec::new();
    for (beside, series) in series.iter().enumerate() {
        for (number, point) in results.points(series) {
            let part = |(entry, figure): (usize, &&str)| Some((entry, results.at(number, figure)?.median));
            let parts: Vec<(usize, f64)> = plot.figures.iter().enumerate().filter_map(part).collect();
            if !parts.is_empty() {
                columns.push(Column { x: point.x, beside, parts, scatter: None });
            }
        }
    }
    plot::columns(&plot.x, &plot.y, &names, &columns, series.len())
}
