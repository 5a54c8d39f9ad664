//! The budgets of the daemon, by name, and the resulting restrictions of a port.

use std::collections::BTreeMap;
use std::sync::Arc;

use network::restrictions::{Limits, RestrictionsTemplate, SharedLimits};
use network::token_bucket::TokenBucket;
use switch::SourceGuard;

use crate::config::{BudgetSpec, DirectionLimits, PortSettings, RateLimits};

/// All budgets.
#[derive(Debug, Default)]
pub struct Budgets(BTreeMap<String, Budget>);

/// A budget. All ports that refer to it hold the same buckets.
#[derive(Debug)]
struct Budget {
    limits: RateLimits,
    shared: SharedLimits,
}

impl Budget {
    /// A budget with full buckets.
    fn new(limits: RateLimits) -> Budget {
        let buckets = |limits: &DirectionLimits| {
            let rates = limits.rates().into_iter();
            Limits(rates.map(|(unit, rate)| Arc::new(TokenBucket::new(unit, rate))).collect())
        };
        let shared = SharedLimits { transmit: buckets(&limits.tx), receive: buckets(&limits.rx) };
        Budget { limits, shared }
    }
}

impl Budgets {
    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The limits of a budget; `None`: there is no such budget.
    pub fn limits(&self, name: &str) -> Option<RateLimits> {
        self.0.get(name).map(|budget| budget.limits)
    }

    /// Adds a budget, or replaces the one of this name. Ports keep their buckets until their
    /// restrictions are set again.
    pub fn insert(&mut self, BudgetSpec { name, limits }: BudgetSpec) {
        self.0.insert(name, Budget::new(limits));
    }

    /// Removes a budget. False: there is none of this name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// The restrictions of a port with these settings, or of each of the ports that it stands for,
    /// without the rules of its security groups.
    pub fn template(&self, settings: &PortSettings) -> RestrictionsTemplate {
        let PortSettings { limits, budget, addresses, .. } = settings;
        let shared = budget.as_ref().and_then(|name| self.0.get(name));
        let guard = || Arc::new(SourceGuard::new(addresses.clone()));
        RestrictionsTemplate {
            guard: (!addresses.is_empty()).then(guard),
            rules: None,
            transmit: limits.tx.rates(),
            receive: limits.rx.rates(),
            shared: shared.map(|budget| budget.shared.clone()).unwrap_or_default(),
            budgets: self.0.iter().map(|(name, it)| (name.clone(), it.shared.clone())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use network::token_bucket::Unit;

    use super::*;
    use crate::config::{BitRate, BurstBytes};

    fn limits(kilobytes_per_second: u64) -> RateLimits {
        let rate = Some(BitRate(kilobytes_per_second * 8000));
        let tx =
            DirectionLimits { rate, burst: Some(BurstBytes(5000)), ..DirectionLimits::default() };
        RateLimits { tx, rx: DirectionLimits::default() }
    }

    fn budgets(name: &str, kilobytes_per_second: u64) -> Budgets {
        let mut budgets = Budgets::default();
        budgets.insert(BudgetSpec { name: name.into(), limits: limits(kilobytes_per_second) });
        budgets
    }

    fn settings(own: RateLimits) -> PortSettings {
        PortSettings { limits: own, budget: Some("b".into()), ..PortSettings::default() }
    }

    /// How many bytes fit into all of the limits, in frames of 500 bytes, at each of 100 moments a
    /// millisecond apart, where each of several senders takes its turn.
    fn sent(start: Instant, senders: &[&Limits]) -> u64 {
        let take = |limits: &Limits, now| {
            let taken = limits.0.iter().take_while(|bucket| bucket.take(now, 500)).count();
            if taken < limits.0.len() {
                limits.0[..taken].iter().for_each(|bucket| bucket.give_back(500));
            }
            taken == limits.0.len()
        };
        let mut bytes = 0;
        for millisecond in 0..100 {
            let now = start + Duration::from_millis(millisecond);
            for limits in senders {
                while take(limits, now) {
                    bytes += 500;
                }
            }
        }
        bytes
    }

    #[test]
    fn all_queues_of_all_ports_of_a_budget_share_its_rate() {
        let start = Instant::now() + Duration::from_secs(1);
        let budgets = budgets("b", 1000);
        let settings = settings(RateLimits::default());
        let ports: Vec<_> =
            (0..3).map(|_| budgets.template(&settings).instantiate().transmit).collect();
        // Queues of a port share the port's restrictions, so the second is served like the first.
        let queues: Vec<&Limits> = ports.iter().chain(&ports).collect();
        let bytes = sent(start, &queues);
        // A burst, and 99 ms of a megabyte per second.
        assert!((103_500..=104_500).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_stricter_of_port_and_budget_decides() {
        let start = Instant::now() + Duration::from_secs(1);
        for (own, budget) in [(1000, 200), (200, 1000)] {
            let budgets = budgets("b", budget);
            let port = budgets.template(&settings(limits(own))).instantiate().transmit;
            let bytes = sent(start, &[&port]);
            assert!((24_000..=25_000).contains(&bytes), "{bytes} of {own} and {budget}");
        }
    }

    #[test]
    fn a_changed_budget_reaches_ports_that_are_restricted_anew() {
        let start = Instant::now() + Duration::from_secs(1);
        let mut budgets = budgets("b", 1000);
        let before = budgets.template(&settings(RateLimits::default())).instantiate().transmit;
        budgets.insert(BudgetSpec { name: "b".into(), limits: limits(100) });
        let after = budgets.template(&settings(RateLimits::default())).instantiate().transmit;
        assert!(sent(start, &[&before]) > 100_000 && sent(start, &[&after]) < 16_000);
        budgets.insert(BudgetSpec { name: "b".into(), limits: RateLimits::default() });
        let none = budgets.template(&settings(RateLimits::default())).instantiate();
        assert!(none.is_none(), "nothing is limited any more");
    }

    #[test]
    fn limits_of_a_port_are_its_own() {
        let budgets = Budgets::default();
        let settings = PortSettings { budget: None, ..settings(limits(100)) };
        let [one, other] = [(); 2].map(|()| budgets.template(&settings).instantiate().transmit);
        assert_eq!((one.0.len(), one.0[0].unit()), (1, Unit::Bytes));
        assert!(!Arc::ptr_eq(&one.0[0], &other.0[0]));
    }
}
