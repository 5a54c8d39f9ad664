//! Frames that are lent: their bytes stay with their sender until their receiver has fetched them
//! itself.
//!
//! The sender's frames are completed only then, so a receiver that does not fetch holds up its
//! sender. As with receivers that are full ([`backpressure`](crate::backpressure)), its time has to be earned. What
//! is fetched promptly costs nothing; a receiver that takes longer spends what it has, and when
//! that is used up, everything that it was lent is recalled and lost. From then on it is lent
//! nothing, but gets copies as others do, until it has earned some time with those.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::topology::QueueId;

/// What is fetched within this time is fetched promptly.
const PROMPT: Duration = Duration::from_millis(1);
/// The most time that a receiver can have earned: enough for a processor that has much else to do.
const CAP: Duration = Duration::from_millis(100);
/// Earned with each frame, and with each 64 bytes.
const PER_FRAME: Duration = Duration::from_micros(2);
const PER_64_BYTES: Duration = Duration::from_micros(1);

/// What of its sender's waits for a loan to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A burst of a queue of the same worker.
    Burst {
        /// The queue.
        sender: QueueId,
        /// The burst's ticket.
        ticket: u64,
    },
    /// A parcel from another worker, by its number.
    Parcel(u64),
}

/// A frame that is lent.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// What waits for it.
    pub origin: Origin,
    /// Its length in bytes.
    pub len: u32,
    /// What its receiver's ring calls it.
    pub token: u32,
    /// Since when.
    pub since: Instant,
    /// It counts as received. One whose head could not be copied does not, any more.
    pub counts: bool,
}

/// The loans of one receiver, oldest first, and its account.
#[derive(Debug)]
pub struct Loans {
    open: VecDeque<Loan>,
    /// How many there have been.
    made: u64,
    credit: Duration,
    /// Until when it has paid for being slow.
    paid: Option<Instant>,
    /// All of them are being recalled.
    recalled: bool,
}

impl Default for Loans {
    fn default() -> Self {
        Loans { open: VecDeque::new(), made: 0, credit: CAP, paid: None, recalled: false }
    }
}

impl Loans {
    /// Whether nothing is lent.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many loans there have been.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Whether the receiver may be lent frames: it has some time to spend.
    pub fn may(&self) -> bool {
        !self.recalled && self.credit >= CAP / 2
    }

    /// A frame was lent.
    pub fn add(&mut self, loan: Loan) {
        self.open.push_back(loan);
        self.made += 1;
    }

    /// The receiver has taken so many frames of so many bytes, or fetched them.
    #[inline]
    pub fn took(&mut self, frames: u32, bytes: u32) {
        if self.credit < CAP {
            self.credit = CAP.min(self.credit + PER_FRAME * frames + PER_64_BYTES * (bytes / 64));
        }
    }

    /// The oldest loan has ended.
    pub fn end(&mut self) -> Option<Loan> {
        let loan = self.open.pop_front()?;
        if !self.recalled {
            self.took(1, loan.len);
        }
        self.recalled &= !self.open.is_empty();
        Some(loan)
    }

    /// Everything is to be recalled.
    pub fn recall(&mut self) {
        self.recalled = !self.open.is_empty();
    }

    /// Whether everything is being recalled.
    pub fn is_recalling(&self) -> bool {
        self.recalled
    }

    /// Whether everything is being recalled, or has to be now, because the receiver's time is used
    /// up.
    pub fn is_recalled(&mut self, now: Instant) -> bool {
        if self.due(now).is_some_and(|due| due <= now) {
            self.credit = Duration::ZERO;
            self.recall();
        } else if let Some(oldest) = self.open.front() {
            let from = (oldest.since + PROMPT).max(self.paid.unwrap_or(oldest.since));
            self.credit = self.credit.saturating_sub(now.saturating_duration_since(from));
            self.paid = self.paid.max(Some(now));
        }
        self.recalled
    }

    /// When the receiver's time will be used up, if it fetches nothing.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let oldest = self.open.front()?;
        let from = (oldest.since + PROMPT).max(self.paid.unwrap_or(oldest.since).min(now));
        Some(from + self.credit)
    }

    /// The frame that the receiver's ring calls so does not count as received any more. False: that
    /// is not lent.
    pub fn discount(&mut self, token: u32) {
        if let Some(loan) = self.open.iter_mut().rev().find(|loan| loan.token == token) {
            loan.counts = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lend(loans: &mut Loans, since: Instant, len: u32) {
        let origin = Origin::Burst { sender: QueueId(1), ticket: 0 };
        loans.add(Loan { origin, len, token: 0, since, counts: true });
    }

    #[test]
    fn who_is_prompt_pays_nothing() {
        let mut loans = Loans::default();
        let mut now = Instant::now();
        for _ in 0..1000 {
            lend(&mut loans, now, 200);
            now += PROMPT;
            assert!(!loans.is_recalled(now));
            assert!(loans.end().is_some() && loans.may());
        }
        assert_eq!(loans.credit, CAP);
    }

    #[test]
    fn who_never_fetches_is_waited_for_once() {
        let mut loans = Loans::default();
        let mut now = Instant::now();
        lend(&mut loans, now, 1500);
        assert_eq!(loans.due(now), Some(now + PROMPT + CAP));
        let start = now;
        while !loans.is_recalled(now) {
            now += PROMPT / 2;
        }
        assert!(now - start <= PROMPT + CAP + PROMPT, "{:?}", now - start);
        assert!(loans.end().is_some() && !loans.may(), "and not again");
        // Copies that it takes are how it earns time.
        for _ in 0..3000 {
            loans.took(1, 1500);
        }
        assert!(loans.may());
    }

    #[test]
    fn who_is_slow_pays_for_it() {
        let mut loans = Loans::default();
        let mut now = Instant::now();
        for _ in 0..20 {
            lend(&mut loans, now, 64);
            for _ in 0..4 {
                now += PROMPT;
                if loans.is_recalled(now) {
                    return assert!(!loans.may());
                }
            }
            loans.end();
            if !loans.may() {
                return;
            }
        }
        panic!("waited for it again and again");
    }

    #[test]
    fn what_is_recalled_earns_nothing() {
        let mut loans = Loans::default();
        let now = Instant::now();
        (0..50).for_each(|_| lend(&mut loans, now, 60_000));
        assert!(loans.is_recalled(now + CAP * 2));
        (0..50).for_each(|_| assert!(loans.end().is_some()));
        assert!(!loans.may() && loans.is_empty() && loans.due(now).is_none());
    }
}
