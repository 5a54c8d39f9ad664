//! The places of points, in words.

use super::About;
use super::results::Results;
use crate::plot::Axis;

/// The axis that a point lies on: that of the first plot whose figures it has.
fn axis(about: &About, results: &Results, number: usize) -> Axis {
    let has = |figures: &[&str]| figures.iter().any(|figure| results.at(number, figure).is_some());
    let plot = about.plots.iter().find(|plot| has(plot.figures)).or(about.plots.first());
    plot.map(|plot| plot.x).unwrap_or_default()
}

/// The place of the point with this number: the axis' label, or the exact number.
pub fn place(about: &About, results: &Results, number: usize) -> String {
    let x = results.record.configuration.points.get(number).map_or(0.0, |point| point.x);
    match axis(about, results, number).labels.get(x as usize) {
        Some(label) => label.replace('\n', " "),
        None => x.to_string(),
    }
}

/// The title of a table's first column, which distinguishes the points of a series: the titles of
/// all axes that they lie on.
pub fn title(about: &About, results: &Results) -> String {
    let mut titles: Vec<&str> = Vec::new();
    for number in 0..results.record.configuration.points.len() {
        let title = axis(about, results, number).title;
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    titles.join(" / ")
}

#[cfg(test)]
mod tests {
    use super::super::Plot;
    use super::super::record::tests::{ABOUT as BLANK, empty, repetition};
    use super::*;
    use crate::plot::Shape;

    #[test]
    fn a_point_has_the_name_that_its_plot_shows() {
        const fn plot(
            title: &'static str,
            labels: &'static [&'static str],
            figures: &'static [&'static str],
        ) -> Plot {
            let x = Axis { title, log: false, labels };
            Plot { name: "", title: "", shape: Shape::Columns, x, y: Axis::linear(""), figures }
        }
        const ABOUT: About = About {
            plots: &[
                plot("streams", &["none", "1 stream"], &["throughput"]),
                plot("size", &["no", "64\nbytes"], &["frames"]),
                plot("queues", &[], &["busy"]),
            ],
            ..BLANK
        };
        let mut record = empty();
        record.configuration.points =
            [1.0, 1.0, 2.5].map(|x| super::super::Point::new("one", x)).into();
        for (point, figure) in ["throughput", "frames", "busy"].into_iter().enumerate() {
            let mut one = repetition(point, 0, 1.0);
            one.outcome.figures = [(figure.to_owned(), 1.0)].into();
            record.repetitions.push(one);
        }
        let results = Results::new(&record);
        assert_eq!(
            [0, 1, 2].map(|number| place(&ABOUT, &results, number)),
            ["1 stream", "64 bytes", "2.5"]
        );
        assert_eq!(title(&ABOUT, &results), "streams / size / queues");
    }
}
