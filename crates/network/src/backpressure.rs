//! How long a sender's frames may wait for a receiver that is full.
//!
//! A frame for a full receiver can stay in its sender's ring and be fetched again a moment later:
//! two well-behaved guests then lose nothing, and no queue grows anywhere. But the frames behind it
//! wait too (head-of-line blocking). So a wait uses up credit of the receiver's port. Which of its
//! two accounts is charged depends on who waits ([`Waiting`]):
//!
//! - **Sole.** All that the sender has sent lately, and all that lies in its ring as far as the
//!   worker sees, goes to this port, so no other receiver's frames wait. The port earns 100 us with
//!   each frame that it takes, and 1 us with each 64 bytes. A receiver that takes ten frames in a
//!   millisecond is waited for without end. A ring of 256 frames is empty in some 50 ms whatever
//!   the receiver does, should frames for others lie at its end.
//! - **Shared.** Frames for others wait behind. The port earns a tenth of the time that a worker
//!   needs to deliver what it takes, so a receiver that is slow, or that takes a trickle, holds up
//!   others for a tenth of what serving it costs, and no more.
//!
//! Frames for a full port without credit are dropped at once. The time from when a receiver was
//! found full until it takes a frame is charged in full, whatever ended the wait. Accounts belong
//! to ports: a port gains nothing by more queues, nor by taking a queue away and adding it again.
//!
//! While a port's credit is [suspended](WaitCredit::suspend), nothing waits for the port, whatever
//! it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use runtime::pipeline::COST_PER_NS;

use crate::cost::cost;
use crate::count::{DropReason, QueueCounters};

/// The most credit that an account can have: the time for which a guest's vCPU may have to wait for
/// a CPU on an overcommitted host.
const CAP: Duration = Duration::from_millis(20);
const CAP_NS: i64 = CAP.as_nanos() as i64;
/// Earned with each frame, and with each 64 bytes, for waits of a sole sender, in ns.
const PER_FRAME: i64 = 100_000;
const PER_64_BYTES: i64 = 1_000;
/// For waits at the expense of others: the receiver earns 1/`SHARE` of the time that serving it
/// takes.
const SHARE: i64 = 10;

/// Who waits with a frame for a full receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Waiting {
    /// Only frames for the same port.
    Sole,
    /// Frames for other ports, too.
    Shared,
}

impl Waiting {
    /// The reason under which a frame is dropped if it may not wait.
    pub fn drop_reason(self) -> DropReason {
        match self {
            Waiting::Sole => DropReason::RxFull,
            Waiting::Shared => DropReason::HeadOfLine,
        }
    }
}

/// The accounts of one port, for all of its queues on all workers.
#[derive(Debug)]
pub struct WaitCredit {
    accounts: [AtomicI64; 2],
    is_suspended: AtomicBool,
}

impl Default for WaitCredit {
    fn default() -> Self {
        let accounts = [const { AtomicI64::new(CAP_NS) }; 2];
        WaitCredit { accounts, is_suspended: AtomicBool::new(false) }
    }
}

impl WaitCredit {
    /// Whether frames are dropped as if the port had no credit. Waits that are under way end at the
    /// next look for room.
    pub fn suspend(&self, yes: bool) {
        self.is_suspended.store(yes, Ordering::Relaxed);
    }

    fn get(&self, who: Waiting) -> i64 {
        self.accounts[who as usize].load(Ordering::Relaxed)
    }

    /// What is left for a wait, in ns; `None`: nothing may wait.
    fn left(&self, who: Waiting) -> Option<u64> {
        let left = u64::try_from(self.get(who)).ok()?;
        (left > 0 && !self.is_suspended.load(Ordering::Relaxed)).then_some(left)
    }

    fn is_full(&self) -> bool {
        self.get(Waiting::Sole) >= CAP_NS && self.get(Waiting::Shared) >= CAP_NS
    }

    /// Several workers may add at the same time, so the cap can be exceeded by what they add.
    fn earn(&self, who: Waiting, ns: i64) {
        if self.get(who) < CAP_NS {
            self.accounts[who as usize].fetch_add(ns, Ordering::Relaxed);
        }
    }

