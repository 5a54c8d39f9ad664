//! A queue pair and all that its worker keeps with it.
//!
//! Each kind of state belongs to the type that changes it: bursts in flight, the credit of a
//! receiver, passed grants, the limit of a burst, deferred interrupts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::Violation;
use runtime::coalescing::{CoalescingLimits, InterruptCoalescer, Notified};
use runtime::pipeline::COST_PER_NS;
use runtime::poll::PollingPolicy;
use runtime::{Blocked, QueueId, Status};
use switch::PortId;

use crate::backpressure::Backpressure;
use crate::burst::Frames;
use crate::burst_limit::BurstLimit;
use crate::capture::tap::Captures;
use crate::count::{DropReason, QueueCounters};
use crate::in_flight::InFlightBursts;
use crate::passed_grants::PassedGrants;
use crate::poll_interval::PollInterval;
use crate::port::{Coalescing, QueueError, QueuePair, RxProgress};
use crate::port_accounts::PortAccounts;
use crate::receive_debt::ReceiveDebt;
use crate::restricted::Restricted;
use crate::restrictions::{Reservation, RestrictionsCell};
use crate::wait::{Destinations, Wait};

/// Called, from a worker, when a queue's peer broke the protocol. It must not block.
pub type OnError = Arc<dyn Fn(u16, QueueError) + Send + Sync>;

/// A pair on its way to a worker.
pub struct Attachment {
    /// The queue's id while it is attached.
    pub id: QueueId,
    /// Its port.
    pub port: PortId,
    /// The port's name, for the log.
    pub name: Arc<str>,
    /// Its index in the port.
    pub index: u16,
    /// The pair.
    pub pair: Box<dyn QueuePair>,
    /// Where its frames are counted.
    pub counters: Arc<QueueCounters>,
    /// The callback for a peer that breaks the protocol.
    pub on_error: OnError,
    /// How long its receive interrupts are deferred; `None`: not at all.
    pub coalescing: Option<CoalescingLimits>,
    /// The restrictions of the queue's port.
    pub restrictions: Arc<RestrictionsCell>,
    /// Its peer broke the protocol: the pair is not called any more.
    pub failed: bool,
    /// The port's accounts.
    pub accounts: PortAccounts,
    /// How its worker waits for it; `None`: as the worker does for others.
    pub policy: Option<PollingPolicy>,
}

/// How a pair leaves its worker.
pub enum Leaving {
    /// Back to its port.
    Detach,
    /// To another worker, once this number of batches from each worker has been delivered here.
    Migrate(Vec<u64>),
}

/// A pair as a sender.
#[derive(Default)]
pub struct Sending {
    /// Bursts fetched from it that are not complete.
    pub in_flight: InFlightBursts,
    /// The ports that it sends to.
    pub destinations: Destinations,
    /// The wait that the queue's next frame is in.
    pub wait: Option<Wait>,
    /// Room that the next frame has taken in the limits of its port.
    pub reserved: Option<Reservation>,
    /// Batches in which frames of it are in the [backlog](crate::backlog).
    pub backlog: usize,
    /// How many frames are fetched at a time.
    pub limit: BurstLimit,
    /// Cost of work done for the queue elsewhere, which is charged with its next burst.
    pub debt: u64,
}

/// A pair as a receiver.
pub struct Receiving {
    /// How long its senders may wait for it.
    pub backpressure: Backpressure,
    /// Frames that were passed to it and that it has not fetched yet.
    pub passed: PassedGrants,
    /// Work done for the frames put last beyond the usual cost of frames: segments, checksums.
    pub added: u64,
    /// Debt for the excess cost of its buffers.
    pub debt: ReceiveDebt,
    /// Its interrupts, if they are deferred.
    pub coalescer: Option<InterruptCoalescer>,
    /// Frames and bytes that it had received when a profiler marked it.
    pub marked: (u64, u64),
}

/// A pair and all that its worker keeps with it.
pub struct Slot {
    /// The attached queue pair.
    pub on: Attachment,
    /// The queue's state as a sender.
    pub sending: Sending,
    /// The queue's state as a receiver.
    pub receiving: Receiving,
    /// Something was put or completed since the last flush.
    pub dirty: bool,
    /// Routes changed while frames were in flight: nothing more is fetched until they are
    /// complete, so that no frame overtakes another on a new route.
    pub drain: bool,
    /// How often it is polled; `None`: its peer signals.
    pub unsignalled: Option<PollInterval>,
    /// The queue is about to leave its worker.
    pub leaving: Option<Leaving>,
    /// The restrictions of the queue's port; `None`: nothing.
    pub restrictions: Option<Restricted>,
    /// The captures that its port takes part in.
    pub captures: Captures,
}

