//! A queue pair in the hands of its worker.

use std::sync::Arc;
use std::time::Instant;

use switch::PortId;

use crate::backpressure::BackpressureCredit;
use crate::burst::BURST;
use crate::coalescing::{CoalescingLimits, InterruptCoalescer};
use crate::count::{Counter, QueueCounters};
use crate::loan::Loans;
use crate::migration::Migration;
use crate::parcel::Tickets;
use crate::poll::PollingPolicy;
use crate::port::{Coalescing, GrantPassing, Notified, QueueError, QueuePair};
use crate::topology::QueueId;

/// Called, from a worker, when a queue's peer broke the protocol. It must not block.
pub type OnError = Arc<dyn Fn(u16, QueueError) + Send + Sync>;

/// A pair on its way to a worker.
pub struct Attachment {
    /// Its name from now on.
    pub id: QueueId,
    /// Its port.
    pub port: PortId,
    /// Its index in the port.
    pub index: u16,
    /// The pair.
    pub pair: Box<dyn QueuePair>,
    /// Where its frames are counted.
    pub counters: Arc<QueueCounters>,
    /// Whom to tell when its peer breaks the protocol.
    pub on_error: OnError,
    /// How long its receive interrupts wait; `None`: not at all.
    pub coalescing: Option<CoalescingLimits>,
    /// Its peer broke the protocol before it came here: it is not called any more.
    pub broken: bool,
    /// How its worker waits for it; `None`: as the worker does.
    pub policy: Option<PollingPolicy>,
}

/// How the worker watches a pair's Tx ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// By looking at it, in every pass.
    Polled {
        /// When something was last found.
        found: Instant,
    },
    /// By the peer's signal.
    Armed,
    /// Not at all: the pair is broken or leaving.
    Off,
}

/// Why a sender's next frame stays in its ring for the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A receiver of the same worker is full.
    Receiver {
        /// Its slot.
        slot: usize,
        /// When to drop rather than wait on.
        until: Instant,
    },
    /// Too much is under way, to other workers mostly; something coming back ends the wait.
    Parcels,
    /// The sender has used up its rate, or where its frame goes is about to change.
    Rest {
        /// When it may go on.
        until: Instant,
    },
}

/// How many frames are fetched at a time: a full burst, unless a receiver was found full lately.
/// What it has no room for would be fetched in vain, and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ration {
    /// Grows with each burst that found room, from one.
    pub usual: usize,
    /// For the next burst only: as many as the receiver that was waited for has room for.
    pub room: Option<usize>,
}

impl Default for Ration {
    fn default() -> Self {
        Ration { usual: BURST, room: None }
    }
}

impl Ration {
    /// A burst was carried, all of it or not.
    pub fn carried(&mut self, whole: bool) {
        match (self.room.take(), whole) {
            (_, false) => self.usual = 1,
            // It says nothing of more room than that.
            (Some(_), true) => {}
            (None, true) => self.usual = (2 * self.usual).min(BURST),
        }
    }
}

/// A pair and all that its worker keeps with it.
pub struct Slot {
    /// What was attached.
    pub on: Attachment,
    /// How its Tx ring is watched.
    pub watch: Watch,
    /// Bursts fetched from it that are not finished.
    pub tickets: Tickets,
    /// Its account as a receiver.
    pub backpressure: BackpressureCredit,
    /// Frames that are lent to it.
    pub loans: Loans,
    /// As a sender: what its next frame waits for.
    pub wait: Option<Wait>,
    /// As a sender: how many frames are fetched at a time.
    pub ration: Ration,
    /// As a sender: how many frames such as its last ones a turn has room for.
    pub span: usize,
    /// Frames and bytes that it had received when it was marked.
    pub marked: (u64, u64),
    /// Its receive interrupts, if they have to wait.
    pub restraint: Option<InterruptCoalescer>,
    /// Something was put or completed since the last flush.
    pub dirty: bool,
    /// Routes changed while frames were under way: nothing more is fetched until they are
    /// finished, so that no frame overtakes another on a new way.
    pub settle: bool,
    /// It leaves its worker when it can.
    pub leaving: Option<Migration>,
}

impl Slot {
    /// A pair that has just arrived, and is looked at first thing.
    pub fn new(on: Attachment, now: Instant) -> Self {
        let restraint = on
            .coalescing
            .map(|coalescing| InterruptCoalescer::new(coalescing, on.counters.traffic()));
        let watch = if on.broken { Watch::Off } else { Watch::Polled { found: now } };
        Slot {
            on,
            watch,
            tickets: Tickets::default(),
            backpressure: BackpressureCredit::default(),
            loans: Loans::default(),
            wait: None,
            ration: Ration::default(),
            span: BURST,
            marked: (0, 0),
            restraint,
            dirty: false,
            settle: false,
            leaving: None,
        }
    }

