//! Errors in a configuration.

use std::fmt;

/// One mistake: a line with its place, the problem, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    pub(super) place: String,
    pub(super) problem: String,
}

/// All mistakes in a configuration, in the order of the text, each on a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub(super) Vec<ConfigError>);

impl ConfigErrors {
    /// The errors one by one.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ConfigError::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}
