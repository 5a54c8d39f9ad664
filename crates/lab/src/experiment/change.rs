//! A figure at one place against the same at another: the valid conclusions, given how
//! repetitions scatter.

use super::finding::Verdict;
use super::side::Side;
use super::significance::{SIGNIFICANT, two_sided};
use crate::statistics::Summary;

/// Least repetitions of each for a difference: the scatter of fewer is unknown.
pub const FEW: usize = 3;

/// Where `of` lies against `than`: beside all of it, or beside it by more than chance explains.
fn side(of: &Summary, than: &Summary) -> Side {
    if of.count() < FEW || than.count() < FEW {
        return Side::Within;
    }
    let disjoint = of.least > than.most || of.most < than.least;
    let differs = disjoint || two_sided(&of.values, &than.values).is_some_and(|p| p < SIGNIFICANT);
    match of.median.total_cmp(&than.median) {
        std::cmp::Ordering::Less if differs => Side::Below,
        std::cmp::Ordering::Greater if differs => Side::Above,
        _ => Side::Within,
    }
}

/// A figure at two places.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The value at the first place.
    pub from: Summary,
    /// The figures at the second place.
    pub to: Summary,
}

impl Change {
    /// The second median by the first.
    pub fn ratio(&self) -> f64 {
        self.to.median / self.from.median
    }

    /// The side of `times` times the first on which the second lies.
    pub fn side(&self, times: f64) -> Side {
        side(&self.to, &self.from.times(times))
    }

    /// Whether the two differ by more than they scatter.
    pub fn differs(&self) -> bool {
        self.side(1.0) != Side::Within
    }

    /// Whether the second is more than `times` times the first.
    pub fn above(&self, times: f64) -> Verdict {
        Verdict::of(self.side(times), Side::Above)
    }

    /// Whether it is less.
    pub fn below(&self, times: f64) -> Verdict {
        Verdict::of(self.side(times), Side::Below)
    }

    /// Whether it is more than `low` times the first, and less than `high` times.
    pub fn between(&self, low: f64, high: f64) -> Verdict {
        self.above(low).and(self.below(high))
    }

    /// The hedge to add where one sentence names both.
    pub fn hedge(&self) -> &'static str {
        if self.differs() { "" } else { " (a difference within the scatter)" }
    }

    /// In words, if it was measured.
    pub fn said(change: Option<&Change>) -> String {
        change.map_or("not measured".into(), |change| {
            format!("{:.2} times{}", change.ratio(), change.hedge())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: &[f64], to: &[f64]) -> Change {
        let of = |values: &[f64]| Summary::of(values.to_vec()).unwrap();
        Change { from: of(from), to: of(to) }
    }

    #[test]
    fn overlapping_ranges_show_no_difference() {
        // One flow and many of them, as measured: medians alone would say 130 %.
        let flows = change(&[1.93, 2.18, 4.78], &[2.70, 2.83, 2.91]);
        assert!(flows.ratio() > 1.29 && !flows.differs());
        assert_eq!((flows.above(1.0), flows.below(1.0)), (Verdict::Scatter, Verdict::Scatter));
        assert!(Change::said(Some(&flows)).ends_with("within the scatter)"));
    }

    #[test]
    fn disjoint_ranges_are_a_difference() {
        let queues = change(&[1.0, 1.1, 0.9], &[2.5, 2.4, 2.6]);
        assert_eq!((queues.above(2.0), queues.below(2.0)), (Verdict::So, Verdict::NotSo));
        // 2.4 to 2.6 against 2.25 to 2.75.
        assert_eq!(queues.above(2.5), Verdict::Scatter);
        assert_eq!(
            (queues.between(1.5, 4.0), queues.between(3.0, 4.0)),
            (Verdict::So, Verdict::NotSo)
        );
        assert_eq!(Change::said(Some(&queues)), "2.50 times");
        assert_eq!(Change::said(None), "not measured");
    }

    #[test]
    fn many_repetitions_separate_touching_ranges() {
        let from: Vec<f64> = (0..10).map(f64::from).collect();
        let to: Vec<f64> = (8..18).map(f64::from).collect();
        assert!(change(&from, &to).differs() && !change(&from[..3], &[1.5, 2.5, 9.0]).differs());
    }

    #[test]
    fn few_repetitions_show_no_scatter() {
        assert!(!change(&[1.0, 1.0], &[9.0, 9.0]).differs() && !change(&[1.0], &[9.0]).differs());
    }
}
