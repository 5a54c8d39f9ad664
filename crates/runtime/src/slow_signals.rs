//! Peers whose interrupts take long to send.
//!
//! An interrupt is a write to an event descriptor of the peer's. The kernel notifies all watchers
//! of the descriptor. A hostile peer can register any number of watchers, so that each write keeps
//! a worker busy for milliseconds. Pipelines charge that time to the port or disk that is
//! interrupted. A peer whose slow interrupts take more than 1/[`SHARE`] of the time is stopped. A
//! front-end that reconnects at once would keep the worker busy again, so the control side charges
//! it as well ([`COST`]).

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::time_share::TimeShare;

/// Slow interrupts of a peer may take 1/`SHARE` of the time.
const SHARE: u32 = 200;

/// The time beyond that rate that signals may take at once.
const BURST: Duration = Duration::from_millis(20);

/// Least number of slow interrupts in a row that stops a peer, however long each takes: a single
/// one may be due to the machine.
const LEAST: u32 = 2;

/// Time of a worker that is charged to a peer that was stopped. With hundreds of thousands of
/// watchers, [`LEAST`] interrupts take a quarter of a second.
pub const COST: Duration = Duration::from_millis(750);

/// The slow interrupts of a peer, on all of its queues.
#[derive(Debug, Default)]
pub struct SlowSignals(Mutex<Account>);

#[derive(Debug)]
struct Account {
    /// The time that slow interrupts took.
    time: TimeShare,
    /// The number of slow interrupts since all of that time was last earned.
    count: u32,
}

impl Default for Account {
    fn default() -> Self {
        Account { time: TimeShare::new(SHARE, BURST), count: 0 }
    }
}

impl SlowSignals {
    /// Notes a slow interrupt at `now` that took `spent`. False: there have been too many.
    pub fn allows(&self, spent: Duration, now: Instant) -> bool {
        let mut account = self.0.lock();
        if account.time.is_earned(now) {
            account.count = 0;
        }
        account.time.charge(spent, now);
        account.count += 1;
        let exceeded = account.count >= LEAST && account.time.overdrawn_until(now).is_some();
        if exceeded {
            // The peer is stopped, and begins anew.
            *account = Account::default();
        }
        !exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// After how many slow interrupts the port is stopped; `None`: it is not.
    fn stopped(spent: Duration, every: Duration) -> Option<u32> {
        let (signals, start) = (SlowSignals::default(), Instant::now());
        (0..10_000).find(|n| !signals.allows(spent, start + every * *n)).map(|n| n + 1)
    }

    #[test]
    fn a_peer_is_stopped_for_many_slow_interrupts() {
        assert_eq!(stopped(MILLISECOND, 2 * MILLISECOND), Some(21));
        assert_eq!(stopped(20 * MILLISECOND, 40 * MILLISECOND), Some(LEAST));
        assert_eq!(stopped(Duration::from_secs(1), MILLISECOND), Some(LEAST));
    }

    #[test]
    fn a_few_slow_interrupts_are_the_machine() {
        assert_eq!(stopped(MILLISECOND, 200 * MILLISECOND), None);
        assert_eq!(stopped(200 * MILLISECOND, Duration::from_secs(60)), None);
    }

    #[test]
    fn a_peer_that_was_stopped_begins_anew() {
        let (signals, now) = (SlowSignals::default(), Instant::now());
        let slow = || signals.allows(20 * MILLISECOND, now);
        let stopped = (0..20).filter(|_| !slow()).count();
        assert_eq!(stopped, 10);
    }
}
