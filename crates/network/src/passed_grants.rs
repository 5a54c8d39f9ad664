//! Passed frames: the receiver itself fetches their bytes from the sender, by grants that were
//! passed on to it.
//!
//! The sender's frames are completed only after the fetch, so a receiver that does not fetch holds
//! up its sender. As with full receivers ([`backpressure`](crate::backpressure)), that time has to
//! be earned. Prompt fetches cost nothing. A receiver that takes longer uses up its credit, and
//! when none is left, everything that was passed to it is revoked and lost. From then on it gets
//! copies, as other receivers do, until it has earned credit with those. The credit is the port's:
//! a queue that is detached and attached again gains nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use runtime::QueueId;

/// A frame that is fetched within this time is fetched promptly.
const PROMPT: Duration = Duration::from_millis(1);
/// The most time that a receiver can have earned: enough for a guest on a busy CPU.
const CAP: Duration = Duration::from_millis(100);
/// Earned with each frame, and with each 64 bytes.
const PER_FRAME: Duration = Duration::from_micros(2);
const PER_64_BYTES: Duration = Duration::from_micros(1);

/// The request or batch that waits until a passed frame is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A burst of a queue of the same worker.
    Burst {
        /// The queue.
        sender: QueueId,
        /// The number of the burst.
        number: u64,
    },
    /// A batch from another worker, by its number.
    Batch(u64),
}

/// A frame that is passed.
#[derive(Clone, Copy, Debug)]
pub struct PassedGrant {
    /// The request or batch that waits for the release.
    pub origin: Origin,
    /// Its length in bytes.
    pub len: u32,
    /// The token of the frame on its receiver's ring.
    pub token: u32,
    /// When the frame was passed.
    pub since: Instant,
    /// The frame counts as received. Cleared if its head could not be copied.
    pub counts: bool,
}

/// How long frames that were passed to a port may be outstanding, for all of its queues.
#[derive(Debug)]
pub struct PassCredit(AtomicI64);

impl Default for PassCredit {
    fn default() -> Self {
        PassCredit(AtomicI64::new(CAP.as_nanos() as i64))
    }
}

impl PassCredit {
    fn get(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// Several workers may add at the same time, so the cap can be exceeded by what they add.
    fn earn(&self, time: Duration) {
        if self.get() < CAP {
            self.0.fetch_add(time.as_nanos() as i64, Ordering::Relaxed);
            self.0.fetch_min(CAP.as_nanos() as i64, Ordering::Relaxed);
        }
    }

    fn spend(&self, time: Duration) {
        self.0.fetch_sub(time.as_nanos().min(CAP.as_nanos()) as i64, Ordering::Relaxed);
        self.0.fetch_max(0, Ordering::Relaxed);
    }
}

/// The passed frames that one receiver has not fetched, oldest first, and its credit.
#[derive(Debug, Default)]
pub struct PassedGrants {
    outstanding: VecDeque<PassedGrant>,
    /// The number of frames passed so far.
    total: u64,
    credit: Arc<PassCredit>,
    /// The time up to which the receiver's slowness was charged.
    charged: Option<Instant>,
    /// All of them are being revoked.
    revoked: bool,
}

impl PassedGrants {
    /// The grants of a queue whose port has this credit.
    pub fn new(credit: Arc<PassCredit>) -> Self {
        PassedGrants { credit, ..PassedGrants::default() }
    }

    /// Whether nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// How many frames were ever passed.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether frames may be passed to the receiver: it has some credit.
    pub fn may_pass(&self) -> bool {
        !self.revoked && self.credit.get() >= CAP / 2
    }

    /// Notes that a frame was passed.
    pub fn add(&mut self, grant: PassedGrant) {
        self.outstanding.push_back(grant);
        self.total += 1;
    }

    /// Adds credit for `frames` frames of `bytes` bytes that the receiver has taken or fetched.
    #[inline]
    pub fn took(&mut self, frames: u32, bytes: u32) {
        if self.credit.get() < CAP {
            self.credit.earn(PER_FRAME * frames + PER_64_BYTES * (bytes / 64));
        }
    }

