//! Interrupt coalescing: receive interrupts are deferred until several frames share one.
//!
//! An interrupt costs its guest about as much as several frames do. Where a port has
//! [`CoalescingLimits`], entries are published at once, so that a guest that is awake finds them.
//! Only the interrupt is deferred, until a number of frames have come or a time has passed. An
//! interrupt is deferred only where more frames are likely to share it, and where the peer is not
//! waiting for an answer: a guest to which fewer than [`WORTH`] frames come in that time, or that
//! sends more than half as many frames as it receives, is interrupted at once. Three rules keep a
//! guest from being forgotten:
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

/// Entries delivered to a peer and fetched from it, since it was attached.
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

    /// Limits that defer an interrupt until `frames` frames have come (`None`: any number) or
    /// `time` has passed. Returns `None` if an interrupt would be deferred for ever, or for longer
    /// than [`MAX_TIME`](Self::MAX_TIME).
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

/// The least number of frames within the time of the limits that makes deferring worthwhile.
const WORTH: u32 = 8;

/// A measure of how many frames come.
#[derive(Debug)]
struct Load {
    /// Start of the present counting period, and the traffic counted before it.
    since: Option<Instant>,
    from: Traffic,
    /// Many frames came in the period before.
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
    /// Whether many frames have come lately without being answered one by one. `from` is the
    /// traffic before the frames of `now`, and `to` includes them.
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
            // After a longer silence, no frames came in the period before.
            self.before = passed.is_some_and(|passed| passed < 2 * time) && many(self.from, from);
            (self.since, self.from) = (Some(now), from);
        }
        self.before || many(self.from, to)
    }
}

impl InterruptCoalescer {
    /// A coalescer for a receiver whose traffic so far is `seen`.
    pub fn new(limits: CoalescingLimits, seen: Traffic) -> Self {
        let load = Load { since: None, from: seen, before: false };
        InterruptCoalescer { limits, seen, pending: None, urgent: false, load }
    }

    /// All frames of the `traffic` up to now are published, and `notified` is what publishing did
    /// about the interrupt for the last of them.
    pub fn publish(&mut self, notified: Notified, traffic: Traffic, now: Instant) {
        let from = self.seen;
        // The count goes down where a frame could not be copied in the end.
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
