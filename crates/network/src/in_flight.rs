//! A queue's bursts that are in flight: parts of them are on other workers, or passed to receivers
//! that have not fetched them yet.
//!
//! Frames complete in the order of the ring, whatever comes back first.

use std::collections::VecDeque;

/// A burst in flight.
struct InFlightBurst {
    /// Frames that it completes.
    frames: usize,
    /// Parts of it that have not come back.
    parts: usize,
}

/// A queue's bursts in flight, oldest first.
#[derive(Default)]
pub struct InFlightBursts {
    bursts: VecDeque<InFlightBurst>,
    /// The number of the oldest.
    first: u64,
}

impl InFlightBursts {
    /// Bursts that a queue may have in flight.
    const LIMIT: usize = 64;

    /// Whether nothing is in flight.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bursts.is_empty()
    }

    /// Whether another burst may start.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.bursts.len() < Self::LIMIT
    }

    /// The number that the next burst will have.
    #[inline]
    pub fn next(&self) -> u64 {
        self.first + self.bursts.len() as u64
    }

    /// Notes a burst of `frames` frames that is done except for `parts` that are under way. Returns
    /// how many frames are complete now.
    pub fn push(&mut self, frames: usize, parts: usize) -> usize {
        self.bursts.push_back(InFlightBurst { frames, parts });
        self.complete()
    }

    /// A part of burst `number` has come back. Returns how many frames are complete now.
    pub fn returned(&mut self, number: u64) -> usize {
        let index = number.wrapping_sub(self.first) as usize;
        if let Some(burst) = self.bursts.get_mut(index) {
            burst.parts = burst.parts.saturating_sub(1);
        }
        self.complete()
    }

    fn complete(&mut self) -> usize {
        let mut complete = 0;
        while self.bursts.front().is_some_and(|burst| burst.parts == 0) {
            complete += self.bursts.pop_front().map_or(0, |burst| burst.frames);
            self.first += 1;
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_complete_in_order_whatever_comes_back_first() {
        let mut bursts = InFlightBursts::default();
        let first = bursts.next();
        assert_eq!(bursts.push(10, 2), 0);
        let second = bursts.next();
        assert_eq!(bursts.push(5, 1), 0);
        assert_eq!(bursts.push(3, 0), 0);
        assert_eq!(bursts.returned(second), 0);
        assert_eq!(bursts.returned(first), 0);
        assert_eq!(bursts.returned(first), 18);
        assert!(bursts.is_empty());
    }

    #[test]
    fn a_burst_that_stays_here_completes_at_once() {
        let mut bursts = InFlightBursts::default();
        assert_eq!(bursts.push(64, 0), 64);
        assert_eq!(bursts.next(), 1);
    }
}
