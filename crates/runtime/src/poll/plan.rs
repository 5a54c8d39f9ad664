//! What an idle worker does, chosen from what it costs on average.
//!
//! An idle worker can look, which costs CPU time; sleep for a short while at a time, which costs
//! less, and frames wait meanwhile; or arm its queues and sleep, which costs a signal, and the
//! first frame waits until the worker is awake. The longer nothing has come, the longer it will
//! last, mostly: so it looks or naps first, up to some point, and arms then. With the lengths of
//! recent gaps and the measured cost of sleeping, each such plan has an expected cost for each gap:
//!
//! `CPU time + worth * time that frames wait`
//!
//! and the least is taken. That is the bargain of who rents skis until they cost as much as bought
//! ones, with a forecast.

use super::cost::Cost;
use super::gaps::Gaps;
use super::policy::PollingPolicy;

/// Longest that is looked, in ns.
pub const LONGEST_LOOK: u64 = 400_000;

/// Lengths of a nap that are tried, in ns.
const NAPS: [u64; 3] = [10_000, 20_000, 40_000];
/// How many of them, at most, until the queues are armed.
const NAPS_IN_VAIN: [u64; 3] = [1, 2, 4];

/// What an idle worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How long one nap is, in ns; 0: it looks.
    pub nap: u64,
    /// How long it looks or naps before it arms its queues, in ns; [`u64::MAX`]: for ever.
    pub until: u64,
}

impl Plan {
    /// Looks for so many ns.
    pub fn look(until: u64) -> Plan {
        Plan { nap: 0, until }
    }

    /// How long it looks, in ns.
    pub fn looks(&self) -> u64 {
        if self.nap == 0 { self.until } else { 0 }
    }

    /// Naps so often, at most. Half a nap less than they take: no further one is begun because a
    /// timer was early.
    fn naps(nap: u64, times: u64, late: u64) -> Plan {
        Plan { nap, until: (nap + late) * times - nap / 2 }
    }
}

/// The plan with the least expected cost. `naps`: whether napping has been of use.
pub fn best(gaps: &Gaps, cost: &Cost, policy: PollingPolicy, naps: bool) -> Plan {
    match policy {
        PollingPolicy::Never => return Plan::look(0),
        PollingPolicy::Always => return Plan::look(u64::MAX),
        PollingPolicy::Fixed(time) => return Plan::look(time.as_nanos() as u64),
        PollingPolicy::Eco | PollingPolicy::Balanced | PollingPolicy::Latency => {}
    }
    let bargain = Bargain { gaps, cost, worth: policy.worth() };
    let looks = looks(cost.sleep).map(|until| (bargain.look(until), Plan::look(until)));
    let most = if naps { policy.longest_nap().saturating_sub(cost.late) } else { 0 };
    let naps = NAPS.into_iter().filter(|nap| *nap <= most);
    let naps = naps.flat_map(|nap| NAPS_IN_VAIN.map(|times| Plan::naps(nap, times, cost.late)));
    let naps = naps.map(|plan| (bargain.nap(plan), plan));
    let all = looks.chain(naps);
    all.min_by(|(one, _), (other, _)| one.total_cmp(other))
        .map_or(Plan::default(), |(_, plan)| plan)
}

/// Windows that are tried: none, and from half of what a sleep costs, each twice the one before.
fn looks(sleep: u64) -> impl Iterator<Item = u64> {
    std::iter::once(0)
        .chain((0..12).map(move |n| (sleep << n) / 2).take_while(|until| *until <= LONGEST_LOOK))
}

struct Bargain<'a> {
    gaps: &'a Gaps,
    cost: &'a Cost,
    worth: f64,
}