    /// Remembers what it has received so far.
    pub fn mark(&mut self) {
        self.marked = (self.on.counters.rx_frames.get(), self.on.counters.rx_bytes.get());
    }

    /// Frames and bytes that it has received since it was marked.
    pub fn since_mark(&self) -> (u64, u64) {
        let (frames, bytes) = self.marked;
        let count = &self.on.counters;
        (count.rx_frames.get().saturating_sub(frames), count.rx_bytes.get().saturating_sub(bytes))
    }

    /// Whether it may be lent frames.
    #[inline]
    pub fn may_pass(&self) -> bool {
        self.leaving.is_none() && self.loans.may()
    }

    /// How many of the frames that it was lent, oldest first, have come back; and whether it has
    /// fetched them. One that is broken, leaving, or out of time loses them all.
    pub fn returned(&mut self, now: Instant) -> (usize, bool) {
        if !self.is_healthy() || self.goes_home() {
            self.loans.recall();
        } else if !self.loans.is_recalling() {
            let released = self.on.pair.grant_passing().map(GrantPassing::released);
            match released.unwrap_or(Ok(0)) {
                Ok(0) => {}
                Ok(fetched) => return (fetched, true),
                Err(error) => self.fail(error),
            }
        }
        if !self.is_healthy() || self.loans.is_recalled(now) {
            self.loans.recall();
            let revoked = self.on.pair.grant_passing().map(GrantPassing::revoke);
            return (revoked.unwrap_or(0), false);
        }
        (0, true)
    }

    /// Whether nothing more is fetched before something of it that is under way comes back. Its
    /// ring can't be armed then: a signal for what lies there would be spent before anything
    /// could be done about it, and another may never come.
    pub fn is_held_up(&self) -> bool {
        !self.tickets.is_empty() && (!self.tickets.has_room() || self.on.pair.is_full())
    }

    /// Whether the pair may still be called.
    pub fn is_healthy(&self) -> bool {
        self.watch != Watch::Off
    }

    /// The peer broke the protocol: the pair is not called any more, and its port is told.
    pub fn fail(&mut self, error: QueueError) {
        if self.is_healthy() {
            self.watch = Watch::Off;
            self.dirty = false;
            self.restraint = None;
            (self.on.on_error)(self.on.index, error);
        }
    }

    /// Publishes what was put and completed, and interrupts the peer where it wants that; or says
    /// until when its interrupt waits.
    #[inline]
    #[must_use]
    pub fn flush(&mut self, now: Instant) -> Option<Instant> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        let pair = &mut *self.on.pair;
        let deferred = match &self.restraint {
            None => None,
            Some(_) => pair.coalescing().map(Coalescing::flush_deferred),
        };
        let told = deferred.unwrap_or_else(|| pair.flush());
        match told {
            Ok([tx, rx]) => {
                let count = &self.on.counters;
                note(tx, [&count.tx_interrupts, &count.tx_suppressed, &count.rx_deferred]);
                note(rx, [&count.rx_interrupts, &count.rx_suppressed, &count.rx_deferred]);
                if rx != Notified::Nothing {
                    count.rx_bursts.add(1);
                }
                self.restraint.as_mut()?.publish(rx, count.traffic(), now);
                self.tell(now)
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Sends the receive interrupt that waits, if it has waited long enough; or says until when it
    /// does.
    pub fn tell(&mut self, now: Instant) -> Option<Instant> {
        let restraint = self.restraint.as_ref()?;
        if !restraint.is_due(now) {
            return restraint.until();
        }
        self.tell_now();
        None
    }

    /// Sends the receive interrupt that waits, if one does.
    pub fn tell_now(&mut self) {
        if !self.restraint.as_mut().is_some_and(InterruptCoalescer::take) {
            return;
        }
        let interrupt = self.on.pair.coalescing().map(Coalescing::interrupt);
        match interrupt.unwrap_or(Ok(())) {
            Ok(()) => self.on.counters.rx_interrupts.add(1),
            Err(error) => self.fail(error),
        }
    }
}

fn note(what: Notified, [sent, suppressed, held]: [&Counter; 3]) {
    match what {
        Notified::Nothing => {}
        Notified::Sent => sent.add(1),
        Notified::Suppressed => suppressed.add(1),
        Notified::Deferred => held.add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ration_shrinks_at_once_and_grows_again() {
        let mut ration = Ration::default();
        ration.carried(true);
        assert_eq!(ration, Ration { usual: BURST, room: None });
        ration.carried(false);
        assert_eq!(ration, Ration { usual: 1, room: None });
        ration.room = Some(7);
        ration.carried(true);
        assert_eq!(
            ration,
            Ration { usual: 1, room: None },
            "what was known to be there says nothing of more"
        );
        for usual in [2, 4, 8, 16, 32, 64, 64] {
            ration.carried(true);
            assert_eq!(ration, Ration { usual, room: None });
        }
    }
}
