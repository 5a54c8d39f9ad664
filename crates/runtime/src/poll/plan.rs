//! The plan of an idle worker, chosen by its average cost.
//!
//! An idle worker has three choices:
//!
//! - poll, which costs CPU time;
//! - nap for a short while at a time, which costs less, but frames wait meanwhile;
//! - arm its queues and sleep, which costs a signal, and the first frame waits until the worker is
//!   awake.
//!
//! The longer nothing has come, the longer the gap is likely to last. So a worker first polls or
//! naps, and then arms. With the lengths of recent gaps and the measured cost of sleeping, each
//! such plan has an expected cost for each gap:
//!
//! `CPU time + worth * time that frames wait`
//!
//! and the plan with the least cost is taken: the ski-rental problem with a forecast.

use super::cost::Cost;
use super::gaps::Gaps;
use super::policy::PollingPolicy;

/// The longest that a worker polls before it arms, in ns.
pub const MAX_POLL: u64 = 400_000;

/// Lengths of a nap that are tried, in ns.
const NAPS: [u64; 3] = [10_000, 20_000, 40_000];
/// How many of them, at most, until the queues are armed.
const NAPS_IN_VAIN: [u64; 3] = [1, 2, 4];

/// A share of gaps that is too small to be remembered.
const UNSEEN: f64 = 1.0 / 64.0;

/// The plan of an idle worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How long one nap is, in ns; 0: the worker polls.
    pub nap: u64,
    /// How long the worker polls or naps before it arms its queues, in ns; [`u64::MAX`]: for ever.
    pub until: u64,
}

impl Plan {
    /// A plan that polls for `until` ns.
    pub fn poll(until: u64) -> Plan {
        Plan { nap: 0, until }
    }

    /// How long the worker polls, in ns.
    pub fn polls(&self) -> u64 {
        if self.nap == 0 { self.until } else { 0 }
    }

    /// A plan of at most `times` naps. Its window is half a nap shorter than they take, so that no
    /// further nap begins because a timer was early.
    fn naps(nap: u64, times: u64, late: u64) -> Plan {
        Plan { nap, until: (nap + late) * times - nap / 2 }
    }
}

/// The plan with the least expected cost. `naps`: whether napping has been of use.
pub fn best(gaps: &Gaps, cost: &Cost, policy: PollingPolicy, naps: bool) -> Plan {
    match policy {
        PollingPolicy::Never => return Plan::poll(0),
        PollingPolicy::Always => return Plan::poll(u64::MAX),
        PollingPolicy::Fixed(time) => return Plan::poll(time.as_nanos() as u64),
        PollingPolicy::Eco | PollingPolicy::Balanced | PollingPolicy::Latency => {}
    }
    let expected = ExpectedCost { gaps, cost, worth: policy.worth() };
    let polls = windows(cost.sleep).map(|until| (expected.poll(until), Plan::poll(until)));
    let most = if naps { policy.longest_nap().saturating_sub(cost.late) } else { 0 };
    let naps = NAPS.into_iter().filter(|nap| *nap <= most);
    let naps = naps.flat_map(|nap| NAPS_IN_VAIN.map(|times| Plan::naps(nap, times, cost.late)));
    let naps = naps.map(|plan| (expected.nap(plan), plan));
    let all = polls.chain(naps);
    all.min_by(|(one, _), (other, _)| one.total_cmp(other))
        .map_or(Plan::default(), |(_, plan)| expected.with_unseen(plan))
}

/// The windows that are tried: zero, then half the cost of a sleep, then each twice the one before.
fn windows(sleep: u64) -> impl Iterator<Item = u64> {
    std::iter::once(0)
        .chain((0..12).map(move |n| (sleep << n) / 2).take_while(|until| *until <= MAX_POLL))
}

struct ExpectedCost<'a> {
    gaps: &'a Gaps,
    cost: &'a Cost,
    worth: f64,
}

