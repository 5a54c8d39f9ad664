//! How a queue pair leaves its worker: home, to its port's control thread, or over to another
//! worker.
//!
//! A pair that goes over loses nothing and reorders nothing. Its senders wait meanwhile, on all
//! workers (their routes say [`Egress::Moving`](crate::route::Egress::Moving)), and it fetches nothing
//! itself. It may go when
//!
//! 1. all that it sent has been delivered, and what it was lent is back: nothing of it can overtake
//!    what it sends next;
//! 2. all parcels are delivered that were on their way to this worker when the last sender began to
//!    wait: nothing that is for it comes here any more;
//! 3. it has been at rest for [`LONGEST`], so that its guest, and those that it sent to, have taken
//!    what lies in their rings. For where its flows go next, and who sends to it, may be other
//!    queues of the same guests. Some of those rings are other workers', so what has been taken is
//!    not looked at.
//!
//! All of that has to happen within [`MOST`]. A guest that takes what it is sent as slowly as it
//! may can hold it up for longer: then the pair stays where it is.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::indirection_table::LONGEST;
use crate::port::QueuePair;
use crate::slot::{Attachment, Slot};
use crate::worker::Worker;

/// How long a pair may take to go over.
pub const MOST: Duration = Duration::from_millis(50);

/// Where a pair goes that leaves, and who waits for it.
pub enum Migration {
    /// Home.
    Home(Sender<Box<dyn QueuePair>>),
    /// To another worker.
    Over {
        /// Who takes it there.
        carrier: Sender<Box<Attachment>>,
        /// How many parcels, of each worker, have to be delivered before.
        parcels: Vec<u64>,
        /// The time of the first turn in which nothing was under way any more.
        calm: Option<Instant>,
        /// Since when it has been at rest.
        since: Option<Instant>,
        /// When it has to be gone, or else stays.
        until: Instant,
    },
}

impl Slot {
    /// Whether the pair goes home: nothing is worth waiting for that its peer still has to do.
    pub fn goes_home(&self) -> bool {
        matches!(self.leaving, Some(Migration::Home(_)))
    }
}

impl Worker {
    /// Whether the pair in slot `at`, of which nothing is under way, may leave now.
    pub(crate) fn may_leave(&mut self, at: usize) -> bool {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(at) else { return false };
        let queue = slot.on.id;
        match &mut slot.leaving {
            None => false,
            Some(Migration::Home(_)) => true,
            Some(Migration::Over { parcels, calm, since, .. }) => {
                if !self.crossing.has_received(parcels)
                    || self.crossing.held().any(|parcel| parcel.receiver == queue)
                {
                    return false;
                }
                // The last frames came in this turn, perhaps, and so after its time: rest counts
                // from the next one on.
                if now <= *calm.get_or_insert(now) {
                    return false;
                }
                now.saturating_duration_since(*since.get_or_insert(now)) >= LONGEST
            }
        }
    }

    /// The pair in slot `at` is to go to another worker: it goes if it can, and stays if it could
    /// not for too long.
    pub(crate) fn poll_migration(&mut self, at: usize) {
        self.release(at);
        let late = |migration: &mut Migration| matches!(migration, Migration::Over { until, .. } if *until <= self.now);
        if let Some(slot) = self.slots.get_mut(at)
            && slot.leaving.take_if(late).is_some()
        {
            self.mover = None;
        }
    }

    /// Hands over a pair that has left.
    pub(crate) fn finish_migration(slot: Slot) {
        let broken = !slot.is_healthy();
        // Whoever asked may have given up.
        match slot.leaving {
            Some(Migration::Home(owner)) => drop(owner.send(slot.on.pair)),
            Some(Migration::Over { carrier, .. }) => {
                drop(carrier.send(Box::new(Attachment { broken, ..slot.on })))
            }
            None => {}
        }
    }
}
