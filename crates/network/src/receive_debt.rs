//! Receivers whose buffers cost more than the frames in them.
//!
//! The sender of a frame is charged for putting it into a few buffers. A hostile receiver can post
//! buffers of a byte each, or chains of a thousand descriptors, or memory whose pages it takes away
//! again and again ([`page_faults`](crate::page_faults)). Filling such buffers takes many times as
//! long, on a shared worker and at the sender's expense. So the cost beyond that of the frames, and
//! beyond the pieces that drivers with small or chained buffers need ([`PIECES`], [`PIECE_BYTES`]),
//! is a debt of the receiver.
//!
//! A receiver in debt gets no frames: each dropped frame pays off what it would have cost. Time
//! also pays off the debt, at 1/[`SHARE`] of a worker. Otherwise a receiver to which few frames are
//! sent would lose frames long after one delay, which the machine may have caused. The debt is the
//! port's: a queue that goes and comes still has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use runtime::pipeline::COST_PER_NS;

use crate::burst::{BURST, Frame};
use crate::cost::{PIECE, cost};
use crate::count::QueueCounters;
use crate::service::QUANTUM;

/// Bytes of a frame for which a receiver may have a piece of memory. The smallest buffers that
/// drivers are known to use are of 128 bytes; Linux has 1536 and more, or chains of pages.
const PIECE_BYTES: u64 = 64;

/// Pieces that a receiver may have for each frame in addition: even a short frame takes a whole
/// buffer, which may be a long chain.
const PIECES: u64 = 32;

/// A port may cost 1/`SHARE` of a worker's time beyond what its frames cost.
const SHARE: u64 = 50;

/// Cost that a port has to pay off.
#[derive(Debug)]
pub struct Debt {
    cost: AtomicU64,
    /// The time up to which time has paid off debt, in nanoseconds since `start`; 0 while there is
    /// no debt.
    paid_until: AtomicU64,
    start: Instant,
}

impl Default for Debt {
    fn default() -> Self {
        Debt { cost: AtomicU64::new(0), paid_until: AtomicU64::new(0), start: Instant::now() }
    }
}

impl Debt {
    fn get(&self) -> u64 {
        self.cost.load(Ordering::Relaxed)
    }

    /// Adds to the debt. Time begins to pay off the debt when its first part is made.
    fn add(&self, cost: u64, now: Instant) {
        if cost > 0 {
            let (since, relaxed) = (self.since_start(now), Ordering::Relaxed);
            let _ = self.paid_until.compare_exchange(0, since, relaxed, relaxed);
            self.cost.fetch_add(cost, relaxed);
        }
    }

    /// Pays off `cost`. If nothing is left, time begins anew with the next debt.
    fn pay(&self, cost: u64) {
        let less = |debt: u64| Some(debt.saturating_sub(cost));
        let before = self.cost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if before.is_ok_and(|debt| debt <= cost) {
            self.paid_until.store(0, Ordering::Relaxed);
        }
    }

    /// Pays off what the time since the last call is worth.
    fn pay_by_time(&self, now: Instant) {
        let until = self.since_start(now);
        let since = self.paid_until.swap(until, Ordering::Relaxed);
        if since > 0 {
            self.pay(until.saturating_sub(since).saturating_mul(COST_PER_NS) / SHARE);
        }
    }

    /// Nanoseconds from the start to `now`, at least 1.
    fn since_start(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(passed).unwrap_or(u64::MAX).max(1)
    }
}

/// A queue as a receiver that may be in debt.
#[derive(Debug, Default)]
pub struct ReceiveDebt {
    debt: Arc<Debt>,
    /// Frames and bytes that it had received when pieces were last charged.
    frames: u64,
    bytes: u64,
}

impl ReceiveDebt {
    /// A queue whose port owes this.
    pub fn new(debt: Arc<Debt>) -> Self {
        ReceiveDebt { debt, ..ReceiveDebt::default() }
    }

