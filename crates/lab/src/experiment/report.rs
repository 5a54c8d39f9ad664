//! The report: one page that needs nothing but itself, and each of its plots as a file beside it. Every figure in it comes
//! out of a record, whose file it names.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::record::{Configuration, Record};
use super::results::Results;
use super::statistics::{Summary, digits};
use super::{About, Experiment, Figure, Finding, LabError, Plot, Size, chart};
use crate::bench::state::State;
use crate::experiments;
use crate::page::{escape, facts, page};

/// Writes the report of these records into a folder. Its path.
///
/// # Errors
/// When something cannot be drawn or written, or a record is of an experiment that is not known.
pub fn write(records: &[Record], out: &Path) -> Result<PathBuf, LabError> {
    let mut body = format!("<p>{}</p>\n", escape(INTRODUCTION));
    for record in records {
        let name = &record.configuration.experiment;
        let experiment = experiments::find(name).ok_or_else(|| LabError::Unknown(name.clone()))?;
        body.push_str(&section(experiment, record, out)?);
    }
    let path = out.join("report.html");
    fs::write(&path, page("Ringmain: the laboratory", &body)).map_err(LabError::file(&path))?;
    Ok(path)
}

const INTRODUCTION: &str = "Published experiments, run again here. Points are medians of repetitions, bars reach from the least \
     to the most, and lines only connect what was measured. A hollow point was disturbed each time it was tried: others took \
     more of the machine than they may. What others published is drawn in grey, and was measured on other machines: compare \
     shapes, not heights.";

/// The records that a report is made of: of each experiment and ground the newest that measures something, or else the newest.
pub fn newest(records: Vec<Record>) -> Vec<Record> {
    let key = |record: &Record| (record.configuration.experiment.clone(), record.configuration.ground.name());
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
        (experiments::ALL.iter().position(|it| it.about().name == name), record.configuration.ground.name())
    };
    best.retain(|record| place(record).0.is_some());
    best.sort_by_key(place);
    best
}

fn section(experiment: &dyn Experiment, record: &Record, out: &Path) -> Result<String, LabError> {
    let (about, results) = (experiment.about(), Results::new(record));
    let ground = record.configuration.ground.name();
    let mut text = format!("<h2>{}: {}</h2>\n<p>{}", escape(about.name), escape(about.title), escape(about.what));
    if let Some(source) = about.source {
        let _ = write!(text, " After: <cite>{}</cite>, {}.", escape(source.title), escape(source.by));
    }
    text.push_str("</p>\n");
    let points = record.configuration.points.len();
    let measured =
        |plot: &&Plot| plot.figures.iter().any(|figure| (0..points).any(|point| results.at(point, figure).is_some()));
    for plot in about.plots.iter().filter(measured) {
        let svg = chart::draw(about, plot, &results)?;
        let path = out.join(format!("{}-{ground}-{}.svg", about.name, plot.name));
        fs::write(&path, &svg).map_err(LabError::file(&path))?;
        let caption = escape(plot.title);
        let _ = writeln!(text, "<figure>{svg}<figcaption>{caption}</figcaption></figure>");
    }
    text.push_str(&findings(&experiment.findings(&results), doubt(&results)));
    for remark in experiment.remarks(&results) {
        let _ = writeln!(text, "<p>{}</p>", escape(&remark));
    }
    text.push_str(&table(about, &results));
    text.push_str(&facts(&origin(record)));
    Ok(text)
}

/// Why figures bear out no verdict, if they do not.
fn doubt(results: &Results) -> Option<&'static str> {
    let Configuration { points, size, .. } = &results.record.configuration;
    match size {
        Size::Tiny => Some("too little was measured to say"),
        _ if (0..points.len()).any(|point| results.disturbed(point)) => Some("too disturbed to say"),
        _ => None,
    }
}

/// What was published, beside what was found.
fn findings(findings: &[Finding], doubt: Option<&str>) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut text = String::from("<table>\n<tr><th>published</th><th>here</th><th></th></tr>\n");
    for Finding { published, here, agrees } in findings {
        let verdict = match (agrees, doubt) {
            (None, _) => "",
            (_, Some(doubt)) => doubt,
            (Some(true), None) => "so it is here",
            (Some(false), None) => "not so here",
        };
        let _ = writeln!(text, "<tr><td>{}</td><td>{}</td><td>{verdict}</td></tr>", escape(published), escape(here));
    }
    text + "</table>\n"
}

