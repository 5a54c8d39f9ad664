//! Two pipelines on one worker.
//!
//! The worker schedules the queues of both alike: their classes share it by deficit round robin, so
//! both pipelines must count cost in the same unit and have the same quantum. Slots, classes and
//! names of queues of the first pipeline become even numbers, those of the second odd ones.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::id::ClassId;
use crate::pipeline::Blocked;
use crate::pipeline::{Attached, Departure, Failed, Pipeline, Served, Status, Waits, Wakers};
use crate::run_counters::RunCounters;

/// A value for either the first or the second pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// For the first pipeline.
    First(A),
    /// For the second pipeline.
    Second(B),
}

/// The topologies of both pipelines.
pub struct Topologies<A, B> {
    pub(crate) first: Arc<A>,
    pub(crate) second: Arc<B>,
}

impl<A: Default, B: Default> Default for Topologies<A, B> {
    fn default() -> Self {
        Topologies { first: Arc::default(), second: Arc::default() }
    }
}

/// Two pipelines on one worker.
pub struct Pair<A, B> {
    first: A,
    second: B,
    /// Reused from sleep to sleep.
    waits: std::cell::RefCell<Waits>,
}

impl<A, B> Pair<A, B> {
    /// The pipelines of one worker. The worker's rounds are counted by the first.
    pub fn new(first: A, second: B) -> Self {
        Pair { first, second, waits: std::cell::RefCell::default() }
    }
}

/// Calls a method of the pipeline that has a slot, with its own number for the slot.
macro_rules! at {
    ($pair:expr, $slot:expr, $pipeline:ident, $own:ident => $call:expr) => {
        if $slot & 1 == 0 {
            let ($pipeline, $own) = (&mut $pair.first, $slot >> 1);
            $call
        } else {
            let ($pipeline, $own) = (&mut $pair.second, $slot >> 1);
            $call
        }
    };
}

impl<A: Pipeline, B: Pipeline> Pipeline for Pair<A, B> {
    type Queue = Either<A::Queue, B::Queue>;
    type Topology = Topologies<A::Topology, B::Topology>;
    type Request = Either<A::Request, B::Request>;

    const QUANTUM: u64 = {
        assert!(A::QUANTUM == B::QUANTUM, "the pipelines of a pair count cost alike");
        A::QUANTUM
    };

    #[inline]
    fn counters(&self) -> &RunCounters {
        self.first.counters()
    }

    fn started(&mut self) {
        self.first.started();
        self.second.started();
    }

    #[inline]
    fn tick(&mut self, now: Instant) {
        self.first.tick(now);
        self.second.tick(now);
    }

    fn attach(&mut self, queue: Self::Queue) -> Attached {
        let (attached, number) = match queue {
            Either::First(queue) => (self.first.attach(queue), 0),
            Either::Second(queue) => (self.second.attach(queue), 1),
        };
        let class = ClassId(attached.class.0 << 1 | number);
        Attached { slot: attached.slot << 1 | number as usize, class, ..attached }
    }

    fn depart(&mut self, slot: usize, how: Departure) {
        at!(self, slot, pipeline, own => pipeline.depart(own, how));
    }

    fn is_drained(&self, slot: usize) -> bool {
        match slot & 1 {
            0 => self.first.is_drained(slot >> 1),
            _ => self.second.is_drained(slot >> 1),
        }
    }

    fn resume(&mut self, slot: usize) {
        at!(self, slot, pipeline, own => pipeline.resume(own));
    }

    fn detach(&mut self, slot: usize) -> Option<Self::Queue> {
        match slot & 1 {
            0 => self.first.detach(slot >> 1).map(Either::First),
            _ => self.second.detach(slot >> 1).map(Either::Second),
        }
    }

    fn follow(&mut self, topology: &Self::Topology) {
        self.first.follow(&topology.first);
        self.second.follow(&topology.second);
    }

    fn request(&mut self, request: Self::Request) {
        match request {
            Either::First(request) => self.first.request(request),
            Either::Second(request) => self.second.request(request),
        }
    }

    #[inline]
    fn begin(&mut self) -> bool {
        self.first.begin() | self.second.begin()
    }

    #[inline]
    fn serve(&mut self, slot: usize, quantum: u64) -> Served {
        at!(self, slot, pipeline, own => pipeline.serve(own, quantum))
    }

    #[inline]
    fn end(&mut self) {
        self.first.end();
        self.second.end();
    }

    fn status(&self, slot: usize) -> Status {
        let own = slot >> 1;
        let (status, number) = match slot & 1 {
            0 => (self.first.status(own), 0),
            _ => (self.second.status(own), 1),
        };
        match status {
            Status::Blocked(Blocked { room: Some(room), until }) => {
                Status::Blocked(Blocked { room: Some(room << 1 | number), until })
            }
            other => other,
        }
    }

    fn pending(&self, waits: &mut Waits) {
        let mut own = self.waits.borrow_mut();
        own.clear();
        self.first.pending(&mut own);
        own.rooms.drain(..).for_each(|room| waits.rooms.push(room << 1));
        self.second.pending(&mut own);
        own.rooms.drain(..).for_each(|room| waits.rooms.push(room << 1 | 1));
        waits.until = waits.until.into_iter().chain(own.until).min();
    }

    fn deadline(&self) -> Option<Instant> {
        self.first.deadline().into_iter().chain(self.second.deadline()).min()
    }

    fn has_mail(&self) -> bool {
        self.first.has_mail() || self.second.has_mail()
    }

    fn arm(&mut self, slot: usize, room: bool) -> Result<bool, Failed> {
        at!(self, slot, pipeline, own => pipeline.arm(own, room))
    }

    fn disarm(&mut self, slot: usize) {
        at!(self, slot, pipeline, own => pipeline.disarm(own));
    }

    fn woken(&mut self, slot: usize) {
        at!(self, slot, pipeline, own => pipeline.woken(own));
    }

    fn wakers(&self, slot: usize) -> Wakers<'_> {
        match slot & 1 {
            0 => self.first.wakers(slot >> 1),
            _ => self.second.wakers(slot >> 1),
        }
    }

    fn owner(&self, slot: usize) -> Option<String> {
        match slot & 1 {
            0 => self.first.owner(slot >> 1),
            _ => self.second.owner(slot >> 1),
        }
    }

    /// The first pipeline has none of its own.
    fn completions(&self) -> Option<BorrowedFd<'_>> {
        debug_assert!(self.first.completions().is_none());
        self.second.completions()
    }

    fn sleeping(&mut self, begins: bool) {
        self.first.sleeping(begins);
        self.second.sleeping(begins);
    }
}
