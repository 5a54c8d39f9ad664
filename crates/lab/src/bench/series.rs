//! Figures of one peer at one point, and how two compare.

use serde::Serialize;

use super::point::Unit;
use crate::statistics::{Summary, digits};

/// Figures of one peer at one point.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// One for each run, in their order.
    pub runs: Vec<f64>,
    /// The median of the runs.
    pub median: Option<f64>,
    /// The lowest of them.
    pub least: Option<f64>,
    /// The highest of them.
    pub most: Option<f64>,
}

impl Series {
    pub(super) fn of(runs: Vec<f64>) -> Self {
        let summary = Summary::of(runs.clone());
        let of = |figure: fn(&Summary) -> f64| summary.as_ref().map(figure);
        Self { median: of(|it| it.median), least: of(|it| it.least), most: of(|it| it.most), runs }
    }

    /// Median, and the spread around it.
    pub(super) fn show(&self) -> String {
        match (self.median, self.least, self.most) {
            (Some(median), Some(least), Some(most)) => {
                format!("{} ({}-{})", digits(median), digits(least), digits(most))
            }
            _ => "failed".into(),
        }
    }
}

/// How much better the first of two figures is: above 1 is better, whatever the unit.
pub(super) fn ratio(unit: Unit, ours: f64, theirs: f64) -> Option<f64> {
    let ratio = if unit.is_rate() { ours / theirs } else { theirs / ours };
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_better_in_any_unit() {
        assert_eq!(ratio(Unit::Mpps, 12.0, 8.0), Some(1.5));
        assert_eq!(ratio(Unit::MicrosP99, 1.0, 1.5), Some(1.5));
        assert_eq!(ratio(Unit::Cpu, 10.0, 100.0), Some(10.0));
        assert_eq!(ratio(Unit::Mpps, 1.0, 0.0), None);
    }
}
