//! Published claims, compared with measurements.

use super::side::Side;

/// Something that was published, beside what was found here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The claim of others.
    pub published: String,
    /// The same of our figures.
    pub here: String,
    /// Whether it holds here.
    pub verdict: Verdict,
}

/// Whether a published result holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The claim holds, by more than the scatter.
    So,
    /// The claim does not hold, by more than the scatter.
    NotSo,
    /// Repetitions scatter by more than what would tell.
    Scatter,
    /// Our figures are not of that, or were not measured.
    Unknown,
}

impl Verdict {
    /// The verdict on a claim that something lies on one side.
    pub(super) fn of(lies: Side, claimed: Side) -> Verdict {
        match lies {
            Side::Within => Verdict::Scatter,
            _ if lies == claimed => Verdict::So,
            _ => Verdict::NotSo,
        }
    }

    /// The verdict on two claims at once.
    #[must_use]
    pub fn and(self, other: Verdict) -> Verdict {
        use Verdict::{NotSo, Scatter, So, Unknown};
        match (self, other) {
            (NotSo, _) | (_, NotSo) => NotSo,
            (Unknown, _) | (_, Unknown) => Unknown,
            (Scatter, _) | (_, Scatter) => Scatter,
            (So, So) => So,
        }
    }

    /// In words; `doubt` is the reason why the figures support no verdict, if there is one.
    pub fn said(self, doubt: Option<&'static str>) -> &'static str {
        match (self, doubt) {
            (Verdict::Unknown, _) => "",
            (_, Some(doubt)) => doubt,
            (Verdict::So, None) => "so it is here",
            (Verdict::NotSo, None) => "not so here",
            (Verdict::Scatter, None) => "within the scatter",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubtful_figures_give_no_verdict() {
        let all = [Verdict::So, Verdict::NotSo, Verdict::Scatter, Verdict::Unknown];
        assert_eq!(
            all.map(|one| one.said(None)),
            ["so it is here", "not so here", "within the scatter", ""]
        );
        assert_eq!(all.map(|one| one.said(Some("too few"))), ["too few", "too few", "too few", ""]);
    }

    #[test]
    fn two_claims_give_the_worse_verdict() {
        assert_eq!(Verdict::So.and(Verdict::So), Verdict::So);
        assert_eq!(Verdict::So.and(Verdict::Scatter), Verdict::Scatter);
        assert_eq!(Verdict::Scatter.and(Verdict::NotSo), Verdict::NotSo);
        assert_eq!(Verdict::Unknown.and(Verdict::So), Verdict::Unknown);
    }
}