    fn spend(&self, who: Waiting, ns: i64) {
        let account = &self.accounts[who as usize];
        account.fetch_sub(ns, Ordering::Relaxed);
        account.fetch_max(-CAP_NS, Ordering::Relaxed);
    }
}

/// The waits for one receiving queue.
#[derive(Debug, Default)]
pub struct Backpressure {
    credit: Arc<WaitCredit>,
    counters: Arc<QueueCounters>,
    /// Start of the present wait of each kind of waiter.
    since: [Option<Instant>; 2],
    /// How long that wait had lasted before `since`.
    waited: [Duration; 2],
}

impl Backpressure {
    /// A queue of the port that has these accounts.
    pub fn new(credit: Arc<WaitCredit>, counters: Arc<QueueCounters>) -> Self {
        Backpressure { credit, counters, ..Backpressure::default() }
    }

    /// The receiver took `frames` frames of `bytes` bytes in all.
    #[inline]
    pub fn took(&mut self, frames: u32, bytes: u32, now: Instant) {
        if self.since != [None; 2] || !self.credit.is_full() {
            self.earn(frames, bytes, now);
        }
    }

    #[cold]
    fn earn(&mut self, frames: u32, bytes: u32, now: Instant) {
        for who in [Waiting::Sole, Waiting::Shared] {
            self.charge(who, now);
            self.end(who);
        }
        let service = cost(frames as usize, bytes.into()) as i64 / COST_PER_NS as i64;
        self.credit.earn(Waiting::Shared, service / SHARE);
        let sole = PER_FRAME * i64::from(frames) + PER_64_BYTES * i64::from(bytes / 64);
        self.credit.earn(Waiting::Sole, sole);
    }

    /// Notes that the receiver was full at `now`. Returns until when a frame may wait for it;
    /// `None`: drop the frame.
    pub fn full(&mut self, who: Waiting, now: Instant) -> Option<Instant> {
        self.charge(who, now);
        let Some(left) = self.credit.left(who) else {
            self.end(who);
            return None;
        };
        self.since[who as usize] = Some(now);
        Some(now + Duration::from_nanos(left))
    }

    /// Charges the time since the wait began or was last charged.
    fn charge(&mut self, who: Waiting, now: Instant) {
        let Some(since) = self.since[who as usize].take() else { return };
        // No wait lasts longer than its credit.
        let waited = now.saturating_duration_since(since).min(CAP);
        self.credit.spend(who, waited.as_nanos() as i64);
        self.waited[who as usize] += waited;
    }

