//! Why a sender's next frame stays in its ring, and the ports that the sender sends to.
//!
//! Waits for full receivers are decided in [`room_wait`](crate::room_wait), waits for flows and
//! queues that move in [`migration_wait`](crate::migration_wait), and waits for a rate in
//! [`rate_limit`](crate::rate_limit).

use std::time::{Duration, Instant};

use switch::PortId;

/// Time after which a sender that has sent to no other port has a sole receiver.
pub const SOLE_AFTER: Duration = Duration::from_secs(1);

/// Why a sender's next frame stays in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A receiver of the same worker is full.
    Receiver {
        /// The receiver's slot.
        slot: usize,
        /// When to drop rather than wait on.
        until: Instant,
    },
    /// Too much is in flight, usually to other workers. Anything that comes back ends the wait.
    InFlight,
    /// The sender has used up its rate, or the egress of its frame is about to change.
    Until(Instant),
}

/// The ports that one sender sends to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Destinations {
    /// The port that it sent to last.
    pub last: Option<PortId>,
    /// When it last sent to another port than before.
    changed: Option<Instant>,
}

impl Destinations {
    /// The sender sends to `port`, and did not before.
    pub fn change(&mut self, port: PortId, now: Instant) {
        if self.last.replace(port).is_some() {
            self.changed = Some(now);
        }
    }

    /// Whether the sender has sent only to its last receiver for a while.
    pub fn is_sole(&self, now: Instant) -> bool {
        self.changed.is_none_or(|at| now.saturating_duration_since(at) >= SOLE_AFTER)
    }
}
