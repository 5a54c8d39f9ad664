//! Receive interrupts that wait until they are worth one.
//!
//! An interrupt costs its guest about what several frames do. Where a port has a [`CoalescingLimits`],
//! frames are published as soon as ever, so that a guest that is awake finds them; only the
//! interrupt waits, until so many frames have come or so much time has passed. It waits only where
//! others are likely to share it, and nobody waits for an answer: a guest to which fewer than
//! [`WORTH`] frames come in that time, or that sends more than half as many itself, is notified at
//! once. Three rules keep a guest from being forgotten:
//!
//! - What one publication found wanted stays wanted until it is sent. A later one need not find it
//!   again: a peer's event index is passed once.
//! - Every wait has an end, at most [`CoalescingLimits::MAX_TIME`] away, and the worker sleeps no longer
//!   than until the first one (see [`crate::pending_interrupts`]).
//! - A receiver that is full is notified at once. It may be asleep, and then posts no buffers before it
//!   is notified.

use std::time::{Duration, Instant};

/// What publishing did about the peer's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// Nothing was published.
    Nothing,
    /// Entries were published, and the peer was interrupted.
    Sent,
    /// Entries were published, and the peer had suppressed interrupts.
    Suppressed,
    /// Entries were published, and the interrupt that the peer expects was not sent yet.
    Deferred,
}

/// Entries that came to a peer, and that it sent, since it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Delivered to it.
    pub received: u64,
    /// Fetched from it.
    pub sent: u64,
}

/// How long a port's receive interrupts wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalescingLimits {
    frames: Option<u32>,
    time: Duration,
}

impl CoalescingLimits {
    /// The longest that an interrupt may wait.
    pub const MAX_TIME: Duration = Duration::from_millis(10);

    /// Until `frames` frames have come (`None`: however many), or `time` has passed. `None`: it
    /// would wait for ever, or longer than [`MAX_TIME`](Self::MAX_TIME).
    pub fn new(frames: Option<u32>, time: Duration) -> Option<CoalescingLimits> {
        let bounded = !time.is_zero() && time <= Self::MAX_TIME;
        bounded.then_some(CoalescingLimits { frames, time })
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

/// Frames within the time of a coalescing from which on an interrupt is worth waiting for.
const WORTH: u32 = 8;

/// How many frames come.
#[derive(Debug)]
struct Load {
    /// When the time began in which they are counted, and what there had been by then.
    since: Option<Instant>,
    from: Traffic,
    /// There were many in the time before.
    before: bool,
}

/// An interrupt that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Frames delivered before the first of those that it is for.
    from: u64,
    /// When it is sent at the latest.
    until: Instant,
}

/// One receiver's interrupts under a coalescing.
#[derive(Debug)]
pub struct InterruptCoalescer {
    coalescing: CoalescingLimits,
    /// What there had been when last published.
    seen: Traffic,
    waiting: Option<Waiting>,
    /// It is not to wait.
    urgent: bool,
    load: Load,
}

impl Load {
    /// Whether many frames have come lately that are not answered one by one: `from` was what there
    /// had been before those of `now`, and `to` is with them.
    fn is_high(
        &mut self,
        CoalescingLimits { frames, time }: CoalescingLimits,
        (from, to): (Traffic, Traffic),
        now: Instant,
    ) -> bool {
        let worth = u64::from(frames.map_or(WORTH, |frames| frames.min(WORTH)));
        let many = |from: Traffic, to: Traffic| {
            let (received, sent) = (to.received - from.received, to.sent - from.sent);
            received >= worth && sent <= received / 2
        };
        let passed = self.since.map(|since| now.saturating_duration_since(since));
        if passed.is_none_or(|passed| passed >= time) {
            // After a longer silence, there were none in the time before.
            self.before = passed.is_some_and(|passed| passed < 2 * time) && many(self.from, from);
            (self.since, self.from) = (Some(now), from);
        }
        self.before || many(self.from, to)
    }
}

impl InterruptCoalescer {
    /// A receiver with so much traffic before.
    pub fn new(coalescing: CoalescingLimits, seen: Traffic) -> Self {
        let load = Load { since: None, from: seen, before: false };
        InterruptCoalescer { coalescing, seen, waiting: None, urgent: false, load }
    }

    /// All frames of the `traffic` up to now are published, and `notified` is what became of the
    /// interrupt for the last of them.
    pub fn publish(&mut self, notified: Notified, traffic: Traffic, now: Instant) {
        let from = self.seen;
        // A frame that could not be copied in the end is counted out again.
        let received = from.received.max(traffic.received);
        self.seen = Traffic { received, sent: from.sent.max(traffic.sent) };
        let many = self.load.is_high(self.coalescing, (from, self.seen), now);
        match notified {
            Notified::Deferred => {
                self.urgent |= !many;
                self.waiting.get_or_insert(Waiting {
                    from: from.received,
                    until: now + self.coalescing.time,
                });
            }
            Notified::Sent => self.waiting = None,
            Notified::Nothing | Notified::Suppressed => {}
        }
        self.urgent &= self.waiting.is_some();
    }

    /// The receiver has no room: what waits is due.
    pub fn full(&mut self) {
        self.urgent = true;
    }

    /// Until when an interrupt waits.
    pub fn until(&self) -> Option<Instant> {
        self.waiting.map(|waiting| waiting.until)
    }

    /// Whether an interrupt has waited long enough.
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(Waiting { from, until }) = self.waiting else { return false };
        let frames = self.seen.received.saturating_sub(from);
        self.urgent
            || now >= until
            || self.coalescing.frames.is_some_and(|enough| frames >= enough.into())
    }

    /// Takes what waits, to be sent. False: nothing does.
    pub fn take(&mut self) -> bool {
        self.urgent = false;
        self.waiting.take().is_some()
    }
}

#[cfg(test)]
mod tests;
