//! The counts, and their display.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::InstructionsError as Error;
use crate::stage::Stages;

/// The counts of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Count {
    /// Its name.
    pub case: &'static str,
    /// The kind of traffic, for people.
    pub title: &'static str,
    /// Instructions per frame.
    pub stages: Stages,
    /// All of them.
    pub total: f64,
}

impl Count {
    /// A case of that name and title.
    pub fn new(case: &'static str, title: &'static str, stages: Stages) -> Self {
        Count { case, title, stages, total: stages.total() }
    }

    /// A line of the table.
    pub fn row(&self) -> String {
        let stages = self.stages.each().map(|(_, cost)| format!("{cost:>10.1}")).concat();
        format!("{:<24}{stages}{:>10.1}", self.title, self.total)
    }
}

/// The head of the table.
pub fn header() -> String {
    let stages = Stages::default().each().map(|(name, _)| format!("{name:>10}")).concat();
    format!("{:<24}{stages}{:>10}", "instructions per frame", "total")
}

/// A whole count.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// Version of Ringmain.
    pub ringmain: &'static str,
    /// The compiler of the program.
    pub compiler: &'static str,
    /// One for each case.
    pub counts: Vec<Count>,
}

impl Counted {
    /// Writes the count into a folder as JSON, and returns the file.
    ///
    /// # Errors
    /// When that fails.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, Error> {
        let failed = |error| Error::system("write the result file", error);
        let file = dir.join(format!("{}.json", self.began));
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        std::fs::write(&file, text + "\n").map_err(failed)?;
        Ok(file)
    }
}
