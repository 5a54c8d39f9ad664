//! Peers whose interrupts take long to send.
//!
//! An interrupt is a write to an event descriptor of the peer's. The kernel notifies all watchers
//! of the descriptor. A hostile peer can register any number of watchers, so that each write keeps
//! a worker busy for milliseconds. Pipelines charge that time to the port or disk that is
//! interrupted. A peer whose slow interrupts take more than 1/[`SHARE`] of the time is stopped. A
//! front-end that reconnects at once would keep the worker busy again, so the control side charges
//! it as well ([`COST`]).
//!
//! On a virtual machine, an interrupt that wakes another CPU also takes long while the host gives
//! both CPUs too little time. So a peer is not stopped if the host took as much from a CPU in the
//! meantime ([`Stolen`]). On such a host, the interrupts of a well-behaved disk took more than a
//! third of that time at times. A hostile peer that keeps a worker busy passes for such a disk only
//! if the host leaves no more than half of the CPU.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::stolen::Stolen;
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
    /// The time of these.
    spent: Duration,
    /// The time that the host had taken before the first of them.
    stolen: Option<Stolen>,
}

impl Default for Account {
    fn default() -> Self {
        let time = TimeShare::new(SHARE, BURST);
        Account { time, count: 0, spent: Duration::ZERO, stolen: None }
    }
}

impl SlowSignals {
    /// Notes a slow interrupt at `now` that took `spent`. False: there have been too many.
    pub fn allows(&self, spent: Duration, now: Instant) -> bool {
        self.allows_with(timed, spent, now)
    }

    /// `stolen` returns the time that the host took so far, and how long that question took.
    fn allows_with(
        &self,
        stolen: impl Fn() -> (Option<Stolen>, Duration),
        spent: Duration,
        now: Instant,
    ) -> bool {
        let mut account = self.0.lock();
        if account.time.is_earned(now) {
            let (stolen, asked) = stolen();
            *account = Account { stolen, ..Account::default() };
            // With many CPUs, the question takes milliseconds, and a hostile peer can cause it.
            account.time.charge(asked, now);
        }
        account.time.charge(spent, now);
        account.count += 1;
        account.spent += spent;
        let exceeded = account.count >= LEAST && account.time.overdrawn_until(now).is_some();
        if !exceeded {
            return true;
        }
        // The peer is stopped, or was slow because of the host. It begins anew in both cases.
        let Account { spent, stolen: before, .. } = std::mem::take(&mut *account);
        let taken = before.and_then(|before| Some(stolen().0?.most_since(&before)));
        taken.is_some_and(|taken| taken >= spent)
    }
}

/// The time that the host took so far, and how long it took to read that.
fn timed() -> (Option<Stolen>, Duration) {
    let began = Instant::now();
    let stolen = Stolen::now();
    (stolen, began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// After how many slow interrupts the port is stopped; `None`: it is not.
    fn stopped(spent: Duration, every: Duration) -> Option<u32> {
        stopped_on_a_host(0.0, spent, every)
    }

    /// The same where the host takes this share of the time from a CPU.
    fn stopped_on_a_host(share: f64, spent: Duration, every: Duration) -> Option<u32> {
        let (signals, start) = (SlowSignals::default(), Instant::now());
        let stolen = |n: u32| Some(Stolen::of(&[Duration::ZERO, (every * n).mul_f64(share)]));
        let look = |n: u32| (stolen(n), Duration::ZERO);
        (0..10_000)
            .find(|n| !signals.allows_with(|| look(*n), spent, start + every * *n))
            .map(|n| n + 1)
    }

    #[test]
    fn a_peer_is_not_stopped_for_what_the_host_took() {
        let (spent, every) = (MILLISECOND, 10 * MILLISECOND);
        assert_eq!(stopped_on_a_host(0.2, spent, every), None);
        assert_eq!(stopped_on_a_host(0.05, spent, every), Some(22));
        assert_eq!(stopped_on_a_host(1.0, 20 * MILLISECOND, MILLISECOND), Some(LEAST));
    }

    #[test]
    fn a_host_that_does_not_tell_takes_nothing() {
        let (signals, now) = (SlowSignals::default(), Instant::now());
        let stopped = |_: &u32| !signals.allows_with(untold, MILLISECOND, now);
        assert_eq!((0..100).find(stopped), Some(20));
    }

    #[test]
    fn a_peer_pays_for_the_question() {
        let (signals, now) = (SlowSignals::default(), Instant::now());
        let look = || (None, 10 * MILLISECOND);
        let stopped = |_: &u32| !signals.allows_with(look, MILLISECOND, now);
        assert_eq!((0..100).find(stopped), Some(10));
    }

    /// A host that does not tell.
    fn untold() -> (Option<Stolen>, Duration) {
        (None, Duration::ZERO)
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
        let slow = || signals.allows_with(untold, 20 * MILLISECOND, now);
        let stopped = (0..20).filter(|_| !slow()).count();
        assert_eq!(stopped, 10);
    }
}