/// All points, their figures, and what was published of the same place.
fn table(about: &About, results: &Results) -> String {
    let Configuration { points, .. } = &results.record.configuration;
    let measured = |figure: &&Figure| (0..points.len()).any(|point| results.at(point, figure.name).is_some());
    let figures: Vec<&Figure> = about.figures.iter().filter(measured).collect();
    let x = about.plots.first().map(|plot| plot.x).unwrap_or_default();
    let mut text = format!("<table>\n<tr><th>series</th><th>{}</th><th>n</th>", escape(x.title));
    for figure in &figures {
        let _ = write!(text, "<th>{}, {}</th>", escape(figure.title), escape(figure.unit));
    }
    text.push_str("</tr>\n");
    for (number, point) in points.iter().enumerate() {
        let place =
            x.labels.get(point.x as usize).map_or_else(|| digits_of_place(point.x), |label| label.replace('\n', " "));
        let mark = if results.disturbed(number) { "*" } else { "" };
        let count = results.counted(number).len();
        let _ = write!(text, "<tr><td>{}</td><td>{}</td><td>{count}{mark}</td>", escape(&point.series), escape(&place));
        for figure in &figures {
            let _ = write!(text, "<td>{}</td>", cell(about, results, number, figure));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n<p>Medians (least-most) of n repetitions; * disturbed each time.</p>\n");
    text
}

/// A place on an axis of numbers, as exact as it is.
fn digits_of_place(x: f64) -> String {
    x.to_string()
}

fn cell(about: &About, results: &Results, number: usize, figure: &Figure) -> String {
    let Some(point) = results.record.configuration.points.get(number) else { return String::new() };
    let mut text = results.at(number, figure.name).map_or("-".into(), |summary| spread(&summary));
    let same = about.published.iter().filter(|one| one.figure == figure.name && one.x == point.x);
    for one in same {
        let _ = write!(text, "<br><small>{}: {}</small>", escape(one.series), digits(one.value));
    }
    text
}

fn spread(summary: &Summary) -> String {
    match summary.count() {
        1 => digits(summary.median),
        _ => format!("{} ({}-{})", digits(summary.median), digits(summary.least), digits(summary.most)),
    }
}

/// Where the figures come from.
fn origin(record: &Record) -> Vec<(&'static str, String)> {
    let Configuration { machine, versions, size, seconds, rounds, ground, .. } = &record.configuration;
    let all = &record.repetitions;
    let count = |of: fn(&super::Repetition) -> bool| all.iter().filter(|one| of(one)).count();
    let states = |of: fn(&State) -> f64| Summary::of(all.iter().filter_map(|one| one.state.as_ref().map(of)).collect());
    let state = states(|state| state.work_us).zip(states(|state| state.round_trip_ns));
    let others = Summary::of(all.iter().filter(|one| !one.disturbed).map(|one| one.outcome.others * 100.0).collect());
    let checks = || all.iter().flat_map(|one| &one.outcome.checks);
    let versions: Vec<String> = versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let inside = if machine.virtualised { ", itself a virtual machine" } else { "" };
    let scope = match (size, record.finished) {
        (Size::Tiny, _) => "; a tiny run, which shows that it works and measures nothing",
        (_, None) => "; the run is not finished",
        _ => "",
    };
    let mut facts = vec![
        ("Record", record.file()),
        ("Guests", ground.name().into()),
        ("Repetitions", format!("{rounds} of each point, {seconds} s each{scope}")),
        (
            "Machine",
            format!("{} CPUs{inside}: {}; {} MiB, Linux {}", machine.cpus, machine.cpu, machine.memory, machine.kernel),
        ),
        ("Versions", versions.join("; ")),
        ("Invariants", format!("{} of {} held", checks().filter(|check| check.held).count(), checks().count())),
        ("Disturbed", format!("{} of {} attempts, repeated", count(|one| one.disturbed), all.len())),
    ];
    if let Some(others) = others {
        let (median, most) = (digits(others.median), digits(others.most));
        facts.push(("CPU of others", format!("{median} % of one in the median of the undisturbed, {most} % at most")));
    }
    if let Some((work, trip)) = state {
        let range = |it: &Summary| format!("{} to {}", digits(it.least), digits(it.most));
        let text = format!(
            "the same work took {} us, a cache line to the next CPU and back {} ns",
            range(&work),
            range(&trip)
        );
        facts.push(("Pace", text + " at different times"));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::super::Ground;
    use super::super::record::tests::{empty, repetition};
    use super::*;

    fn record(began: u64, size: Size) -> Record {
        let mut record = empty();
        record.began = began;
        record.configuration.size = size;
        record.repetitions = vec![repetition(0, 0, 12.5), repetition(1, 0, 20.0)];
        record
    }

    #[test]
    fn a_report_shows_its_figures_and_where_they_come_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(&[record(7, Size::Quick)], dir.path()).unwrap();
        let text = fs::read_to_string(path).unwrap();
        for shown in ["12.5", "20.0", "queues-embedded-7.json", "the run is not finished", "<svg"] {
            assert!(text.contains(shown), "{shown} is missing in {text}");
        }
        assert!(!text.contains("src=") && !text.contains("href="), "it needs something else");
        assert!(fs::read_dir(dir.path()).unwrap().count() > 1, "no plot stands beside it");
    }

    #[test]
    fn disturbed_figures_bear_out_no_verdict() {
        let finding = Finding { published: "more".into(), here: "less".into(), agrees: Some(false) };
        let mut disturbed = record(7, Size::Quick);
        assert!(findings(std::slice::from_ref(&finding), doubt(&Results::new(&disturbed))).contains("not so here"));
        disturbed.repetitions[0].disturbed = true;
        assert!(!findings(&[finding], doubt(&Results::new(&disturbed))).contains("not so here"));
    }

    #[test]
    fn the_newest_that_measures_is_reported() {
        let elsewhere = |mut record: Record| {
            record.configuration.ground = Ground::Qemu;
            record
        };
        let unknown = |mut record: Record| {
            record.configuration.experiment = "gone".into();
            record
        };
        let idle = |mut record: Record| {
            record.repetitions.clear();
            record
        };
        let chosen = newest(vec![
            record(1, Size::Quick),
            record(2, Size::Quick),
            record(3, Size::Tiny),
            elsewhere(record(4, Size::Tiny)),
            unknown(record(5, Size::Full)),
            idle(record(6, Size::Full)),
        ]);
        assert_eq!(chosen.iter().map(|record| record.began).collect::<Vec<_>>(), [2, 4]);
    }
}
