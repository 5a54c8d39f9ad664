//! Receive interrupts that wait until they are worth one.
//!
//! An interrupt costs its guest about what several frames do. Where a port has a [`Throttle`], frames are published as
//! soon as ever, so that a guest that is awake finds them; only the interrupt waits, until so many frames have come or
//! so much time has passed. Three rules keep a guest from being forgotten:
//!
//! - What one publication found wanted stays wanted until it is sent. A later one need not find it again: a peer's event
//!   index is passed once.
//! - Every wait has an end, at most [`Throttle::LONGEST`] away, and the worker sleeps no longer than until the first one
//!   (see [`crate::held`]).
//! - A receiver that is full is told at once. It may be asleep, and then posts no buffers before it is told.

use std::time::{Duration, Instant};

use crate::port::Notified;

/// How long a port's receive interrupts wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    frames: Option<u32>,
    time: Duration,
}

impl Throttle {
    /// The longest that an interrupt may wait.
    pub const LONGEST: Duration = Duration::from_millis(10);

    /// Until `frames` frames have come (`None`: however many), or `time` has passed. `None`: it would wait for ever, or
    /// longer than [`LONGEST`](Self::LONGEST).
    pub fn new(frames: Option<u32>, time: Duration) -> Option<Throttle> {
        let bounded = !time.is_zero() && time <= Self::LONGEST;
        bounded.then_some(Throttle { frames, time })
    }

    /// Frames that an interrupt waits for, if their number matters.
    pub fn frames(self) -> Option<u32> {
        self.frames
    }

    /// How long it waits at most.
    pub fn time(self) -> Duration {
        self.time
    }
}

/// An interrupt that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Frames delivered before the first of those that it is for.
    from: u64,
    /// When it is sent at the latest.
    until: Instant,
}

/// One receiver's interrupts under a throttle.
#[derive(Debug)]
pub struct Restraint {
    throttle: Throttle,
    /// Frames delivered, when last published.
    published: u64,
    waiting: Option<Waiting>,
    full: bool,
}

impl Restraint {
    /// A receiver that `delivered` frames were delivered to before.
    pub fn new(throttle: Throttle, delivered: u64) -> Self {
        Restraint { throttle, published: delivered, waiting: None, full: false }
    }

    /// All of the `delivered` frames are published, and `told` is what became of the interrupt for the last of them.
    pub fn publish(&mut self, told: Notified, delivered: u64, now: Instant) {
        let from = std::mem::replace(&mut self.published, delivered);
        match told {
            Notified::Held => {
                self.waiting.get_or_insert(Waiting { from, until: now + self.throttle.time });
            }
            Notified::Sent => self.waiting = None,
            Notified::Nothing | Notified::Suppressed => {}
        }
        self.full &= self.waiting.is_some();
    }

    /// The receiver has no room: what waits is due.
    pub fn full(&mut self) {
        self.full = true;
    }

    /// Until when an interrupt waits.
    pub fn until(&self) -> Option<Instant> {
        self.waiting.map(|waiting| waiting.until)
    }

    /// Whether an interrupt has waited long enough.
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(Waiting { from, until }) = self.waiting else { return false };
        let frames = self.published.saturating_sub(from);
        self.full || now >= until || self.throttle.frames.is_some_and(|enough| frames >= enough.into())
    }

    /// Takes what waits, to be sent. False: nothing does.
    pub fn take(&mut self) -> bool {
        self.full = false;
        self.waiting.take().is_some()
    }
}

#[cfg(test)]
mod tests;
