//! The history as a picture: a small plot for each point, all over the same runs.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::goal::Goal;
use super::history::entry::{Entry, Figure, Other};
use crate::plot::{COLOURS, PlotError, failed};

/// Plots side by side, and the pixels of each.
const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (370, 230);

/// Pixels above all plots, for what the lines mean.
const KEY: u32 = 40;

const TEXT: (&str, i32) = ("sans-serif", 14);
const TITLE: (&str, i32) = ("sans-serif", 15);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The content of one plot.
struct Panel {
    title: String,
    /// The unit of the vertical axis.
    y: String,
    goal: Option<f64>,
    /// By number of the run: how much better than the peer, or the figure itself where that is
    /// what the goal is about.
    main: Vec<(f64, f64)>,
    /// By number of the run: the range of that.
    range: Vec<(f64, [f64; 2])>,
    /// By number of the run: how much of the bare copy's.
    ceiling: Vec<(f64, f64)>,
}

/// Draws all points that any of these runs has measured.
///
/// # Errors
/// When drawing fails.
pub(super) fn draw(entries: &[Entry]) -> Result<String, PlotError> {
    let panels = panels(entries);
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let size = (PANEL.0 * COLUMNS as u32, KEY + PANEL.1 * rows as u32);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (head, body) = area.split_vertically(KEY);
        key(&head)?;
        for (panel, area) in panels.iter().zip(body.split_evenly((rows, COLUMNS))) {
            plot(&area, panel, entries)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// One panel for each point and unit, in the order in which they first appear in the newest runs.
fn panels(entries: &[Entry]) -> Vec<Panel> {
    let mut known: Vec<&Figure> = Vec::new();
    for figure in entries.iter().rev().flat_map(|entry| &entry.figures) {
        if !known.iter().any(|other| (&other.point, &other.unit) == (&figure.point, &figure.unit)) {
            known.push(figure);
        }
    }
    known.into_iter().map(|figure| panel(figure, entries)).collect()
}

fn panel(newest: &Figure, entries: &[Entry]) -> Panel {
    let is_same = |figure: &&Figure| (&figure.point, &figure.unit) == (&newest.point, &newest.unit);
    let found: Vec<(f64, &Figure)> = entries
        .iter()
        .enumerate()
        .filter_map(|(number, entry)| {
            Some((number as f64 + 1.0, entry.figures.iter().find(is_same)?))
        })
        .collect();
    let other = |of: fn(&Figure) -> &Option<Other>| {
        let at =
            move |(number, figure): &(f64, &Figure)| Some((*number, of(figure).as_ref()?.ratio?));
        found.iter().filter_map(at).collect::<Vec<_>>()
    };
    let title = format!("{}, {}", newest.title, newest.unit);
    if let Some(Goal::Times(times)) = newest.goal {
        let range =
            |(number, figure): &(f64, &Figure)| Some((*number, figure.peer.as_ref()?.range?));
        let peer = newest.peer.as_ref().map_or("the peer", |peer| &peer.name);
        let (main, ceiling) = (other(|figure| &figure.peer), other(|figure| &figure.ceiling));
        let range = found.iter().filter_map(range).collect();
        return Panel {
            title,
            y: format!("times {peer}"),
            goal: Some(times),
            main,
            range,
            ceiling,
        };
    }
    let goal = match newest.goal {
        Some(Goal::AtMost(most)) => Some(most),
        // A goal beside the bare copy is no figure.
        _ => None,
    };
    let main = found.iter().map(|(number, figure)| (*number, figure.ringmain)).collect();
    Panel { title, y: newest.unit.clone(), goal, main, range: Vec::new(), ceiling: Vec::new() }
}

/// The legend of the lines.
fn key(area: &Area<'_>) -> Result<(), PlotError> {
    let text = TEXT.into_font().into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    let y = KEY as i32 / 2;
    let say = |x: i32, what: &str| {
        area.draw(&Text::new(what.to_owned(), (x, y), text.clone())).map_err(failed)
    };
    area.draw(&Circle::new((20, y), 4, COLOURS[0].filled())).map_err(failed)?;
    say(
        32,
        "Ringmain, median and range of the rounds: times as good as the peer, or in the unit given",
    )?;
    area.draw(&TriangleMarker::new((640, y), 6, COLOURS[5].filled())).map_err(failed)?;
    say(652, "part of the bare copy's rate")?;
    for x in [850, 862, 874] {
        area.draw(&PathElement::new(vec![(x, y), (x + 7, y)], BLACK.stroke_width(2)))
            .map_err(failed)?;
    }
    say(890, "goal")
}

fn plot(area: &Area<'_>, panel: &Panel, entries: &[Entry]) -> Result<(), PlotError> {
    let highest = panel.main.iter().chain(&panel.ceiling).map(|(_, y)| *y);
    let highest = highest.chain(panel.range.iter().map(|(_, [_, most])| *most)).chain(panel.goal);
    let top = highest.fold(0.0, f64::max) * 1.15;
    let top = if top > 0.0 && top.is_finite() { top } else { 1.0 };
    let right = entries.len() as f64 + 0.5;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(20)
        .caption(&panel.title, TITLE)
        .x_label_area_size(28)
        .y_label_area_size(58)
        .build_cartesian_2d(0.5..right, 0.0..top)
        .map_err(failed)?;
    let label = |at: &f64| {
        let entry = entries
            .get((at.round() as usize).wrapping_sub(1))
            .filter(|_| (at - at.round()).abs() < 1e-6);
        entry.map(|entry| entry.label().chars().take(7).collect()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_desc(&panel.y)
        .x_labels(4)
        .y_labels(5)
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .x_label_formatter(&label)
        .draw()
        .map_err(failed)?;
    if let Some(goal) = panel.goal {
        let line = DashedLineSeries::new([(0.5, goal), (right, goal)], 7, 5, BLACK.stroke_width(2));
        chart.draw_series(line).map_err(failed)?;
    }
    let bars = panel.range.iter().map(|(x, [least, most])| {
        PathElement::new(vec![(*x, *least), (*x, *most)], COLOURS[0].stroke_width(2))
    });
    chart.draw_series(bars).map_err(failed)?;
    chart
        .draw_series(LineSeries::new(panel.main.iter().copied(), COLOURS[0].stroke_width(2)))
        .map_err(failed)?;
    chart
        .draw_series(panel.main.iter().map(|at| Circle::new(*at, 4, COLOURS[0].filled())))
        .map_err(failed)?;
    chart
        .draw_series(LineSeries::new(panel.ceiling.iter().copied(), COLOURS[5].stroke_width(1)))
        .map_err(failed)?;
    chart
        .draw_series(
            panel.ceiling.iter().map(|at| TriangleMarker::new(*at, 6, COLOURS[5].filled())),
        )
        .map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::entry;
    use super::*;

    #[test]
    fn points_are_drawn_once_with_their_axes() {
        let entries: Vec<Entry> = (0..3).map(entry).collect();
        let panels = panels(&entries);
        let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["64 B <small>, Mpps", "idle, % CPU"]);
        assert_eq!(panels[0].main, [(1.0, 1.0), (2.0, 1.1), (3.0, 1.2)]);
        assert_eq!(panels[1].main, [(1.0, 0.1), (2.0, 0.1), (3.0, 0.1)]);
        assert_eq!((panels[0].goal, panels[1].goal), (Some(1.4), Some(0.5)));
        let svg = draw(&entries).unwrap();
        for part in ["times OVS-DPDK", "c0ffee2", "goal", "% CPU"] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
    }

    #[test]
    fn a_picture_without_measurements_is_drawn() {
        draw(&[]).unwrap();
    }
}
