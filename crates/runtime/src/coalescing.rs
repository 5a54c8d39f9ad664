//! Receive interrupts that are deferred until they are worth one.
//!
//! An interrupt costs its guest about as much as several frames do. Where a port has
//! [`CoalescingLimits`], entries are published at once, so that a guest that is awake finds them;
//! only the interrupt is deferred, until so many frames have come or so much time has passed. It is
//! deferred only where others are likely to share it, and where no answer is waited for: a guest to
//! which fewer than [`WORTH`] frames come in that time, or that sends more than half as many
//! itself, is interrupted at once. Three rules keep a guest from being forgotten:
//!
//! - An interrupt that one publication found expected stays pending until it is sent. A later
//!   publication need not find it again: a peer's event index is passed once.
//! - Every deferral has an end, at most [`CoalescingLimits::MAX_TIME`] away, and the worker sleeps
//!   no longer than until the first one (see [`crate::pending_interrupts`]).
//! - A receiver that is full is interrupted at once. It may be asleep, and then posts no buffers
//!   before it is interrupted.

use std::time::{Duration, Instant};

/// The effect of publishing on the peer's interrupt.
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

/// How long a port's receive interrupts are deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalescingLimits {
    frames: Option<u32>,
    time: Duration,
}

impl CoalescingLimits {
    /// The longest that an interrupt may be deferred.
    pub const MAX_TIME: Duration = Duration::from_millis(10);

    /// Until `frames` frames have come (`None`: however many), or `time` has passed. `None`: an
    /// interrupt would be deferred for ever, or longer than [`MAX_TIME`](Self::MAX_TIME).
    pub fn new(frames: Option<u32>, time: Duration) -> Option<CoalescingLimits> {
        let bounded = !time.is_zero() && time <= Self::MAX_TIME;
        bounded.then_some(CoalescingLimits { frames, time })
    }

    /// Frames that end a deferral, if their number matters.
    pub fn frames(self) -> Option<u32> {
        self.frames
    }

    /// How long an interrupt is deferred at most.
    pub fn time(self) -> Duration {
        self.time
    }
}

/// Frames within the time of the limits from which on deferring an interrupt is worth it.
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

/// A pending interrupt.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Frames delivered before the first of those that it is for.
    from: u64,
    /// When it is due at the latest.
    until: Instant,
}

/// One receiver's interrupts under limits.
#[derive(Debug)]
pub struct InterruptCoalescer {
    limits: CoalescingLimits,
    /// The traffic counted at the last publication.
    seen: Traffic,
    pending: Option<Pending>,
    /// An interrupt is due at once.
    urgent: bool,
    load: Load,
}

impl Load {
    /// Whether many frames have come lately that are not answered one by one: `from` was what there
    /// had been before those of `now`, and `to` is with them.
    fn is_high(
        &mut self,
        CoalescingLimits { frames, time }: CoalescingLimits,
        from: Traffic,
        to: Traffic,
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
    pub fn new(limits: CoalescingLimits, seen: Traffic) -> Self {
        let load = Load { since: None, from: seen, before: false };
        InterruptCoalescer { limits, seen, pending: None, urgent: false, load }
    }

    /// All frames of the `traffic` up to now are published, and `notified` is what publishing did
    /// about the interrupt for the last of them.
    pub fn publish(&mut self, notified: Notified, traffic: Traffic, now: Instant) {
        let from = self.seen;
        // A frame that could not be copied in the end is counted out again.
        let received = from.received.max(traffic.received);
        self.seen = Traffic { received, sent: from.sent.max(traffic.sent) };
        let many = self.load.is_high(self.limits, from, self.seen, now);
        match notified {
            Notified::Deferred => {
                self.urgent |= !many;
                self.pending
                    .get_or_insert(Pending { from: from.received, until: now + self.limits.time });
            }
            Notified::Sent => self.pending = None,
            Notified::Nothing | Notified::Suppressed => {}
        }
        self.urgent &= self.pending.is_some();
    }

    /// The receiver has no room: a pending interrupt is due.
    pub fn full(&mut self) {
        self.urgent = true;
    }

    /// When the pending interrupt is due at the latest.
    pub fn until(&self) -> Option<Instant> {
        self.pending.map(|pending| pending.until)
    }

    /// Whether there is an interrupt that is due.
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(Pending { from, until }) = self.pending else { return false };
        let frames = self.seen.received.saturating_sub(from);
        self.urgent
            || now >= until
            || self.limits.frames.is_some_and(|enough| frames >= enough.into())
    }

    /// Takes the pending interrupt, to be sent. False: there is none.
    pub fn take(&mut self) -> bool {
        self.urgent = false;
        self.pending.take().is_some()
    }
}

#[cfg(test)]
mod tests;
