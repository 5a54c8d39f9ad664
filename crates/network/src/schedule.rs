//! How the runtime drives the frame pipeline.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::GrantCopyBatch;
use ring::interrupt_thread::InterruptQueue;
use runtime::fault_meter::FaultMeter;
use runtime::pipeline::{Failed, Wakers};
use runtime::{
    Attached, ClassId, Departure, Doorbell, PendingInterrupts, Pipeline, RunCounters, Served,
    Status, ThreadUsage, Waits,
};
use switch::{PortId, Switch};

use crate::burst::{BURST, Burst};
use crate::capture::tap::{Tap, Taps};
use crate::classifier::Classifier;
use crate::count::WorkerCounters;
use crate::handoff::{Handoff, WorkerChannel};
use crate::partition::Partition;
use crate::passed_grants::Origin;
use crate::pipeline::{Clock, FramePipeline};
use crate::receivers::Receivers;
use crate::route::{Routes, View};
use crate::service::{QUANTUM, Service};
use crate::slot::{Attachment, Leaving, Slot};
use crate::slots::Slots;
use crate::stage_profiler::StageProfiler;
use crate::step::Step;
use crate::topology::Topology;
use crate::wait::Wait;

/// Parts that one worker's pipeline is made of.
pub(crate) struct Parts {
    /// The worker's number.
    pub own: usize,
    pub switch: Arc<Mutex<Switch>>,
    pub counters: Arc<WorkerCounters>,
    pub channels: Vec<Option<WorkerChannel>>,
    pub doorbells: Arc<[Doorbell]>,
    /// The worker's page faults and context switches so far.
    pub usage: fn() -> ThreadUsage,
    /// When seconds begin to be counted.
    pub start: Instant,
    /// The worker's queue to the thread that sends interrupts, if there is one.
    pub interrupt_queue: Option<InterruptQueue>,
}

/// A request to a worker.
pub enum Request {
    /// Starts or stops taking profiles.
    Profile(ProfileRequest),
    /// Changes captures. Taps that are no longer needed go to the sender.
    Capture(CaptureChange, Sender<Leftover>),
}

/// A part of a capture that a worker does not need any more, to be freed elsewhere.
pub struct Leftover(#[allow(dead_code)] Option<Box<Tap>>);

/// A change of a worker's captures.
pub enum CaptureChange {
    /// The tap of the capture with this number; `None`: the capture ends.
    Set(usize, Option<Box<Tap>>),
    /// The port takes part in no capture any more.
    Forget(PortId),
}

/// A request to take profiles from now on, or to stop if `number` is zero.
pub struct ProfileRequest {
    /// The number of the request, which differs from that of the request before.
    pub number: u64,
    /// Dropped when the worker follows the request.
    pub done: Sender<()>,
}

impl FramePipeline {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { own, switch, counters, channels, doorbells, usage, start, interrupt_queue } =
            parts;
        FramePipeline {
            slots: Slots::default(),
            burst: Burst::new(),
            service: Service::default(),
            classifier: Classifier::new(switch),
            routes: Routes::for_worker(own, start),
            receivers: Receivers {
                partition: Partition::default(),
                dirty: Vec::with_capacity(BURST),
                grant_copies: GrantCopyBatch::new(),
                earlier_copies: 0,
                merged: Vec::new(),
                merged_batches: Vec::new(),
                origin: Origin::Batch(0),
                passed: 0,
                outstanding: Vec::new(),
            },
            handoff: Handoff::new(channels, doorbells),
            faults: FaultMeter::new(usage, start),
            interrupts: PendingInterrupts::default(),
            interrupt_queue,
            profiler: StageProfiler::new(Arc::clone(&counters)),
            taps: Taps::default(),
            clock: Clock::new(start),
            counters,
        }
    }

    /// Sends the deferred interrupts that are due.
    #[inline]
    fn fire_interrupts(&mut self) {
        let now = self.clock.now;
        if self.interrupts.is_due(now) {
            let slots = &mut self.slots;
            self.interrupts.fire_due(|at| slots.get_mut(at)?.fire_due(now));
        }
    }

    /// Makes a change of captures. Returns the tap that is not needed any more.
    fn change_captures(&mut self, change: CaptureChange) -> Option<Box<Tap>> {
        let left = match change {
            CaptureChange::Set(number, tap) => self.taps.set(number, tap),
            CaptureChange::Forget(port) => {
                self.taps.forget(port);
                None
            }
        };
        for (_, slot) in self.slots.iter_mut() {
            slot.captures = self.taps.of(slot.on.port);
        }
        left
    }

    /// Ends all waits for the queue in slot `at`, which has left.
    fn forget(&mut self, at: usize) {
        self.receivers.dirty.retain(|&other| other != at);
        self.receivers.outstanding.retain(|&other| other != at);
        for (_, slot) in self.slots.iter_mut() {
            if matches!(slot.sending.wait, Some(Wait::Receiver { slot, .. }) if slot == at) {
                slot.sending.wait = None;
            }
        }
    }
}

impl Pipeline for FramePipeline {
    type Queue = Box<Attachment>;
    type Topology = Topology;
    type Request = Request;

    const QUANTUM: u64 = QUANTUM;

    #[inline]
    fn counters(&self) -> &RunCounters {
        &self.counters.run
    }

    fn started(&mut self) {
        self.interrupt_queue.take().into_iter().for_each(InterruptQueue::install);
    }

    #[inline]
    fn tick(&mut self, now: Instant) {
        self.faults.tick(self.clock.now, now);
        self.clock.tick(now);
    }

