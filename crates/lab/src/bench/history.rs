//! Figures of earlier runs: a line of JSON for each, in a file that only grows, and a page with
//! plots.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};

use super::BenchError;
use super::picture;
use super::result::Comparison;
use super::tally::{Beside, Row};
use crate::page;
use crate::statistics::digits;

pub mod entry;

pub use entry::{Entry, Figure, Other};

/// The file, in the folder of results.
const FILE: &str = "history.jsonl";

/// Runs that are drawn: the newest.
const DRAWN: usize = 60;

/// All runs, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The entries that can be read.
    pub entries: Vec<Entry>,
    /// Lines that can't.
    pub unread: usize,
}

impl History {
    /// Adds a run to the history in `dir`.
    ///
    /// # Errors
    /// When the file can't be written.
    pub(super) fn append(dir: &Path, comparison: &Comparison) -> Result<(), BenchError> {
        let failed = |source| BenchError::Start { what: "add to the history", source };
        let mut line =
            serde_json::to_string(&Entry::of(comparison)).map_err(|e| failed(e.into()))?;
        line.push('\n');
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join(FILE))
            .map_err(failed)?;
        // One write for each line. A run that is killed can leave part of a line, which is skipped.
        file.write_all(line.as_bytes()).map_err(failed)
    }

    /// Reads the history in `dir`.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn read(dir: &Path) -> Result<History, BenchError> {
        let text = fs::read_to_string(dir.join(FILE));
        Ok(Self::parse(
            &text.map_err(|source| BenchError::Start { what: "read the history", source })?,
        ))
    }

    fn parse(text: &str) -> History {
        let mut history = History::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(entry) => history.entries.push(entry),
                Err(_) => history.unread += 1,
            }
        }
        history
    }

    /// Draws the newest runs into `dir`: a picture, and a page around it. Returns the page.
    ///
    /// # Errors
    /// When drawing or writing fails.
    pub(super) fn draw(&self, dir: &Path) -> Result<PathBuf, BenchError> {
        let failed = |source| BenchError::Start { what: "draw the history", source };
        let shown = &self.entries[self.entries.len().saturating_sub(DRAWN)..];
        let svg = picture::draw(shown)?;
        fs::write(dir.join("history.svg"), &svg).map_err(failed)?;
        let file = dir.join("history.html");
        fs::write(
            &file,
            page::page("Ringmain beside its peers, run by run", &self.body(shown, &svg)),
        )
        .map_err(failed)?;
        Ok(file)
    }

    fn body(&self, shown: &[Entry], svg: &str) -> Markup {
        html! {
            p {
                "Each dot is the median of one run of the comparison. Ratios are taken round by \
                 round, each with the peer's run next to it in the same state of the machine; \
                 above 1 Ringmain is better. The dashed line is the goal."
            }
            figure { (PreEscaped(svg)) }
            @if let Some(newest) = shown.last() {
                h2 { "The newest run" }
                (table(newest))
            }
            h2 { "Runs" }
            table {
                tr {
                    th { "when (UTC)" } th { "commit" } th { "runs" } th { "seconds each" } th { "goals reached" }
                    th { "machine" }
                }
                @for entry in shown.iter().rev() { (run_row(entry)) }
            }
            @if self.unread > 0 {
                p { (self.unread) " lines of the history cannot be read, and are left out." }
            }
        }
    }
}

impl Entry {
    fn of(comparison: &Comparison) -> Entry {
        Entry {
            began: comparison.began,
            commit: comparison.commit.clone(),
            cpu: comparison.cpu.clone(),
            kernel: comparison.kernel.clone(),
            runs: comparison.runs,
            seconds: comparison.seconds,
            figures: comparison.rows.iter().filter_map(Figure::of).collect(),
        }
    }

    /// The commit as a label.
    pub(super) fn label(&self) -> &str {
        self.commit.as_deref().unwrap_or("?")
    }
}

impl Figure {
    fn of(row: &Row) -> Option<Figure> {
        Some(Figure {
            point: row.point.into(),
            title: row.title.into(),
            unit: row.unit.name().into(),
            ringmain: row.ringmain.median?,
            peer: row.peer.as_ref().and_then(Other::of),
            ceiling: row.ceiling.as_ref().and_then(Other::of),
            goal: row.goal,
            reached: row.reached,
        })
    }
}