    /// Releases the oldest passed frame.
    pub fn release(&mut self) -> Option<PassedGrant> {
        let grant = self.outstanding.pop_front()?;
        if !self.revoked {
            self.took(1, grant.len);
        }
        self.revoked &= !self.outstanding.is_empty();
        Some(grant)
    }

    /// Notes that everything is being revoked.
    pub fn revoke(&mut self) {
        self.revoked = !self.outstanding.is_empty();
    }

    /// Whether everything is being revoked.
    pub fn is_revoking(&self) -> bool {
        self.revoked
    }

    /// Whether everything is being revoked, or has to be now, because the receiver's credit is
    /// used up.
    pub fn must_revoke(&mut self, now: Instant) -> bool {
        if self.due(now).is_some_and(|due| due <= now) {
            self.credit.spend(CAP);
            self.revoke();
        } else if let Some(oldest) = self.outstanding.front() {
            let from = (oldest.since + PROMPT).max(self.charged.unwrap_or(oldest.since));
            self.credit.spend(now.saturating_duration_since(from));
            self.charged = self.charged.max(Some(now));
        }
        self.revoked
    }

    /// When the receiver's credit will be used up, if it fetches nothing.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let oldest = self.outstanding.front()?;
        let from = (oldest.since + PROMPT).max(self.charged.unwrap_or(oldest.since).min(now));
        Some(from + self.credit.get())
    }

    /// Stops counting the frame with this token as received, because it could not be copied.
    pub fn discount(&mut self, token: u32) {
        if let Some(grant) = self.outstanding.iter_mut().rev().find(|grant| grant.token == token) {
            grant.counts = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(grants: &mut PassedGrants, since: Instant, len: u32) {
        let origin = Origin::Burst { sender: QueueId(1), number: 0 };
        grants.add(PassedGrant { origin, len, token: 0, since, counts: true });
    }

    #[test]
    fn a_prompt_receiver_keeps_its_credit() {
        let mut grants = PassedGrants::default();
        let mut now = Instant::now();
        for _ in 0..1000 {
            pass(&mut grants, now, 200);
            now += PROMPT;
            assert!(!grants.must_revoke(now));
            assert!(grants.release().is_some() && grants.may_pass());
        }
        assert_eq!(grants.credit.get(), CAP);
    }

    #[test]
    fn a_receiver_that_never_fetches_is_waited_for_once() {
        let mut grants = PassedGrants::default();
        let mut now = Instant::now();
        pass(&mut grants, now, 1500);
        assert_eq!(grants.due(now), Some(now + PROMPT + CAP));
        let start = now;
        while !grants.must_revoke(now) {
            now += PROMPT / 2;
        }
        assert!(now - start <= PROMPT + CAP + PROMPT, "{:?}", now - start);
        assert!(grants.release().is_some() && !grants.may_pass(), "and not again");
        // The receiver earns time by the copies that it takes.
        for _ in 0..3000 {
            grants.took(1, 1500);
        }
        assert!(grants.may_pass());
    }

    #[test]
    fn a_queue_that_goes_and_comes_has_no_more_credit() {
        let credit = Arc::new(PassCredit::default());
        let mut first = PassedGrants::new(Arc::clone(&credit));
        let now = Instant::now();
        pass(&mut first, now, 1500);
        assert!(first.must_revoke(now + PROMPT + CAP));
        drop(first);
        assert!(!PassedGrants::new(credit).may_pass());
    }

    #[test]
    fn a_slow_receiver_uses_up_its_credit() {
        let mut grants = PassedGrants::default();
        let mut now = Instant::now();
        for _ in 0..20 {
            pass(&mut grants, now, 64);
            for _ in 0..4 {
                now += PROMPT;
                if grants.must_revoke(now) {
                    return assert!(!grants.may_pass());
                }
            }
            grants.release();
            if !grants.may_pass() {
                return;
            }
        }
        panic!("waited for it again and again");
    }

    #[test]
    fn what_must_revoke_earns_nothing() {
        let mut grants = PassedGrants::default();
        let now = Instant::now();
        (0..50).for_each(|_| pass(&mut grants, now, 60_000));
        assert!(grants.must_revoke(now + CAP * 2));
        (0..50).for_each(|_| assert!(grants.release().is_some()));
        assert!(!grants.may_pass() && grants.is_empty() && grants.due(now).is_none());
    }
}
