//! Goals of figures.

use serde::{Deserialize, Serialize};

/// The value that a figure should reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This multiple of the peer's figure in the same run.
    Times(f64),
    /// No more than this, in the figure's own unit.
    AtMost(f64),
}

impl Goal {
    /// Whether the goal is reached, by the median figure and the median ratio to the peer. `None`:
    /// one of them was not measured.
    pub fn is_reached(self, figure: Option<f64>, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::Times(times) => ratio.map(|ratio| ratio >= times),
            Self::AtMost(most) => figure.map(|figure| figure <= most),
        }
    }

    /// The text in a table.
    pub fn show(self) -> String {
        match self {
            Self::Times(times) => format!("{times} x"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Goal;

    #[test]
    fn floors_and_limits() {
        assert_eq!(Goal::Times(1.4).is_reached(Some(9.0), Some(1.4)), Some(true));
        assert_eq!(Goal::Times(1.4).is_reached(Some(9.0), Some(1.39)), Some(false));
        assert_eq!(Goal::Times(1.4).is_reached(Some(9.0), None), None);
        assert_eq!(Goal::AtMost(0.5).is_reached(Some(0.5), None), Some(true));
        assert_eq!(Goal::AtMost(0.5).is_reached(Some(0.6), Some(99.0)), Some(false));
        assert_eq!(Goal::AtMost(0.5).is_reached(None, Some(99.0)), None);
    }
}
