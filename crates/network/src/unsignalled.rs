//! Queues whose peers do not signal.
//!
//! A vhost-user front-end may start a transmit ring without a kick descriptor, and expects the ring
//! to be polled. Such a queue cannot be armed. Polled in every round, it would keep a worker awake
//! that has nothing to do. So each time that nothing is found, the queue is left alone for twice as
//! long as before, up to [`LONGEST`]; a frame ends that.

use std::time::Duration;

use crate::pipeline::FramePipeline;
use crate::slot::Slot;
use crate::wait::Wait;

/// How long the queue is left alone after nothing was found for the first time.
const SHORTEST: Duration = Duration::from_micros(1);

/// How long at most: what a frame may wait for after a rest.
const LONGEST: Duration = Duration::from_millis(1);

/// How often a queue is polled whose peer does not signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollInterval(Duration);

impl PollInterval {
    /// The queue had nothing once more. Returns how long it is left alone.
    fn lengthen(&mut self) -> Duration {
        self.0 = (2 * self.0).clamp(SHORTEST, LONGEST);
        self.0
    }

    /// The queue had something.
    fn reset(&mut self) {
        self.0 = Duration::ZERO;
    }
}

impl FramePipeline {
    /// Nothing was fetched from the queue in slot `src`: its next poll is later, if its peer does
    /// not signal.
    #[inline]
    pub(crate) fn poll_later(&mut self, src: usize) {
        let now = self.clock.now;
        let Some(slot) = self.slots.get_mut(src) else { return };
        if let Some(interval) = &mut slot.unsignalled
            && slot.sending.wait.is_none()
        {
            slot.sending.wait = Some(Wait::Until(now + interval.lengthen()));
        }
    }
}

impl Slot {
    /// A burst was fetched.
    #[inline]
    pub(crate) fn found(&mut self) {
        if let Some(interval) = &mut self.unsignalled {
            interval.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_doubles_up_to_a_bound_and_starts_anew() {
        let mut interval = PollInterval::default();
        let intervals: Vec<_> = (0..16).map(|_| interval.lengthen()).collect();
        assert_eq!(intervals[..3], [1, 2, 4].map(Duration::from_micros));
        assert!(intervals.iter().all(|interval| *interval <= LONGEST));
        assert_eq!(intervals.last(), Some(&LONGEST));
        interval.reset();
        assert_eq!(interval.lengthen(), SHORTEST);
    }
}