impl Other {
    fn of(beside: &Beside) -> Option<Other> {
        let ratio = &beside.ratio;
        Some(Other {
            name: beside.name.into(),
            figure: beside.series.median?,
            ratio: ratio.median,
            range: ratio.least.zip(ratio.most).map(|(least, most)| [least, most]),
        })
    }
}

/// The figures of one run.
fn table(entry: &Entry) -> Markup {
    html! {
        table {
            tr {
                th { "point" } th { "unit" } th { "Ringmain" } th { "peer" } th { "ratio" } th { "bare" }
                th { "ratio" } th { "goal" } th { "reached" }
            }
            @for row in &entry.figures {
                tr {
                    td { (row.title) }
                    td { (row.unit) }
                    td { (digits(row.ringmain)) }
                    (beside(row.peer.as_ref()))
                    (beside(row.ceiling.as_ref()))
                    td { @if let Some(goal) = row.goal { (goal.show()) } }
                    td { @if let Some(reached) = row.reached { @if reached { "yes" } @else { "no" } } }
                }
            }
        }
    }
}

/// The figure of a peer, and the ratio to it.
fn beside(other: Option<&Other>) -> Markup {
    let cell = |value: Option<f64>| value.map_or("-".into(), digits);
    html! {
        td { (cell(other.map(|other| other.figure))) }
        td { (cell(other.and_then(|other| other.ratio))) }
    }
}

/// One run among the others.
fn run_row(entry: &Entry) -> Markup {
    let judged: Vec<bool> = entry.figures.iter().filter_map(|figure| figure.reached).collect();
    let reached = judged.iter().filter(|reached| **reached).count();
    html! {
        tr {
            td { (utc(entry.began)) }
            td { (entry.label()) }
            td { (entry.runs) }
            td { (entry.seconds) }
            td { (reached) " of " (judged.len()) }
            td { (entry.cpu) ", Linux " (entry.kernel) }
        }
    }
}

/// A time in seconds since 1970, like `2026-11-22 01:54`.
fn utc(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|time| Timestamp::from_second(time).ok());
    time.map_or("?".into(), |time| time.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::goal::Goal;

    /// A run of two points, made up of a number.
    pub fn entry(number: u32) -> Entry {
        let ratio = 1.0 + f64::from(number) / 10.0;
        let other = |name: &str, ratio: f64| Other {
            name: name.into(),
            figure: 8.0,
            ratio: Some(ratio),
            range: Some([ratio - 0.1, ratio + 0.1]),
        };
        let rate = Figure {
            point: "64".into(),
            title: "64 B <small>".into(),
            unit: "Mpps".into(),
            ringmain: 8.0 * ratio,
            peer: Some(other("OVS-DPDK", ratio)),
            ceiling: Some(other("bare", ratio / 2.0)),
            goal: Some(Goal::Times(1.4)),
            reached: Some(ratio >= 1.4),
        };
        let idle = Figure {
            point: "idle".into(),
            title: "idle".into(),
            unit: "% CPU".into(),
            ringmain: 0.1,
            peer: None,
            ceiling: None,
            goal: Some(Goal::AtMost(0.5)),
            reached: Some(true),
        };
        Entry {
            began: 1_795_312_440 + u64::from(number),
            commit: Some(format!("c0ffee{number}")),
            cpu: "a CPU".into(),
            kernel: "6.1".into(),
            runs: 3,
            seconds: 0.3,
            figures: vec![rate, idle],
        }
    }

    #[test]
    fn lines_are_read_back_and_broken_ones_are_skipped() {
        let line = |number| serde_json::to_string(&entry(number)).unwrap();
        let text = format!("{}\n{{\"began\": 1\n\n{}\n", line(0), line(1));
        let history = History::parse(&text);
        assert_eq!((history.entries, history.unread), (vec![entry(0), entry(1)], 1));
    }

    #[test]
    fn a_page_has_the_picture_and_every_run() {
        let dir = tempfile::tempdir().unwrap();
        let history = History { entries: (0..70).map(entry).collect(), unread: 2 };
        let page = fs::read_to_string(history.draw(dir.path()).unwrap()).unwrap();
        assert!(dir.path().join("history.svg").exists());
        for part in [
            "<svg",
            "c0ffee69",
            "c0ffee10",
            "2 of 2",
            "64 B &lt;small&gt;",
            "2 lines",
            "2026-11-22 01:5",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        assert!(!page.contains(">c0ffee9<"), "only the newest are shown");
    }
}