    fn attach(&mut self, queue: Box<Attachment>) -> Attached {
        let (class, policy) = (ClassId(queue.port.0.into()), queue.policy);
        let failed = queue.failed;
        let captures = self.taps.of(queue.port);
        let slot = self.slots.insert(Slot { captures, ..Slot::new(*queue) });
        Attached { slot, class, policy, failed }
    }

    fn depart(&mut self, slot: usize, how: Departure) {
        let leaving = match how {
            Departure::Detach => Leaving::Detach,
            Departure::Migrate | Departure::Withdraw => Leaving::Migrate(self.handoff.expected()),
        };
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.leaving = Some(leaving);
        }
    }

    fn is_drained(&self, slot: usize) -> bool {
        let Some(slot) = self.slots.get(slot) else { return true };
        let delivered = match &slot.leaving {
            Some(Leaving::Migrate(expected)) => self.handoff.has_delivered(expected, slot.on.id),
            Some(Leaving::Detach) | None => true,
        };
        delivered && slot.sending.in_flight.is_empty() && slot.receiving.passed.is_empty()
    }

    fn resume(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.leaving = None;
        }
    }

    fn detach(&mut self, at: usize) -> Option<Box<Attachment>> {
        let mut slot = self.slots.remove(at)?;
        // No later round will publish this, nor send an interrupt for it.
        let _ = slot.flush(self.clock.now);
        slot.fire(self.clock.now);
        slot.cancel_reservation();
        self.forget(at);
        Some(Box::new(slot.on))
    }

    fn follow(&mut self, topology: &Topology) {
        let old = std::mem::take(&mut self.routes.ports);
        let view = View { own: self.routes.own, slots: self.slots.by_queue() };
        self.routes.follow(topology, &view, old);
        // Queues with frames in flight complete those first.
        for (_, slot) in self.slots.iter_mut() {
            slot.drain = !slot.sending.in_flight.is_empty();
            slot.follow_restrictions();
        }
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Profile(ProfileRequest { number, done }) => {
                self.profiler.set_request(number, self.burst.heads_watch());
                drop(done);
            }
            Request::Capture(change, left) => {
                // The receiver is gone if the fabric is.
                let _ = left.send(Leftover(self.change_captures(change)));
            }
        }
    }

    #[inline]
    fn begin(&mut self) -> bool {
        self.fire_interrupts();
        self.profiler.mark(Step::Poll);
        let moved = self.exchange();
        moved | self.poll_outstanding()
    }

    #[inline]
    fn serve(&mut self, slot: usize, quantum: u64) -> Served {
        self.carry(slot, quantum)
    }

    #[inline]
    fn end(&mut self) {
        self.publish_merged();
        let now = self.clock.now;
        // Samples are due at least as often as flows are rebalanced: one comparison a round.
        if !self.faults.is_due(now) {
            return;
        }
        self.sample_faults();
        if now >= self.routes.rebalance_at {
            let rebalanced = self.routes.rebalance(now);
            self.counters.rebalanced.add(rebalanced);
        }
    }

    fn status(&self, slot: usize) -> Status {
        self.slots.get(slot).map_or(Status::Failed, Slot::status)
    }

    fn pending(&self, waits: &mut Waits) {
        let now = self.clock.now;
        self.outstanding(now, waits);
        self.handoff.pending(&self.slots, now, waits);
    }

    fn deadline(&self) -> Option<Instant> {
        self.interrupts.next()
    }

    fn has_mail(&self) -> bool {
        self.handoff.has_mail()
    }

    fn arm(&mut self, slot: usize, room: bool) -> Result<bool, Failed> {
        let slot = self.slots.get_mut(slot).filter(|slot| slot.is_healthy()).ok_or(Failed)?;
        slot.on.pair.arm(room).map_err(|error| {
            slot.fail(error);
            Failed
        })
    }

    fn disarm(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot).filter(|slot| slot.is_healthy()) {
            slot.on.pair.disarm();
        }
    }

    fn woken(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.on.counters.kicks.add(1);
        }
        self.disarm(slot);
    }

    fn wakers(&self, slot: usize) -> Wakers<'_> {
        let Some(slot) = self.slots.get(slot) else { return Wakers::default() };
        let pair = &slot.on.pair;
        let [work, room] = pair.wakers();
        Wakers { work, room, room_is_work: pair.has_device_queue(), unmasked: pair.is_unmasked() }
    }

    fn owner(&self, slot: usize) -> Option<String> {
        self.slots.get(slot).map(|slot| format!("port {}", slot.on.name))
    }

    fn sleeping(&mut self, begins: bool) {
        self.profiler.mark(if begins { Step::Poll } else { Step::Sleep });
        if begins {
            self.faults.sleeps(self.clock.now, Instant::now());
        }
    }
}

impl Clock {
    fn new(start: Instant) -> Self {
        Clock { start, now: start, seconds: 1, next_second: start + SECOND }
    }

    #[inline]
    fn tick(&mut self, now: Instant) {
        self.now = now;
        if now >= self.next_second {
            self.count_seconds();
        }
    }

    #[cold]
    fn count_seconds(&mut self) {
        self.seconds = seconds(self.start, self.now);
        self.next_second = self.start + SECOND * self.seconds;
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Whole seconds since the start, from 1.
#[inline]
pub(crate) fn seconds(start: Instant, now: Instant) -> u32 {
    now.saturating_duration_since(start).as_secs() as u32 + 1
}