impl Receiving {
    fn new(on: &Attachment) -> Self {
        let PortAccounts { wait, passing, debt, .. } = on.accounts.clone();
        let coalescer = |limits| InterruptCoalescer::new(limits, on.counters.traffic());
        Receiving {
            backpressure: Backpressure::new(wait, Arc::clone(&on.counters)),
            passed: PassedGrants::new(passing),
            added: 0,
            debt: ReceiveDebt::new(debt),
            coalescer: on.coalescing.map(coalescer),
            marked: (0, 0),
        }
    }
}

impl Slot {
    /// A pair that has just arrived.
    pub fn new(on: Attachment) -> Self {
        Slot {
            sending: Sending::default(),
            receiving: Receiving::new(&on),
            dirty: false,
            drain: false,
            unsignalled: on.pair.is_unsignalled().then(PollInterval::default),
            leaving: None,
            restrictions: on.restrictions.get().map(Restricted::new),
            captures: 0,
            on,
        }
    }

    /// Whether the pair may still be called.
    #[inline]
    pub fn is_healthy(&self) -> bool {
        !self.on.failed
    }

    /// How far the peer has taken what lies in its Rx ring. `None`: nothing lies there, because the
    /// pair has no ring or is not called any more.
    pub fn rx_progress(&self) -> Option<&dyn RxProgress> {
        if self.is_healthy() { self.on.pair.rx_progress() } else { None }
    }

    /// The peer broke the protocol: the pair is not called any more, and its port is told.
    #[cold]
    pub fn fail(&mut self, error: QueueError) {
        if self.is_healthy() {
            self.on.failed = true;
            self.dirty = false;
            self.receiving.coalescer = None;
            (self.on.on_error)(self.on.index, error);
        }
    }

    /// Whether a burst may be fetched now.
    #[inline]
    pub fn may_start(&mut self) -> bool {
        if self.drain && self.sending.in_flight.is_empty() {
            self.drain = false;
        }
        self.is_healthy()
            && self.leaving.is_none()
            && !self.drain
            && self.sending.backlog == 0
            && self.sending.in_flight.has_room()
    }

    /// Whether frames may be passed to it.
    #[inline]
    pub fn may_pass(&self) -> bool {
        self.leaving.is_none() && self.receiving.passed.may_pass()
    }

    /// Whether nothing more can be fetched before something in flight comes back. The ring must not
    /// be armed in this state: a signal would be used up before its frames could be fetched, and
    /// another one may never come.
    fn is_blocked(&self) -> bool {
        !self.sending.in_flight.is_empty()
            && (self.sending.backlog > 0
                || !self.sending.in_flight.has_room()
                || self.on.pair.is_full())
    }

    /// Counts a burst that the queue sent, of which `finished` frames are finished.
    #[inline]
    pub(crate) fn sent(&mut self, finished: usize, bytes: u64) {
        if finished > 0 {
            self.sending.wait = None;
            self.on.counters.tx.frames.add(finished as u64);
            self.on.counters.tx.bytes.add(bytes);
            self.on.counters.tx.bursts.add(1);
            if let Some(interval) = &mut self.unsignalled {
                interval.reset();
            }
        }
    }

    /// Charges the receiver for the pieces that its frames were put into since the last time.
    #[inline]
    pub(crate) fn charge_pieces(&mut self, now: Instant) {
        if !self.is_healthy() {
            return;
        }
        let pieces = self.on.pair.take_extra_pieces();
        if pieces > 0 {
            self.receiving.debt.charge(pieces, &self.on.counters, now);
        }
    }

    /// Drops frames while the receiver is in debt. Returns how many.
    #[cold]
    pub(crate) fn pay_off(&mut self, frames: Frames<'_>, now: Instant) -> usize {
        let dropped = self.receiving.debt.pay_off(frames.iter(), now);
        self.on.counters.lose(DropReason::RxCostly, dropped as u64);
        dropped
    }