impl Bargain<'_> {
    /// Of arming and being woken.
    fn armed(&self) -> f64 {
        self.cost.sleep as f64 + self.worth * self.cost.wake as f64
    }

    /// Of looking, and then arming, for each gap.
    fn look(&self, until: u64) -> f64 {
        let (longer, looked) = self.gaps.beyond(until);
        looked + longer * self.armed()
    }

    /// Of napping, and then arming, for each gap. Several gaps may end within a nap, and share it.
    fn nap(&self, Plan { nap, until }: Plan) -> f64 {
        let (nap, late) = (nap as f64, self.cost.late as f64);
        let whole = nap + late;
        let (longer, napped) = self.gaps.beyond(until);
        let waits = (1.0 - longer) * (nap / 2.0 + late);
        napped / whole * self.cost.nap as f64 + self.worth * waits + longer * self.armed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost() -> Cost {
        Cost::new((4_000, 10_000), (3_000, 5_000))
    }

    fn all(gap: u64) -> Gaps {
        let mut gaps = Gaps::default();
        (0..100).for_each(|_| gaps.add(gap));
        gaps
    }

    #[test]
    fn short_gaps_are_looked_through_and_long_ones_are_slept_through() {
        for policy in [PollingPolicy::Eco, PollingPolicy::Balanced, PollingPolicy::Latency] {
            let short = best(&all(300), &cost(), policy, false);
            assert!(short.nap == 0 && short.until >= 300, "{policy}: {short:?}");
            assert_eq!(best(&all(100_000_000), &cost(), policy, true), Plan::look(0), "{policy}");
            assert_eq!(best(&Gaps::default(), &cost(), policy, true), Plan::look(0), "{policy}");
        }
    }

    #[test]
    fn the_less_patience_the_longer_it_looks() {
        // Looking through such a gap costs more than the sleep, and less than waiting is worth to
        // some.
        let looks = |gap, policy| best(&all(gap), &cost(), policy, false).until >= gap;
        assert!(!looks(20_000, PollingPolicy::Eco) && !looks(20_000, PollingPolicy::Balanced));
        assert!(looks(20_000, PollingPolicy::Latency));
        assert!(looks(4_000, PollingPolicy::Balanced) && !looks(200_000, PollingPolicy::Latency));
    }

    #[test]
    fn naps_are_for_those_who_can_wait_and_for_gaps_that_share_one() {
        let eco = |gap, naps| best(&all(gap), &cost(), PollingPolicy::Eco, naps).nap;
        assert_eq!((eco(3_000, true), eco(3_000, false)), (40_000, 0));
        assert_eq!(eco(5_000_000, true), 0);
        assert_eq!(best(&all(3_000), &cost(), PollingPolicy::Latency, true).nap, 0);
        let slow = Cost::new((4_000, 10_000), (3_000, 100_000));
        assert_eq!(
            best(&all(3_000), &slow, PollingPolicy::Eco, true).nap,
            0,
            "frames would wait too long"
        );
        let balanced = best(&all(8_000), &cost(), PollingPolicy::Balanced, true);
        assert!(
            balanced.nap + cost().late <= PollingPolicy::Balanced.longest_nap(),
            "{balanced:?}"
        );
    }

    #[test]
    fn rules_for_comparison_know_no_bargain() {
        for gap in [100, 100_000_000] {
            let plan = |word: &str| best(&all(gap), &cost(), word.parse().unwrap(), true);
            assert_eq!(plan("never"), Plan::look(0));
            assert_eq!(plan("always"), Plan::look(u64::MAX));
            assert_eq!(plan("50us"), Plan::look(50_000));
        }
    }

    /// The best window never costs more than twice what somebody would pay who knew each gap
    /// beforehand.
    #[test]
    fn nobody_pays_more_than_twice_what_was_needed() {
        for exponent in 5..30 {
            let gaps = all(1 << exponent);
            let sleeping = cost();
            let bargain = Bargain { gaps: &gaps, cost: &sleeping, worth: 0.25 };
            let least = bargain.gaps.beyond(u64::MAX / 4).1.min(bargain.armed());
            let plan = best(&gaps, &cost(), PollingPolicy::Balanced, false);
            let paid = bargain.look(plan.until);
            assert!(paid <= 2.0 * least, "2^{exponent}: {plan:?} costs {paid}, {least} would do");
        }
    }
}