    /// Whether the receiver is in debt, and so gets no frames.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.debt.get() > 0
    }

    /// Charges for `pieces`, the number of pieces beyond one for each frame. Frames received since
    /// the last call count against them with the cost that their senders paid, up to a burst.
    #[cold]
    pub fn charge(&mut self, pieces: u32, counters: &QueueCounters, now: Instant) {
        let (frames, bytes) = (counters.rx.frames.get(), counters.rx.bytes.get());
        let new = [frames.saturating_sub(self.frames), bytes.saturating_sub(self.bytes)];
        (self.frames, self.bytes) = (frames, bytes);
        let [frames, bytes] = [new[0].min(BURST as u64), new[1].min(QUANTUM)];
        let free = frames * PIECES + bytes / PIECE_BYTES;
        let paid = cost(frames as usize, bytes).min(QUANTUM);
        let own = PIECE * u64::from(pieces).saturating_sub(free);
        self.debt.add(own.saturating_sub(paid), now);
    }

    /// Adds further cost of filling the buffers.
    pub fn add(&mut self, cost: u64, now: Instant) {
        self.debt.add(cost, now);
    }

    /// Pays off by the time that has passed at `now`, and then by dropping frames. Returns how
    /// many.
    pub fn pay_off<'a>(
        &mut self,
        frames: impl IntoIterator<Item = &'a Frame>,
        now: Instant,
    ) -> usize {
        self.debt.pay_by_time(now);
        let (mut dropped, mut frames) = (0, frames.into_iter());
        while self.is_due()
            && let Some(frame) = frames.next()
        {
            self.debt.pay(cost(1, frame.len.into()));
            dropped += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frames(count: usize, len: u32) -> Vec<Frame> {
        let mut frame = Frame::default();
        frame.len = len;
        vec![frame; count]
    }

    fn received(counters: &QueueCounters, frames: u64, len: u64) {
        counters.rx.frames.add(frames);
        counters.rx.bytes.add(frames * len);
    }

    #[test]
    fn buffers_of_an_honest_size_are_no_debt() {
        let (mut debt, counters) = (ReceiveDebt::default(), QueueCounters::default());
        // 64 KB in buffers of 1536 bytes, in chains of pages, and 1514 bytes in buffers of 256 and
        // of 128 bytes; small frames in two pieces.
        let honest = [(1, 65_000, 42), (1, 65_000, 17), (64, 1514, 64 * 5), (2, 1514, 2 * 11)];
        for (frames, len, pieces) in honest.into_iter().chain([(64, 60, 64)]) {
            received(&counters, frames, len);
            debt.charge(pieces, &counters, Instant::now());
            assert!(!debt.is_due());
        }
    }

    #[test]
    fn a_receiver_in_small_pieces_loses_what_it_costs_too_much() {
        let (mut debt, counters) = (ReceiveDebt::default(), QueueCounters::default());
        received(&counters, 1, 64);
        let now = Instant::now();
        debt.charge(144, &counters, now);
        assert!(debt.is_due());
        let dropped = debt.pay_off(&frames(64, 64), now) as u64;
        // 33 of the pieces are free.
        let (own, rest) = (cost(1, 64), 111 * PIECE - cost(1, 64));
        assert_eq!(dropped, rest.div_ceil(own));
        assert!(!debt.is_due());
        assert_eq!(debt.pay_off(&frames(64, 64), now), 0);
    }

    #[test]
    fn buffers_of_16_bytes_are_a_debt_however_many_frames_come() {
        let (mut debt, counters) = (ReceiveDebt::default(), QueueCounters::default());
        received(&counters, 64, 1514);
        let now = Instant::now();
        debt.charge(64 * 95, &counters, now);
        // Four frames and more for each that was received.
        let dropped = debt.pay_off(&frames(10_000, 1514), now) as u64;
        assert!((4 * 64..6 * 64).contains(&dropped), "{dropped} dropped");
    }

    #[test]
    fn time_pays_off_what_no_frames_do() {
        let mut debt = ReceiveDebt::default();
        // A millisecond of a worker's time, as frames pay for it: thousands of short ones.
        let millisecond = Duration::from_millis(1);
        let owed = COST_PER_NS * millisecond.as_nanos() as u64;
        let start = Instant::now() + 1000 * millisecond;
        let time = millisecond * SHARE as u32;
        debt.add(owed, start);
        assert_eq!(debt.pay_off(&frames(1, 64), start), 1);
        assert_eq!(debt.pay_off(&frames(1, 64), start + time / 2), 1);
        assert_eq!(debt.pay_off(&frames(1, 64), start + time), 0);
        assert!(!debt.is_due());
        // A receiver to which nothing was sent meanwhile loses nothing.
        debt.add(owed, start + 10 * time);
        assert_eq!(debt.pay_off(&frames(1, 64), start + 11 * time), 0);
        // Time before a debt does not pay for it.
        debt.add(owed, start + 20 * time);
        assert_eq!(debt.pay_off(&frames(1, 64), start + 20 * time), 1);
        assert_eq!(debt.pay_off(&frames(1, 64), start + 21 * time), 0);
        // What is added later is paid later.
        debt.add(owed, start + 30 * time);
        debt.add(owed, start + 31 * time);
        assert_eq!(debt.pay_off(&frames(1, 64), start + 31 * time), 1);
        assert_eq!(debt.pay_off(&frames(1, 64), start + 32 * time), 0);
    }

    #[test]
    fn a_queue_that_goes_and_comes_is_still_in_debt() {
        let debt = Arc::new(Debt::default());
        let mut first = ReceiveDebt::new(Arc::clone(&debt));
        first.add(10_000, Instant::now());
        drop(first);
        assert!(ReceiveDebt::new(debt).is_due());
    }

    #[test]
    fn what_was_received_long_ago_pays_for_a_burst_only() {
        let (mut debt, counters) = (ReceiveDebt::default(), QueueCounters::default());
        received(&counters, 1_000_000, 1514);
        debt.charge(100_000, &counters, Instant::now());
        assert!(debt.is_due());
    }
}