    /// Whether the port waits for the cost of its page faults. If so, the queue waits as well.
    #[inline]
    pub(crate) fn must_wait_for_faults(&mut self, now: Instant) -> bool {
        self.on.accounts.fault_wait.is_on() && self.wait_for_faults(now)
    }

    #[cold]
    fn wait_for_faults(&mut self, now: Instant) -> bool {
        let until = self.on.accounts.fault_wait.until(now);
        if until.is_some() {
            self.sending.wait = until.map(Wait::Until);
            self.on.counters.fault_waits.add(1);
        }
        until.is_some()
    }

    /// Makes the port wait for `cost`, the [cost](crate::fault_wait::wait_cost) of page faults of
    /// frames that the queue sent.
    #[cold]
    pub(crate) fn charge_fault_wait(&mut self, cost: u64, now: Instant) {
        self.on.accounts.fault_wait.charge(cost, now);
        self.sending.limit.estimate = 1;
    }

    /// Why nothing was fetched.
    pub fn status(&self) -> Status {
        if !self.is_healthy() {
            return Status::Failed;
        }
        match self.sending.wait {
            Some(Wait::Receiver { slot, until }) => {
                Status::Blocked(Blocked { room: Some(slot), until: Some(until) })
            }
            Some(Wait::Until(until)) => Status::Blocked(Blocked { room: None, until: Some(until) }),
            Some(Wait::InFlight) => Status::Blocked(Blocked::default()),
            None if self.drain || self.is_blocked() => Status::Blocked(Blocked::default()),
            None => Status::Idle,
        }
    }

    /// Publishes what was put and completed, and interrupts the peer where it expects that. Returns
    /// until when its interrupt is deferred, if it is.
    #[inline]
    #[must_use]
    pub fn flush(&mut self, now: Instant) -> Option<Instant> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        let pair = &mut *self.on.pair;
        let deferred = match &self.receiving.coalescer {
            None => None,
            Some(_) => pair.coalescing().map(Coalescing::flush_deferred),
        };
        match deferred.unwrap_or_else(|| pair.flush()) {
            Ok([tx, rx]) => {
                let count = &self.on.counters;
                count.tx.note(tx);
                count.rx.note(rx);
                if rx != Notified::Nothing {
                    count.rx.bursts.add(1);
                }
                if tx == Notified::Sent || rx == Notified::Sent {
                    self.charge_signals(now);
                }
                self.receiving.coalescer.as_mut()?.publish(rx, self.on.counters.traffic(), now);
                self.fire_due(now)
            }
            Err(error) => {
                self.charge_signals(now);
                self.fail(error);
                None
            }
        }
    }

    /// Sends the deferred receive interrupt if it is due. Returns until when it is deferred
    /// otherwise.
    pub fn fire_due(&mut self, now: Instant) -> Option<Instant> {
        let coalescer = self.receiving.coalescer.as_ref()?;
        if !coalescer.is_due(now) {
            return coalescer.until();
        }
        self.fire(now);
        None
    }

    /// Sends the receive interrupt that is deferred, if one is.
    pub fn fire(&mut self, now: Instant) {
        if !self.receiving.coalescer.as_mut().is_some_and(InterruptCoalescer::take) {
            return;
        }
        let interrupt = self.on.pair.coalescing().map(Coalescing::interrupt);
        self.charge_signals(now);
        match interrupt.unwrap_or(Ok(())) {
            Ok(()) => self.on.counters.rx.interrupts.add(1),
            Err(error) => self.fail(error),
        }
    }

    /// Charges the port for those of the interrupts just sent that were slow.
    #[inline]
    pub(crate) fn charge_signals(&mut self, now: Instant) {
        let spent = ring::interrupt::take_slow();
        if spent > 0 {
            self.charge_slow_signals(spent, now);
        }
    }

    /// Charges slow interrupts to the port's share of sending, and to its account of slow
    /// interrupts. A port with too many is stopped. Frames to the port are not dropped: a single
    /// interrupt is also slow when the host gives the CPU to others meanwhile.
    #[cold]
    fn charge_slow_signals(&mut self, nanoseconds: u64, now: Instant) {
        let cost = nanoseconds.saturating_mul(COST_PER_NS);
        self.sending.debt = self.sending.debt.saturating_add(cost);
        self.on.counters.slow_interrupts.add(1);
        if !self.on.accounts.slow_signals.allows(Duration::from_nanos(nanoseconds), now) {
            self.fail(Violation::SlowInterrupt.into());
        }
    }
}