impl ExpectedCost<'_> {
    /// Cost of arming and being woken.
    fn armed(&self) -> f64 {
        self.cost.sleep as f64 + self.worth * self.cost.wake as f64
    }

    /// The plan, or one with a longer window if nearly all gaps end within the window. One gap in a
    /// hundred is too rare to be remembered, and most of these are hardly longer than the others. A
    /// window as long as a sleep takes and delays holds them, and is seldom in vain. Where waiting
    /// is worth nothing, the CPU time of a sleep is enough.
    fn with_unseen(&self, plan: Plan) -> Plan {
        let until = plan.polls();
        if until == 0 || self.gaps.beyond(until).0 >= UNSEEN {
            return plan;
        }
        let delayed = if self.worth > 0.0 { self.cost.sleep + self.cost.wake } else { 0 };
        Plan::poll(until.max(self.armed() as u64).max(delayed).min(MAX_POLL))
    }

    /// Cost of polling, and then arming, for each gap.
    fn poll(&self, until: u64) -> f64 {
        let (longer, polled) = self.gaps.beyond(until);
        polled + longer * self.armed()
    }

    /// Cost of napping, and then arming, for each gap. Several gaps may end within a nap, and share
    /// it.
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
    use super::super::cost::SleepCost;
    use super::*;

    fn cost() -> Cost {
        Cost::new(SleepCost { cpu: 4_000, delay: 10_000 }, SleepCost { cpu: 3_000, delay: 5_000 })
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
            assert_eq!(best(&all(100_000_000), &cost(), policy, true), Plan::poll(0), "{policy}");
            assert_eq!(best(&Gaps::default(), &cost(), policy, true), Plan::poll(0), "{policy}");
        }
    }

    #[test]
    fn gaps_too_rare_to_be_remembered_are_looked_through() {
        let until = |gaps: &Gaps, policy| best(gaps, &cost(), policy, false).until;
        let mut gaps = all(300);
        assert_eq!(until(&gaps, PollingPolicy::Eco), 4_000, "the CPU time of a sleep");
        assert_eq!(until(&gaps, PollingPolicy::Balanced), 14_000, "its CPU time and its delay");
        assert_eq!(until(&gaps, PollingPolicy::Latency), 104_000, "what the delay is worth");
        (0..10).for_each(|_| gaps.add(100_000_000));
        let remembered = until(&gaps, PollingPolicy::Balanced);
        assert!(remembered < 4_000, "{remembered}");
    }

    #[test]
    fn the_more_impatient_the_policy_the_longer_it_polls() {
        // Polling through such a gap costs more than the sleep, but less than the wait is worth
        // under some policies.
        let polls = |gap, policy| best(&all(gap), &cost(), policy, false).until >= gap;
        assert!(!polls(20_000, PollingPolicy::Eco) && !polls(20_000, PollingPolicy::Balanced));
        assert!(polls(20_000, PollingPolicy::Latency));
        assert!(polls(4_000, PollingPolicy::Balanced) && !polls(200_000, PollingPolicy::Latency));
    }

    #[test]
    fn naps_are_for_those_who_can_wait_and_for_gaps_that_share_one() {
        let eco = |gap, naps| best(&all(gap), &cost(), PollingPolicy::Eco, naps).nap;
        assert_eq!((eco(3_000, true), eco(3_000, false)), (40_000, 0));
        assert_eq!(eco(5_000_000, true), 0);
        assert_eq!(best(&all(3_000), &cost(), PollingPolicy::Latency, true).nap, 0);
        let slow = Cost::new(
            SleepCost { cpu: 4_000, delay: 10_000 },
            SleepCost { cpu: 3_000, delay: 100_000 },
        );
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
    fn fixed_policies_ignore_costs() {
        for gap in [100, 100_000_000] {
            let plan = |word: &str| best(&all(gap), &cost(), word.parse().unwrap(), true);
            assert_eq!(plan("never"), Plan::poll(0));
            assert_eq!(plan("always"), Plan::poll(u64::MAX));
            assert_eq!(plan("50us"), Plan::poll(50_000));
        }
    }

    /// The best window costs at most twice as much as the optimum with knowledge of each gap.
    #[test]
    fn nobody_pays_more_than_twice_what_was_needed() {
        for exponent in 5..30 {
            let gaps = all(1 << exponent);
            let sleeping = cost();
            let expected = ExpectedCost { gaps: &gaps, cost: &sleeping, worth: 0.1 };
            let least = expected.gaps.beyond(u64::MAX / 4).1.min(expected.armed());
            let plan = best(&gaps, &cost(), PollingPolicy::Balanced, false);
            let paid = expected.poll(plan.until);
            assert!(paid <= 2.0 * least, "2^{exponent}: {plan:?} costs {paid}, {least} would do");
        }
    }
}
