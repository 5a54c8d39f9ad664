//! The outcome of one repetition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use load::cpu::Shares;

/// A rule that must hold for any figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The condition that must hold.
    pub name: String,
    /// Whether the rule held.
    pub held: bool,
    /// The observation that shows it.
    pub seen: String,
}

/// The figures of a repetition, and whether it was one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The figures by name, in the units that the experiment declares.
    pub figures: BTreeMap<String, f64>,
    /// Shares and the like, by name: one number for each queue or stream, say.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lists: BTreeMap<String, Vec<f64>>,
    /// The conditions that were checked.
    pub checks: Vec<Check>,
    /// CPUs that processes took which are no part of this.
    pub others: f64,
    /// CPUs that a hypervisor below gave to others (steal).
    pub stolen: f64,
}

impl Outcome {
    /// Notes a figure. What is no number is none: nothing by nothing, say.
    pub fn figure(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.figures.insert(name.into(), value);
        }
    }

    /// Notes a list of numbers, if all of them are.
    pub fn list(&mut self, name: &str, values: Vec<f64>) {
        if values.iter().all(|value| value.is_finite()) {
            self.lists.insert(name.into(), values);
        }
    }

    /// Notes whether a rule held, and the observation that shows it.
    pub fn check(&mut self, name: &str, held: bool, seen: impl Into<String>) {
        self.checks.push(Check { name: name.into(), held, seen: seen.into() });
    }

    /// Notes what others took of the machine meanwhile.
    pub fn disturbance(&mut self, shares: &Shares) {
        (self.others, self.stolen) = (shares.others, shares.stolen);
    }

    /// The first thing that did not hold.
    pub fn broken(&self) -> Option<&Check> {
        self.checks.iter().find(|check| !check.held)
    }
}
