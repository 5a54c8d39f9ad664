//! The report: one page without external files, and each of its plots as a file beside it. Every
//! figure in the page comes from a record, whose file it names.

use std::fs;
use std::path::{Path, PathBuf};

use maud::{Markup, html};

use crate::bench::state::State;
use crate::experiment::chart::Chart;
use crate::experiment::record::{Configuration, Record};
use crate::experiment::results::Results;
use crate::experiment::{
    About, Experiment, Figure, Finding, LabError, Plot, Repetition, Size, place,
};
use crate::experiments;
use crate::page::{facts, figure, page};
use crate::statistics::{Centre, Summary, digits};

/// Writes the report of these records into a folder, and returns its path.
///
/// # Errors
/// When something cannot be drawn or written, or a record is of an experiment that is not known.
pub fn write(records: &[Record], out: &Path) -> Result<PathBuf, LabError> {
    let mut sections = Vec::new();
    for record in records {
        let name = &record.configuration.experiment;
        let experiment = experiments::find(name).ok_or_else(|| LabError::Unknown(name.clone()))?;
        // Each of two records of the same experiment has plots of its own.
        let stem = match records.iter().filter(|other| key(other) == key(record)).count() {
            1 => key(record).0.to_owned() + "-" + key(record).1,
            _ => record.file().trim_end_matches(".json").to_owned(),
        };
        sections.push(section(experiment, record, &out.join(stem))?);
    }
    let body = html! {
        p { (INTRODUCTION) }
        @for section in &sections { (section) }
    };
    let path = out.join("report.html");
    fs::write(&path, page("Ringmain: the laboratory", &body)).map_err(LabError::file(&path))?;
    Ok(path)
}

const INTRODUCTION: &str = "Points are medians of repetitions. Bars reach from the smallest to the \
                            largest figure, unless a plot says otherwise. Lines only connect \
                            measured points. Series that share an x stand side by side, a few \
                            pixels apart. A hollow point, or a column that is only an outline, was \
                            disturbed in each repetition: other processes took more CPU time than \
                            allowed. Figures that others published are drawn in grey. They were \
                            measured on other machines: compare shapes, not heights.";

/// The key of records that show the same.
fn key(record: &Record) -> (&str, &'static str) {
    (&record.configuration.experiment, record.configuration.platform.name())
}

/// The records that a report is made of: of each experiment and platform the newest that measures
/// something, or else the newest.
pub fn newest(records: Vec<Record>) -> Vec<Record> {
    let worth = |record: &Record| {
        let measures = record.configuration.size != Size::Tiny;
        (measures, record.finished.is_some(), record.began)
    };
    let mut best: Vec<Record> = Vec::new();
    for record in records.into_iter().filter(|record| !record.repetitions.is_empty()) {
        match best.iter_mut().find(|other| key(other) == key(&record)) {
            Some(other) if worth(other) <= worth(&record) => *other = record,
            Some(_) => {}
            None => best.push(record),
        }
    }
    let place = |record: &Record| {
        let name = record.configuration.experiment.as_str();
        (
            experiments::ALL.iter().position(|it| it.about().name == name),
            record.configuration.platform.name(),
        )
    };
    best.retain(|record| place(record).0.is_some());
    best.sort_by_key(place);
    best
}

/// The section of one record. Its plots are written beside it, as files that begin like `stem`.
fn section(experiment: &dyn Experiment, record: &Record, stem: &Path) -> Result<Markup, LabError> {
    let (about, results, centre) = (experiment.about(), Results::new(record), experiment.centre());
    let plots = plots(about, &results, centre, stem)?;
    Ok(html! {
        h2 { (about.name) ": " (about.title) }
        (introduction(about))
        (plots)
        (findings(&experiment.findings(&results), results.doubt()))
        @for paragraph in remarks(experiment, &results).iter().chain(&experiment.notes(&results)) {
            p { (paragraph) }
        }
        (table(about, &results, centre))
        (facts(&origin(record)))
    })
}

/// The description, the publication, and which of its figures are drawn.
fn introduction(about: &About) -> Markup {
    html! {
        p {
            (about.what)
            @match about.source {
                Some(source) => {
                    " After: " cite { (source.title) } ", " (source.by) "."
                    @if about.published.is_empty() {
                        " The source has its figures only in pictures without numbers, so none \
                        of them is drawn here."
                    }
                }
                None => " An experiment of Ringmain's own: nothing was published before.",
            }
        }
    }
}

/// All plots that have figures, each also written to a file.
fn plots(
    about: &About,
    results: &Results,
    centre: Centre,
    stem: &Path,
) -> Result<Markup, LabError> {
    let points = results.record.configuration.points.len();
    let measured = |plot: &&Plot| {
        plot.figures
            .iter()
            .any(|figure| (0..points).any(|point| results.at(point, figure).is_some()))
    };
    let bars = if centre == Centre::Mean { ": means and standard deviations" } else { "" };
    let mut figures = Vec::new();
    for plot in about.plots.iter().filter(measured) {
        let svg = Chart { about, plot, results, centre }.draw()?;
        let path = PathBuf::from(format!("{}-{}.svg", stem.display(), plot.name));
        fs::write(&path, &svg).map_err(LabError::file(&path))?;
        figures.push(figure(&format!("{}{bars}", plot.title), &svg));
    }
    Ok(html! { @for figure in &figures { (figure) } })
}

