//! Goals of figures.

use serde::{Deserialize, Serialize};

/// The value that a figure should reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This multiple of the peer's figure in the same run.
    Times(f64),
    /// This multiple of the bare copy's figure in the same run.
    TimesBare(f64),
    /// No more than this, in the figure's own unit.
    AtMost(f64),
}

impl Goal {
    /// Whether the goal is reached, by the median figure and the median ratios to the peer and to
    /// the bare copy. `None`: what it takes was not measured.
    pub fn is_reached(
        self,
        figure: Option<f64>,
        ratio: Option<f64>,
        to_bare: Option<f64>,
    ) -> Option<bool> {
        match self {
            Self::Times(times) => ratio.map(|ratio| ratio >= times),
            Self::TimesBare(times) => to_bare.map(|ratio| ratio >= times),
            Self::AtMost(most) => figure.map(|figure| figure <= most),
        }
    }

    /// The text in a table.
    pub fn show(self) -> String {
        match self {
            Self::Times(times) => format!("{times} x"),
            Self::TimesBare(times) => format!("{times} x bare"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Goal;

    #[test]
    fn floors_and_limits() {
        let reached = |goal: Goal, figure, ratio, to_bare| goal.is_reached(figure, ratio, to_bare);
        let times = Goal::Times(1.4);
        assert_eq!(reached(times, Some(9.0), Some(1.4), None), Some(true));
        assert_eq!(reached(times, Some(9.0), Some(1.39), Some(2.0)), Some(false));
        assert_eq!(reached(times, Some(9.0), None, Some(2.0)), None);
        let bare = Goal::TimesBare(0.67);
        assert_eq!(reached(bare, Some(9.0), Some(0.5), Some(0.67)), Some(true));
        assert_eq!(reached(bare, Some(9.0), Some(9.0), Some(0.66)), Some(false));
        assert_eq!(reached(bare, Some(9.0), Some(9.0), None), None);
        let most = Goal::AtMost(0.5);
        assert_eq!(reached(most, Some(0.5), None, None), Some(true));
        assert_eq!(reached(most, Some(0.6), Some(99.0), Some(99.0)), Some(false));
        assert_eq!(reached(most, None, Some(99.0), Some(99.0)), None);
    }
}