    /// Ends the wait, if there is one: the receiver took a frame, or one was dropped.
    fn end(&mut self, who: Waiting) {
        let waited = std::mem::take(&mut self.waited[who as usize]);
        if !waited.is_zero() {
            self.counters.waits.record(waited);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Waiting::{Shared, Sole};

    const MS: Duration = Duration::from_millis(1);
    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_receiver_that_takes_nothing_runs_out_and_stays_out() {
        for who in [Sole, Shared] {
            let mut queue = Backpressure::default();
            let start = Instant::now();
            assert_eq!(queue.full(who, start), Some(start + CAP));
            assert_eq!(queue.full(who, start + CAP / 2), Some(start + CAP));
            assert_eq!(queue.full(who, start + CAP), None);
            assert_eq!(queue.full(who, start + CAP * 100), None);
        }
    }

    #[test]
    fn nothing_waits_while_credit_is_suspended() {
        for who in [Sole, Shared] {
            let credit = Arc::new(WaitCredit::default());
            let mut queue = Backpressure::new(Arc::clone(&credit), Arc::default());
            let start = Instant::now();
            assert!(queue.full(who, start).is_some());
            credit.suspend(true);
            queue.took(1000, 64, start + MS);
            assert_eq!(queue.full(who, start + MS), None);
            credit.suspend(false);
            assert!(queue.full(who, start + MS).is_some());
        }
    }

    #[test]
    fn a_wait_that_ends_with_a_frame_is_charged() {
        for who in [Sole, Shared] {
            let mut queue = Backpressure::default();
            let mut now = Instant::now();
            let mut waited = Duration::ZERO;
            // One buffer each 19 ms.
            for _ in 0..100 {
                if queue.full(who, now).is_some() {
                    waited += 19 * MS;
                }
                now += 19 * MS;
                queue.took(1, 1514, now);
            }
            assert!(waited <= 3 * CAP, "{who:?}: waited for {waited:?}");
        }
    }

    #[test]
    fn a_wait_is_recorded_as_a_whole() {
        let mut queue = Backpressure::default();
        let now = Instant::now();
        let recorded = |queue: &Backpressure| {
            let waits = &queue.counters.waits;
            (waits.counts().iter().sum::<u64>(), Duration::from_nanos(waits.sum()))
        };
        // Looked at four times in 3 ms, then a frame is taken.
        for ms in 0..4 {
            queue.full(Sole, now + ms * MS);
        }
        assert_eq!(recorded(&queue), (0, Duration::ZERO));
        queue.took(1, 64, now + 3 * MS);
        assert_eq!(recorded(&queue), (1, 3 * MS));
        // Then no frame is taken until there is no credit any more.
        for ms in 10..40 {
            queue.full(Sole, now + ms * MS);
        }
        assert_eq!(recorded(&queue).0, 2);
    }

    #[test]
    fn a_trickle_buys_little() {
        let mut queue = Backpressure::default();
        let mut now = Instant::now();
        queue.full(Sole, now);
        now += CAP;
        assert_eq!(queue.full(Sole, now), None);
        queue.took(1, 64, now);
        assert_eq!(queue.full(Sole, now), Some(now + 101 * US));
        assert_eq!(queue.full(Sole, now + 101 * US), None);
    }

    #[test]
    fn others_wait_for_a_tenth_of_the_service_at_most() {
        let mut queue = Backpressure::default();
        let mut now = Instant::now();
        queue.full(Shared, now);
        now += CAP;
        assert_eq!(queue.full(Shared, now), None);
        // 820 frames at once take about 180 us to deliver.
        queue.took(820, 820 * 1514, now);
        let until = queue.full(Shared, now).unwrap();
        assert!((15 * US..20 * US).contains(&(until - now)), "{:?}", until - now);
    }

    #[test]
    fn credit_is_capped_however_much_was_taken() {
        let mut queue = Backpressure::default();
        let now = Instant::now();
        for _ in 0..1000 {
            queue.took(64, 64 * 65_536, now);
        }
        for who in [Sole, Shared] {
            assert_eq!(queue.full(who, now), Some(now + CAP));
        }
    }

    #[test]
    fn time_in_which_nobody_waits_is_not_charged() {
        let mut queue = Backpressure::default();
        let start = Instant::now();
        queue.full(Sole, start);
        queue.took(1, 1514, start);
        assert_eq!(queue.full(Sole, start + CAP * 10), Some(start + CAP * 10 + CAP));
    }

    #[test]
    fn neither_more_queues_nor_new_ones_have_more_credit() {
        let credit = Arc::new(WaitCredit::default());
        let start = Instant::now();
        let mut first = Backpressure::new(Arc::clone(&credit), Arc::default());
        first.full(Shared, start);
        assert_eq!(first.full(Shared, start + CAP), None);
        drop(first);
        let mut again = Backpressure::new(credit, Arc::default());
        assert_eq!(again.full(Shared, start + CAP), None);
    }

    proptest! {
        /// Others wait for a receiver for at most a tenth of its service plus the cap, whatever it
        /// does.
        #[test]
        fn waits_of_others_are_bounded(
            steps in proptest::collection::vec((any::<bool>(), 1u32..64, 0u64..30_000), 1..400),
        ) {
            let mut queue = Backpressure::default();
            let mut now = Instant::now();
            let (mut waited, mut service) = (0, 0);
            let mut until = None;
            for (takes, frames, us) in steps {
                let later = now + Duration::from_micros(us);
                if let Some(until) = until {
                    waited += (later.min(until) - now).as_nanos() as i64;
                }
                now = later;
                if takes {
                    queue.took(frames, frames * 1514, now);
                    service += cost(frames as usize, u64::from(frames) * 1514) as i64 / COST_PER_NS as i64;
                    until = None;
                } else {
                    until = queue.full(Shared, now);
                }
            }
            prop_assert!(waited <= CAP_NS + service / SHARE, "{waited} ns for {service} ns");
        }
    }
}