/// Remarks on the figures, if there are any.
fn remarks(experiment: &dyn Experiment, results: &Results) -> Vec<String> {
    match results.doubt() {
        None => experiment.remarks(results),
        Some(doubt) => vec![format!("No conclusions are drawn from these figures: {doubt}.")],
    }
}

/// The published claims, beside the measurements.
fn findings(findings: &[Finding], doubt: Option<&'static str>) -> Markup {
    html! {
        @if !findings.is_empty() {
            table {
                tr { th { "published" } th { "here" } th { "verdict" } }
                @for Finding { published, here, verdict } in findings {
                    tr { td { (published) } td { (here) } td { (verdict.said(doubt)) } }
                }
            }
        }
    }
}

/// All points, their figures, and what was published of the same place.
fn table(about: &About, results: &Results, centre: Centre) -> Markup {
    let Configuration { points, .. } = &results.record.configuration;
    let measured =
        |figure: &&Figure| (0..points.len()).any(|point| results.at(point, figure.name).is_some());
    let figures: Vec<&Figure> = about.figures.iter().filter(measured).collect();
    let disturbed = (0..points.len()).any(|point| results.disturbed(point));
    html! {
        div.wide {
            table {
                tr {
                    th { "series" }
                    th { (place::title(about, results)) }
                    th { "n" }
                    @for figure in &figures { th { (figure.title) ", " (figure.unit) } }
                }
                @for (number, point) in points.iter().enumerate() {
                    tr {
                        td { (point.series) }
                        td { (place::place(about, results, number)) }
                        td {
                            (results.counted(number).len())
                            @if results.disturbed(number) { "*" }
                        }
                        @for figure in &figures { td { (cell(about, results, number, figure, centre)) } }
                    }
                }
            }
        }
        p { (legend(centre, disturbed)) }
    }
}

/// The meaning of the table's columns.
fn legend(centre: Centre, disturbed: bool) -> String {
    let what = match centre {
        Centre::Mean => "Means ± standard deviations",
        Centre::Median => "Medians (least-most)",
    };
    let mark = if disturbed {
        " * Every attempt at this point was disturbed. Disturbed attempts are repeated several \
         times, and n counts all of them here."
    } else {
        ""
    };
    format!("{what} of n repetitions.{mark}")
}

fn cell(
    about: &About,
    results: &Results,
    number: usize,
    figure: &Figure,
    centre: Centre,
) -> Markup {
    let Some(point) = results.record.configuration.points.get(number) else { return html! {} };
    let value = results.at(number, figure.name).map(|summary| summary.said(centre));
    let same = about.published.iter().filter(|one| one.figure == figure.name && one.x == point.x);
    html! {
        (value.as_deref().unwrap_or("-"))
        @for one in same { br; small { (one.series) ": " (digits(one.value)) } }
    }
}

/// The origin of the figures.
fn origin(record: &Record) -> Vec<(&'static str, String)> {
    let Configuration {
        machine, versions, size, seconds, rounds, platform, disturbed_above, ..
    } = &record.configuration;
    let all = &record.repetitions;
    let count = |of: fn(&Repetition) -> bool| all.iter().filter(|one| of(one)).count();
    let states = |of: fn(&State) -> f64| {
        Summary::of(all.iter().filter_map(|one| one.state.as_ref().map(of)).collect())
    };
    let state = states(State::slower_us).zip(states(|state| state.round_trip_ns));
    let others = Summary::of(
        all.iter().filter(|one| !one.disturbed).map(|one| one.outcome.others * 100.0).collect(),
    );
    let checks = || all.iter().flat_map(|one| &one.outcome.checks);
    let versions: Vec<String> =
        versions.iter().map(|(name, version)| versioned(name, version)).collect();
    let inside = if machine.virtualised { ", itself a virtual machine" } else { "" };
    let scope = match (size, record.finished) {
        (Size::Tiny, _) => "; a tiny run, which shows that it works and measures nothing",
        (_, None) => "; the run is not finished",
        _ => "",
    };
    let mut facts = vec![
        ("Record", record.file()),
        ("Guests", platform.name().into()),
        ("Repetitions", format!("{rounds} of each point, {seconds} s each{scope}")),
        (
            "Machine",
            format!(
                "{} CPUs{inside}: {}; {} MiB, Linux {}",
                machine.cpus, machine.cpu, machine.memory, machine.kernel
            ),
        ),
        ("Versions", versions.join("; ")),
        (
            "Invariants",
            format!("{} of {} held", checks().filter(|check| check.held).count(), checks().count()),
        ),
        (
            "Disturbed",
            format!(
                "{} of {} attempts, repeated: others took more than {} % of a CPU",
                count(|one| one.disturbed),
                all.len(),
                digits(disturbed_above * 100.0)
            ),
        ),
    ];
    if let Some(others) = others {
        let (median, most) = (digits(others.median), digits(others.most));
        facts.push((
            "CPU of others",
            format!("{median} % of one in the median of the undisturbed, {most} % at most"),
        ));
    }
    if let Some((work, trip)) = state {
        let range = |it: &Summary| format!("{} to {}", digits(it.least), digits(it.most));
        let text = format!(
            "a fixed piece of work took {} us, and a cache line to the next CPU and back {} ns",
            range(&work),
            range(&trip)
        );
        facts.push(("Pace", text + " at different times"));
    }
    facts
}

/// A program and its version. Most programs begin the line that says their version with their name.
fn versioned(name: &str, version: &str) -> String {
    if version.to_lowercase().starts_with(&name.to_lowercase()) {
        version.into()
    } else {
        format!("{name} {version}")
    }
}

#[cfg(test)]
mod tests;
