//! How a queue leaves its worker: back to the control side, or to another worker.
//!
//! A queue that migrates loses nothing and reorders nothing. Its senders wait meanwhile, on all
//! workers (the topology says so), and it fetches nothing itself. The queue may leave when
//!
//! 1. its pipeline has drained it: all that it sent has been completed, and all that was on its
//!    way to it when the last sender began to wait has been delivered;
//! 2. it has been at rest for [`QUIESCENCE`] after that, so that its peer, and the peers that it
//!    sent to, have consumed what lies in their rings. This keeps flows in order: after the move,
//!    they may use other queues of the same peers. A fixed time is used because some of those rings
//!    belong to other workers, so their progress cannot be read here.
//!
//! A queue that is withdrawn for another process does not rest: all queues leave together, and the
//! other process continues from what lies in their rings.
//!
//! All of that has to happen within [`TIMEOUT`]. A peer that consumes as slowly as it may can
//! prevent it: then the queue stays where it is.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::pipeline::{Departure, Pipeline};

/// How long a queue may take to leave for another worker.
pub const TIMEOUT: Duration = Duration::from_millis(50);

/// How long a queue that migrates rests before it leaves.
pub const QUIESCENCE: Duration = Duration::from_millis(10);

/// A queue that is about to leave.
pub(crate) struct Departing<P: Pipeline> {
    pub slot: usize,
    pub how: Departure,
    /// Takes the queue.
    owner: Sender<P::Queue>,
    /// When the migration is called off.
    until: Instant,
    rest: Rest,
}

/// How long a queue that migrates has been at rest.
enum Rest {
    /// Something was under way when last looked.
    Draining,
    /// Nothing was in flight in the round that began at this time. The last frames may have come in
    /// that round, after its time was taken, so rest counts from the next round on.
    Drained(Instant),
    /// At rest since then.
    Since(Instant),
}

/// The next action for a departing queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait.
    Wait,
    /// Let it go.
    Detach,
    /// Keep it: it took too long.
    Stay,
}

impl<P: Pipeline> Departing<P> {
    pub fn new(slot: usize, how: Departure, owner: Sender<P::Queue>, now: Instant) -> Self {
        Departing { slot, how, owner, until: now + TIMEOUT, rest: Rest::Draining }
    }

    /// The next action; `drained`: nothing of the queue is in flight.
    pub fn poll(&mut self, drained: bool, now: Instant) -> Next {
        let ready = match self.how {
            Departure::Detach | Departure::Withdraw => drained,
            Departure::Migrate => drained && self.has_quiesced(now),
        };
        match ready {
            true => Next::Detach,
            false if self.how != Departure::Detach && self.until <= now => Next::Stay,
            false => Next::Wait,
        }
    }

    fn has_quiesced(&mut self, now: Instant) -> bool {
        match self.rest {
            Rest::Draining => self.rest = Rest::Drained(now),
            Rest::Drained(round) if now > round => self.rest = Rest::Since(now),
            Rest::Drained(_) => {}
            Rest::Since(since) => return now.saturating_duration_since(since) >= QUIESCENCE,
        }
        false
    }

    /// Hands the queue over.
    pub fn finish(self, queue: Option<P::Queue>) {
        if let Some(queue) = queue {
            // The receiver may have given up.
            let _ = self.owner.send(queue);
        }
    }
}
