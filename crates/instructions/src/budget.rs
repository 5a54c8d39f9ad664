//! The budget: the figures of a count that was recorded in the repository.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::result::Count;
use super::stage::Stages;
use crate::error::InstructionsError as Error;

/// The compiler of this program, as it names itself.
pub const COMPILER: &str = env!("RINGMAIN_COMPILER");

/// Percent that a case may take more than recorded.
const MORE: f64 = 3.0;
/// Percent that a case may take less before the record is out of date.
const LESS: f64 = 10.0;
/// Both limits where another compiler made the recorded program, and for copies, most of which the
/// C library makes.
const WIDE: f64 = 15.0;
/// Differences of up to this number of instructions per frame do not count, at any percentage.
const NOTHING: f64 = 1.0;

const COMMENT: &str =
    "# Instructions per frame: make bench-instructions ARGS=--record writes this file.\n\n";

/// Recorded figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The compiler of the program that the counts belong to.
    compiler: String,
    /// By name of the case.
    cases: BTreeMap<String, Stages>,
}

impl Budget {
    /// The record of these counts by this program.
    pub fn of(counts: &[Count]) -> Self {
        let cases = counts.iter().map(|count| (count.case.to_string(), count.stages.rounded()));
        Budget { compiler: COMPILER.into(), cases: cases.collect() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it can't be read, or is no budget.
    pub fn read(file: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(file)
            .map_err(|e| Error::system("read the budget (see --budget)", e))?;
        toml::from_str(&text).map_err(|error| Error::Budget(error.message().into()))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// When that fails.
    pub fn write(&self, file: &Path) -> Result<(), Error> {
        let text = toml::to_string(self).map_err(|error| Error::Budget(error.to_string()))?;
        std::fs::write(file, format!("{COMMENT}{text}"))
            .map_err(|e| Error::system("write the budget", e))
    }

    /// A warning, if the figures are not fully comparable.
    pub fn caution(&self) -> Option<String> {
        let other = self.compiler != COMPILER;
        other.then(|| {
            format!(
                "recorded with {}, but {COMPILER} has built this program: deviations of up to \
                 {WIDE} % are allowed",
                self.compiler
            )
        })
    }

    /// The violations of the budget by `counts`, a line each.
    pub fn complaints(&self, counts: &[Count]) -> Vec<String> {
        let (more, less) = if self.compiler == COMPILER { (MORE, LESS) } else { (WIDE, WIDE) };
        let complaint = |count: &Count| {
            let Some(recorded) = self.cases.get(count.case) else {
                return Some(format!("{}: nothing is recorded; {RECORD}", count.case));
            };
            let (counted, inlined) = (&count.stages, inlined(&count.stages, recorded));
            let own = judge(counted.own() - inlined, recorded.own(), more, less);
            let complaint = own.or_else(|| match inlined > NOTHING {
                true => judge(counted.total(), recorded.total(), more, less),
                false => judge(counted.copy, recorded.copy, WIDE, WIDE),
            })?;
            Some(format!("{}: {complaint} ({})", count.case, differences(counted, recorded)))
        };
        counts.iter().filter_map(complaint).collect()
    }
}

const RECORD: &str = "record it anew (make bench-instructions ARGS=--record)";

/// Instructions that are counted elsewhere than recorded: those of a copy that the compiler has put
/// inline, which may be fewer there. Only the sum shows the change then.
fn inlined(counted: &Stages, recorded: &Stages) -> f64 {
    (counted.own() - recorded.own()).min(recorded.copy - counted.copy).max(0.0)
}

/// The complaint about `counted` where `recorded` was expected, with these percentages allowed.
fn judge(counted: f64, recorded: f64, more: f64, less: f64) -> Option<String> {
    let change = (counted - recorded) / recorded.max(NOTHING) * 100.0;
    if (counted - recorded).abs() <= NOTHING {
        None
    } else if change > more {
        Some(format!(
            "{counted:.1} instead of {recorded:.1} instructions per frame, {change:.1} % more"
        ))
    } else if change < -less {
        Some(format!(
            "{counted:.1} instead of {recorded:.1} instructions per frame, {:.1} % less: {RECORD}",
            -change
        ))
    } else {
        None
    }
}

/// Stages that changed, and by how much.
fn differences(counted: &Stages, recorded: &Stages) -> String {
    let pairs = counted.each().into_iter().zip(recorded.each());
    let changes = pairs.map(|((name, now), (_, before))| (name, now - before));
    let changes = changes
        .filter(|(_, change)| change.abs() >= 0.1)
        .map(|(name, change)| format!("{name} {change:+.1}"));
    changes.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(fetch: f64, copy: f64) -> Count {
        Count::new("64", "64 B", Stages { fetch, copy, deliver: 60.0, ..Stages::default() })
    }

    /// The complaint about a case with these figures. Recorded are 100 instructions, of which
    /// `fetch` is 40, and 50 for copies.
    fn complaint(fetch: f64, copy: f64) -> String {
        Budget::of(&[count(40.0, 50.0)]).complaints(&[count(fetch, copy)]).join("\n")
    }

    #[test]
    fn growth_is_detected_and_named() {
        assert_eq!(complaint(42.9, 50.0), "");
        assert_eq!(
            complaint(44.0, 50.0),
            "64: 104.0 instead of 100.0 instructions per frame, 4.0 % more (fetch +4.0)"
        );
        assert_eq!(complaint(40.0, 57.0), "");
        assert!(complaint(40.0, 58.0).contains("16.0 % more (copy +8.0)"));
    }

    #[test]
    fn a_copy_that_is_put_inline_is_no_change() {
        // 103.5 and 45: as many in all.
        assert_eq!(complaint(43.5, 45.0), "");
        // 102 and 40: a copy that takes fewer inline.
        assert_eq!(complaint(42.0, 40.0), "");
        // 110 and 48: no more than 2 of them came from a copy.
        assert!(complaint(50.0, 48.0).contains("108.0 instead of 100.0"));
        // 102 and 20: fewer than recorded, wherever they are counted.
        assert!(complaint(42.0, 20.0).contains("122.0 instead of 150.0"));
        // Nothing came from the copy.
        assert!(complaint(40.0, 42.0).contains("16.0 % less"));
    }

    #[test]
    fn an_obsolete_record_is_made_again() {
        assert_eq!(complaint(30.5, 50.0), "");
        assert!(complaint(29.0, 50.0).contains("11.0 % less: record it anew"));
        let other = Count::new("other", "", Stages::default());
        assert!(Budget::of(&[]).complaints(&[other])[0].contains("nothing is recorded"));
    }

    #[test]
    fn another_compiler_may_give_other_counts() {
        let mut budget = Budget::of(&[count(40.0, 50.0)]);
        assert_eq!(budget.caution(), None);
        budget.compiler = "rustc 1.0".into();
        assert!(budget.caution().unwrap().contains("rustc 1.0"));
        assert!(budget.complaints(&[count(54.0, 50.0)]).is_empty());
        assert_eq!(budget.complaints(&[count(56.0, 50.0)]).len(), 1);
    }

    #[test]
    fn written_values_can_be_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        Budget::of(&[count(40.04, 50.0)]).write(file.path()).unwrap();
        assert!(Budget::read(file.path()).unwrap().complaints(&[count(40.0, 50.0)]).is_empty());
        std::fs::write(file.path(), "cases = 7").unwrap();
        assert!(matches!(Budget::read(file.path()), Err(Error::Budget(_))));
    }

    #[test]
    fn the_architecture_page_has_the_recorded_figures() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(package.join("../../ARCHITECTURE.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let budget = Budget::read(&package.join("budget.toml")).unwrap();
        for (case, before) in [
            ("64", "A 64-byte frame between two vhost-user guests takes "),
            ("64-burst-1", "In bursts of one frame it takes "),
        ] {
            let (_, behind) = page.split_once(before).unwrap();
            let figure: f64 = behind.split([' ', ',']).next().unwrap().parse().unwrap();
            let recorded = budget.cases[case].own();
            assert!(
                (figure / recorded - 1.0).abs() < 0.01,
                "{case}: {figure}, {recorded} recorded"
            );
        }
    }
}
