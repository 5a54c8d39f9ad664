//! The record of one run of an experiment, which contains everything that a report shows.
//!
//! A record is rewritten after each repetition, in a second file that then replaces the first, so
//! that there is a complete one at any time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::host::Machine;
use super::{LabError, Outcome, Platform, Point, Size};
use crate::bench::state::State;

/// The version of the file's format.
const FORMAT: u32 = 1;
/// Longest file that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// The configuration of a run. A run is only continued with the same configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The experiment.
    pub experiment: String,
    /// The platform that guests run on.
    #[serde(alias = "ground")]
    pub platform: Platform,
    /// How much is measured.
    pub size: Size,
    /// Seconds that each repetition measures.
    pub seconds: f64,
    /// Repetitions of each point.
    pub rounds: u32,
    /// CPUs that others may take before a repetition counts as disturbed.
    pub disturbed_above: f64,
    /// The points to measure.
    pub points: Vec<Point>,
    /// The machine.
    pub machine: Machine,
    /// The versions of the programs that take part.
    pub versions: BTreeMap<String, String>,
}

/// One repetition, or an attempt at one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repetition {
    /// The number of its point.
    pub point: usize,
    /// The number of its round.
    pub round: u32,
    /// When it began, in seconds since 1970.
    pub at: u64,
    /// How long it took, in seconds, with all that belongs to it.
    pub took: f64,
    /// How fast the machine was just before, if it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Others took more of the machine than they may.
    pub disturbed: bool,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Why it gave nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Repetition {
    /// Its faults, without regard to other processes.
    pub fn fault(&self) -> Option<String> {
        let broken =
            || self.outcome.broken().map(|check| format!("{}: {}", check.name, check.seen));
        self.failed.clone().or_else(broken)
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// When it was through, if it is.
    pub finished: Option<u64>,
    /// The configuration of the run.
    #[serde(flatten)]
    pub configuration: Configuration,
    /// The measurements, in order.
    pub repetitions: Vec<Repetition>,
}

impl Record {
    /// One that begins now.
    pub fn new(configuration: Configuration) -> Record {
        Record {
            format: FORMAT,
            began: now(),
            finished: None,
            configuration,
            repetitions: Vec::new(),
        }
    }

    /// The name of its file.
    pub fn file(&self) -> String {
        let Configuration { experiment, platform, .. } = &self.configuration;
        format!("{experiment}-{}-{}.json", platform.name(), self.began)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When there is no such file, or it is no record of this version.
    pub fn read(path: &Path) -> Result<Record, LabError> {
        let none = |why: String| LabError::NoRecord { path: path.into(), why };
        let length = fs::metadata(path).map_err(LabError::file(path))?.len();
        if length > LONGEST {
            return Err(none(format!("{length} bytes are more than any has")));
        }
        let text = fs::read_to_string(path).map_err(LabError::file(path))?;
        let record: Record =
            serde_json::from_str(&text).map_err(|error| none(error.to_string()))?;
        if record.format != FORMAT {
            return Err(none(format!("format {}, and {FORMAT} is known", record.format)));
        }
        let count = record.configuration.points.len();
        match record.repetitions.iter().find(|repetition| repetition.point >= count) {
            Some(stray) => Err(none(format!("point {} of {count}", stray.point))),
            None => Ok(record),
        }
    }

    /// Puts it into a folder, in place of what it was before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, LabError> {
        let path = dir.join(self.file());
        let beside = path.with_extension("json.new");
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| LabError::File { path: path.clone(), source: error.into() })?;
        fs::write(&beside, text + "\n").map_err(LabError::file(&beside))?;
        fs::rename(&beside, &path).map_err(LabError::file(&path))?;
        Ok(path)
    }

    /// All records in a folder, oldest first, and what is wrong with files that are none.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn all(dir: &Path) -> Result<(Vec<Record>, Vec<LabError>), LabError> {
        let (mut records, mut faults) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir).map_err(LabError::file(dir))? {
            let path = entry.map_err(LabError::file(dir))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                match Record::read(&path) {
                    Ok(record) => records.push(record),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        records.sort_by_key(|record| (record.began, record.file()));
        Ok((records, faults))
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::About;

    /// An experiment that measures nothing.
    pub const ABOUT: About = About {
        name: "test",
        title: "",
        what: "",
        source: None,
        platforms: &[Platform::Embedded],
        figures: &[],
        plots: &[],
        published: &[],
    };

    /// A record of two points and two rounds, of which nothing was measured yet.
    pub fn empty() -> Record {
        Record::new(Configuration {
            experiment: "queues".into(),
            platform: Platform::Embedded,
            size: Size::Tiny,
            seconds: 0.1,
            rounds: 2,
            disturbed_above: 0.1,
            points: vec![Point::new("one", 1), Point::new("one", 2)],
            machine: Machine::probe(),
            versions: BTreeMap::new(),
        })
    }

    /// A repetition that gave `value` as its throughput.
    pub fn repetition(point: usize, round: u32, value: f64) -> Repetition {
        let mut outcome = Outcome::default();
        outcome.figure("throughput", value);
        Repetition {
            point,
            round,
            at: 0,
            took: 1.0,
            state: None,
            disturbed: false,
            outcome,
            failed: None,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = empty();
        record.repetitions.push(repetition(1, 0, 12.5));
        let path = record.write(dir.path()).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record);
        let (all, faults) = Record::all(dir.path()).unwrap();
        assert_eq!((all, faults.len()), (vec![record], 0));
    }

    #[test]
    fn figures_that_are_no_numbers_do_not_spoil_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = empty();
        let mut one = repetition(0, 0, f64::NAN);
        one.outcome.figure("even", f64::INFINITY);
        one.outcome.figure("busy", 50.0);
        one.outcome.list("shares", vec![1.0, f64::NAN]);
        record.repetitions.push(one);
        let read = Record::read(&record.write(dir.path()).unwrap()).unwrap();
        let outcome = &read.repetitions[0].outcome;
        assert_eq!(outcome.figures.keys().map(String::as_str).collect::<Vec<_>>(), ["busy"]);
        assert!(outcome.lists.is_empty());
    }

    #[test]
    fn a_file_that_is_no_record_is_refused_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let mut stray = empty();
        stray.repetitions.push(repetition(7, 0, 1.0));
        let stray = serde_json::to_string(&stray).unwrap();
        let foreign = serde_json::to_string(&Record { format: 9, ..empty() }).unwrap();
        for text in ["", "[]", "{\"format\": 1}", &stray, &foreign] {
            fs::write(&path, text).unwrap();
            let said = Record::read(&path).unwrap_err().to_string();
            assert!(said.contains("no record") && said.lines().count() == 1, "{said}");
        }
        assert_eq!(Record::all(dir.path()).unwrap().1.len(), 1);
    }
}
