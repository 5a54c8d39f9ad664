//! Receivers whose buffers cost more than the frames in them.
//!
//! A frame costs its sender what it costs to put it into a few buffers. A receiver can post buffers
//! of a byte each, or chains of a thousand descriptors, or memory whose pages it takes away again
//! and again ([`page_faults`](crate::page_faults)): then filling them takes many times as long, on
//! a worker that others share, and paid for by whoever sends. What goes beyond the cost of the
//! frames themselves, and beyond the pieces that drivers with small or chained buffers need
//! ([`PIECES`], [`PIECE_BYTES`]), is therefore a debt of the receiver. A receiver in debt gets no
//! frames: each one that is dropped pays off what it would have cost.

use crate::burst::{BURST, Frame};
use crate::cost::{PIECE, cost};
use crate::count::QueueCounters;
use crate::service::QUANTUM;

/// Bytes of a frame for which a receiver may have a piece of memory: drivers that chain small
/// descriptors are odd, but not hostile.
const PIECE_BYTES: u64 = 16;

/// Pieces that a receiver may have for a frame besides.
const PIECES: u64 = 64;

/// What a receiver has to pay off.
#[derive(Debug, Default)]
pub struct ReceiveDebt {
    debt: u64,
    /// Frames and bytes that it had received when pieces were last charged.
    frames: u64,
    bytes: u64,
}

impl ReceiveDebt {
    /// Whether nothing is put before something is paid off.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.debt > 0
    }

    /// The receiver's frames were put into so many pieces more than one each. What it received
    /// since the last time is worth as much as it cost its senders, up to a burst.
    #[cold]
    pub fn charge(&mut self, pieces: u32, counters: &QueueCounters) {
        let (frames, bytes) = (counters.rx.frames.get(), counters.rx.bytes.get());
        let new = [frames.saturating_sub(self.frames), bytes.saturating_sub(self.bytes)];
        (self.frames, self.bytes) = (frames, bytes);
        let [frames, bytes] = [new[0].min(BURST as u64), new[1].min(QUANTUM)];
        let free = frames * PIECES + bytes / PIECE_BYTES;
        let paid = cost(frames as usize, bytes).min(QUANTUM);
        self.debt += (PIECE * u64::from(pieces).saturating_sub(free)).saturating_sub(paid);
    }

    /// Adds what filling the buffers cost besides.
    pub fn add(&mut self, cost: u64) {
        self.debt += cost;
    }

    /// Pays off by dropping frames. Returns how many.
    pub fn pay_off(&mut self, frames: &[Frame]) -> usize {
        let mut dropped = 0;
        while self.debt > 0
            && let Some(frame) = frames.get(dropped)
        {
            self.debt = self.debt.saturating_sub(cost(1, frame.len.into()));
            dropped += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
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
        // 64 KB in buffers of 1526 bytes, 1514 bytes in some of 256 and in pieces of 16.
        for (frames, len, pieces) in [(1, 65_000, 42), (64, 1514, 64 * 5), (2, 1514, 2 * 95)] {
            received(&counters, frames, len);
            debt.charge(pieces, &counters);
            assert!(!debt.is_due());
        }
    }

    #[test]
    fn a_receiver_in_small_pieces_loses_what_it_costs_too_much() {
        let (mut debt, counters) = (ReceiveDebt::default(), QueueCounters::default());
        received(&counters, 1, 64);
        debt.charge(144, &counters);
        assert!(debt.is_due());
        let dropped = debt.pay_off(&frames(64, 64)) as u64;
        // 68 of the pieces are free.
        let (own, rest) = (cost(1, 64), 76 * PIECE - cost(1, 64));
        assert_eq!(dropped, rest.div_ceil(own));
        assert!(!debt.is_due());
        assert_eq!(debt.pay_off(&frames(64, 64)), 0);
    }

    #[test]
    fn what_was_received_long_ago_pays_for_a_burst_only() {
        let (mut debt, counters) = (ReceiveDebt::default(), QueueCounters::default());
        received(&counters, 1_000_000, 1514);
        debt.charge(100_000, &counters);
        assert!(debt.is_due());
    }
}
