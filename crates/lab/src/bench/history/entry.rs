//! One run of the comparison, as the history keeps it.

use serde::{Deserialize, Serialize};

use crate::bench::goal::Goal;

/// One run of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// The commit, with a `+` if something was changed since.
    pub commit: Option<String>,
    /// CPU of the machine.
    pub cpu: String,
    /// Version of its kernel.
    pub kernel: String,
    /// Runs of each point and peer.
    pub runs: u32,
    /// Seconds measured in each.
    pub seconds: f64,
    /// One for each point and unit.
    pub figures: Vec<Figure>,
}

/// A median, and what it is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the point.
    pub point: String,
    /// The kind of traffic, for people.
    pub title: String,
    /// The unit of the figure.
    pub unit: String,
    /// Ringmain's median.
    pub ringmain: f64,
    /// The peer's.
    pub peer: Option<Other>,
    /// The bare copy's.
    pub ceiling: Option<Other>,
    /// The value that the figure should reach.
    pub goal: Option<Goal>,
    /// Whether the goal was reached.
    pub reached: Option<bool>,
}

/// The figure of another back-end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// The back-end.
    pub name: String,
    /// The median.
    pub figure: f64,
    /// The median of how much better Ringmain is.
    pub ratio: Option<f64>,
    /// The range of that.
    pub range: Option<[f64; 2]>,
}
