//! The results of a check, kept beside the inputs that it was made with.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::Point;
use super::inputs::Inputs;

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// A check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// When the measurement of the inputs began. Results of other inputs are ignored.
    pub began: u64,
    /// The points.
    pub points: Vec<Point>,
}

impl Results {
    /// The path of the results for a file of inputs.
    pub fn path(inputs: &Path) -> PathBuf {
        inputs.with_extension("check.json")
    }

    /// Reads the results of these inputs. None: the file is missing, or belongs to other inputs.
    pub fn read(path: &Path, inputs: &Inputs) -> Vec<Point> {
        let read = || -> Option<Results> {
            let short = fs::metadata(path).ok()?.len() <= LONGEST;
            serde_json::from_str(&short.then(|| fs::read_to_string(path).ok())??).ok()
        };
        read()
            .filter(|results| results.began == inputs.began)
            .map(|results| results.points)
            .unwrap_or_default()
    }

    /// Writes them.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::What;
    use super::super::costs::{Era, Transport};
    use super::super::inputs::tests::some;
    use super::super::measure::Measured;
    use super::*;

    #[test]
    fn only_results_of_the_same_inputs_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = Results::path(&dir.path().join("inputs.json"));
        let measured = Measured { median: 1.5, least: 1.0, most: 2.0 };
        let transport = Transport::Grants(Era::New);
        let points = vec![Point {
            what: What::Reads,
            transport,
            workers: 2,
            measured,
            predicted: 1.25,
            placed_by_kernel: Some(measured),
        }];
        let mut inputs = some();
        assert!(Results::read(&path, &inputs).is_empty());
        Results { began: inputs.began, points: points.clone() }.write(&path).unwrap();
        assert_eq!(Results::read(&path, &inputs), points);
        inputs.began += 1;
        assert!(Results::read(&path, &inputs).is_empty());
    }
}
