//! The points of an experiment.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::LabError;

/// One place of a plot: what is measured there, repeatedly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The name of the point's line.
    pub series: String,
    /// The place on the x axis. For an axis of labels: the number of the label, from 0.
    pub x: f64,
    /// Further settings of a repetition.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl Point {
    /// A point of a series.
    pub fn new(series: impl Into<String>, x: impl Into<f64>) -> Point {
        Point { series: series.into(), x: x.into(), settings: BTreeMap::new() }
    }

    /// The same, with one setting more.
    pub fn with(mut self, name: &'static str, value: impl Display) -> Point {
        self.settings.insert(name.into(), value.to_string());
        self
    }

    /// A setting.
    ///
    /// # Errors
    /// When there is none of that name, or it is not of that type.
    pub fn get<T: FromStr>(&self, name: &'static str) -> Result<T, LabError> {
        self.settings.get(name).and_then(|value| value.parse().ok()).ok_or(LabError::Setting(name))
    }

    /// A setting that is any text; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }
}

impl Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.series, self.x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let point = Point::new("one", 2).with("queues", 4).with("keys", "align = true");
        assert_eq!(point.get::<u16>("queues").unwrap(), 4);
        assert_eq!((point.text("keys"), point.text("else")), ("align = true", ""));
        assert!(point.get::<u16>("keys").is_err() && point.get::<u16>("none").is_err());
    }
}
