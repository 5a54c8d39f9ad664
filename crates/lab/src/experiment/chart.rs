//! A plot of an experiment, drawn from its results.

use super::results::Results;
use super::{About, Plot};
use crate::plot::{self, Column, Dot, Kind, Line, PlotError, Shape};
use crate::statistics::Centre;

/// A chart of an experiment's results.
#[derive(Clone, Copy)]
pub struct Chart<'a> {
    /// The experiment.
    pub about: &'a About,
    /// The plot.
    pub plot: &'a Plot,
    /// The results.
    pub results: &'a Results<'a>,
    /// The value that represents repetitions.
    pub centre: Centre,
}

impl Chart<'_> {
    /// Draws it, as SVG.
    ///
    /// # Errors
    /// When drawing fails.
    pub fn draw(&self) -> Result<String, PlotError> {
        match self.plot.shape {
            Shape::Lines => plot::lines(&self.plot.x, &self.plot.y, &self.lines()),
            Shape::Columns => self.beside(),
            Shape::Stacks => self.stacked(),
        }
    }

    /// A line for each series and figure, and one for each that was published.
    fn lines(&self) -> Vec<Line> {
        let Chart { about, plot, results, .. } = *self;
        let mut all = Vec::new();
        let alone = results.series().len() == 1 && plot.figures.len() > 1;
        for series in results.series() {
            for figure in plot.figures {
                let dots: Vec<Dot> = self.dots(series, figure);
                if !dots.is_empty() {
                    let name = if alone {
                        titled(about, figure).into()
                    } else {
                        self.named(series, figure)
                    };
                    all.push(Line { name, kind: Kind::Measured, dots });
                }
            }
        }
        let published = about.published.iter().filter(|one| plot.figures.contains(&one.figure));
        for one in published {
            let dot = Dot::new(one.x, one.value);
            match all
                .iter_mut()
                .find(|line| line.kind == Kind::Published && line.name == one.series)
            {
                Some(line) => line.dots.push(dot),
                None => all.push(Line {
                    name: one.series.into(),
                    kind: Kind::Published,
                    dots: vec![dot],
                }),
            }
        }
        all
    }

    fn dots(&self, series: &str, figure: &str) -> Vec<Dot> {
        let dot = |(number, point): (usize, &super::Point)| {
            let (y, [least, most]) = self.results.at(number, figure)?.shown(self.centre);
            Some(Dot { x: point.x, y, least, most, hollow: self.results.disturbed(number) })
        };
        self.results.points(series).filter_map(dot).collect()
    }

    /// The name of a line: the properties that distinguish it.
    fn named(&self, series: &str, figure: &str) -> String {
        match self.plot.figures.len() {
            1 => series.to_owned(),
            _ => format!("{series}: {}", titled(self.about, figure)),
        }
    }

    /// A column for each series at each place; those that were published stand among them.
    fn beside(&self) -> Result<String, PlotError> {
        let lines = self.lines();
        let names: Vec<String> = lines.iter().map(|line| line.name.clone()).collect();
        let column = |(number, line): (usize, &Line)| {
            let of = move |dot: &Dot| Column {
                x: dot.x,
                beside: number,
                parts: vec![(number, dot.y)],
                whole: dot.y,
                scatter: [dot.least, dot.most],
                hollow: dot.hollow,
            };
            line.dots.iter().map(of).collect::<Vec<_>>()
        };
        let columns: Vec<Column> = lines.iter().enumerate().flat_map(column).collect();
        plot::columns(&self.plot.x, &self.plot.y, &names, &columns, names.len())
    }

    /// A column for each series at each place, whose parts are the figures. Its number and its
    /// scatter are those of their sums, repetition by repetition.
    fn stacked(&self) -> Result<String, PlotError> {
        let Chart { about, plot, results, centre } = *self;
        let names: Vec<String> =
            plot.figures.iter().map(|figure| titled(about, figure).to_owned()).collect();
        let measured = |series: &&str| {
            plot.figures.iter().any(|figure| !results.curve(series, figure).is_empty())
        };
        let series: Vec<&str> = results.series().into_iter().filter(measured).collect();
        let mut columns = Vec::new();
        for (beside, series) in series.iter().enumerate() {
            for (number, point) in results.points(series) {
                let part = |(entry, figure): (usize, &&str)| {
                    Some((entry, results.at(number, figure)?.shown(centre).0))
                };
                let parts: Vec<(usize, f64)> =
                    plot.figures.iter().enumerate().filter_map(part).collect();
                if let Some((whole, scatter)) =
                    results.sum_at(number, plot.figures).map(|sum| sum.shown(centre))
                {
                    columns.push(Column {
                        x: point.x,
                        beside,
                        parts,
                        whole,
                        scatter,
                        hollow: results.disturbed(number),
                    });
                }
            }
        }
        plot::columns(&plot.x, &plot.y, &names, &columns, series.len())
    }
}

/// A figure as people call it.
fn titled<'a>(about: &About, figure: &'a str) -> &'a str {
    about.figures.iter().find(|it| it.name == figure).map_or(figure, |it| it.title)
}

#[cfg(test)]
mod tests {
    use super::super::Figure;
    use super::super::record::tests::{ABOUT as BLANK, empty, repetition};
    use super::*;
    use crate::plot::Axis;

    const FIGURE: Figure = Figure { name: "throughput", title: "all", unit: "" };
    const ABOUT: About = About { figures: &[FIGURE, Figure { name: "other", ..FIGURE }], ..BLANK };

    fn drawn(shape: Shape, disturbed: bool) -> String {
        let mut record = empty();
        for (round, (all, other)) in [(1.0, 20.0), (2.0, 40.0), (9.0, 10.0)].into_iter().enumerate()
        {
            let mut one = repetition(0, round as u32, all);
            one.outcome.figure("other", other);
            one.disturbed = disturbed;
            record.repetitions.push(one);
        }
        let figures =
            if shape == Shape::Stacks { &["throughput", "other"][..] } else { &["throughput"] };
        let plot =
            Plot { name: "p", title: "", shape, x: Axis::default(), y: Axis::default(), figures };
        Chart {
            about: &ABOUT,
            plot: &plot,
            results: &Results::new(&record),
            centre: Centre::Median,
        }
        .draw()
        .unwrap()
    }

    #[test]
    fn disturbed_columns_and_stacks_are_marked() {
        for shape in [Shape::Lines, Shape::Columns, Shape::Stacks] {
            assert_ne!(drawn(shape, false), drawn(shape, true), "{shape:?}");
        }
    }

    #[test]
    fn the_number_of_a_stack_is_the_median_of_its_sums() {
        // 21, 42 and 19: medians of the parts come to 22.
        let svg = drawn(Shape::Stacks, false);
        assert!(svg.contains("\n21.0\n") && !svg.contains("\n22.0\n"), "{svg}");
    }
}
