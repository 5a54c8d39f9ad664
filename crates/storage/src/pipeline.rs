//! The path of a request through a worker: fetch, check, submit, complete.
//!
//! [`BlockPipeline::carry`] carries out one burst of one queue, in groups: the requests of a group
//! are fetched, then checked, then submitted together. Requests complete whenever the kernel has
//! done with them, in any order ([`BlockPipeline::complete_finished`]).
//!
//! A hostile guest can publish anything. So a request's header is copied once and only the copy is
//! looked at, a queue has a bounded number of requests with the kernel, and the cost of requests is
//! charged to their queue. A queue of a limited disk waits before it fetches
//! ([`limits`](crate::limits)).

use std::sync::Arc;
use std::time::Instant;

use runtime::fault_meter::FaultMeter;
use runtime::{RunCounters, Served, ThreadUsage};
use slab::Slab;

use crate::accept::{Next, begin, parse};
use crate::command::BlockStatus;
use crate::engine::Engine;
use crate::inbox::Inbox;
use crate::limits;
use crate::outcome::{advance, failure, retries};
use crate::queue::QueueError;
use crate::request::{Finished, Request, Returned};
use crate::slot::Slot;

/// The cost that a disk may use of its worker in one round, in the unit of the frame pipeline: the
/// time that copying one byte takes. The share of a port: a full burst of frames as long as an
/// Ethernet's.
pub const QUANTUM: u64 = 64 * (2048 + 1514);

/// Cost of a request besides its bytes.
const CHARGE: u64 = 16 << 10;

/// Bytes of direct requests that cost as much as one copied byte, since the drive moves them.
const DIRECT: u64 = 16;

/// Requests of a group. While the last of them are fetched, the headers of the first come into the
/// cache. In a longer burst, the drive begins with one group while the worker continues with the
/// next, and the guest is told between groups of those that are done.
const GROUP: usize = 16;

/// Requests that a worker carries out itself before the guest is told of them.
const COPIED_TOGETHER: usize = 8;

/// Requests that are kept to be used again.
const POOL: usize = 1024;

/// The block pipeline of one worker. Only the disks and the counters are shared with other threads.
pub struct BlockPipeline {
    pub(crate) slots: Slab<Slot>,
    pub(crate) engine: Box<dyn Engine>,
    /// Requests that are not in use. They may hold the memory and the image of a queue that is
    /// attached, and of no other: the pool is emptied when a queue leaves.
    #[expect(clippy::vec_box, reason = "requests are handed on as boxes, and not moved")]
    pool: Vec<Box<Request>>,
    /// Requests of a group that were fetched and not checked yet; empty between groups.
    #[expect(clippy::vec_box, reason = "requests are handed on as boxes, and not moved")]
    fetched: Vec<Box<Request>>,
    /// Requests whose step is done, while they are completed; empty otherwise.
    finished: Vec<Finished>,
    /// Requests that threads of images return.
    inbox: Arc<Inbox>,
    /// Requests of the inbox, while they are looked at; empty otherwise.
    returned: Vec<Returned>,
    /// Requests whose step this worker has carried out itself; empty between bursts.
    here: Vec<Finished>,
    /// Slots in which requests were completed, while they are published; empty otherwise.
    dirty: Vec<usize>,
    /// Requests that are with the engine.
    pub(crate) in_flight: usize,
    pub(crate) faults: FaultMeter,
    pub(crate) now: Instant,
    pub(crate) run: Arc<RunCounters>,
}

impl BlockPipeline {
    /// The pipeline of one worker. `usage` returns the page faults and context switches of the
    /// worker so far.
    pub fn new(engine: Box<dyn Engine>, usage: fn() -> ThreadUsage) -> Self {
        let now = Instant::now();
        BlockPipeline {
            slots: Slab::new(),
            inbox: Arc::new(Inbox::new(Arc::clone(engine.event()))),
            returned: Vec::new(),
            here: Vec::new(),
            engine,
            pool: Vec::new(),
            fetched: Vec::new(),
            finished: Vec::new(),
            dirty: Vec::new(),
            in_flight: 0,
            faults: FaultMeter::new(usage, now),
            now,
            run: Arc::default(),
        }
    }

    /// Counters of the worker's rounds, valid while the pipeline has the worker to itself.
    pub fn run_counters(&self) -> &Arc<RunCounters> {
        &self.run
    }

    /// Carries out one burst of the queue in slot `at`, at a cost of about `quantum`.
    pub(crate) fn carry(&mut self, at: usize, quantum: u64) -> Served {
        let Some(slot) = self.slots.get_mut(at) else { return Served::default() };
        let room = slot.room();
        let mut served = Served { cost: std::mem::take(&mut slot.debt), ..Served::default() };
        // Requests of which the drive does not know yet.
        let mut unknown = 0;
        self.begin_measuring();
        while served.cost < quantum {
            let more = self.fetch(at, room - served.units as usize, quantum - served.cost);
            let mut fetched = std::mem::take(&mut self.fetched);
            served.units += fetched.len() as u64;
            unknown += fetched.len();
            for request in fetched.drain(..) {
                served.cost += self.check(at, request);
                if self.here.len() >= COPIED_TOGETHER {
                    self.finish_here();
                }
            }
            self.fetched = fetched;
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.fail(at, error);
                    break;
                }
            }
            if unknown >= GROUP {
                unknown = 0;
                served.cost += self.measured(at);
                self.complete_finished();
                self.begin_measuring();
            }
        }
        self.engine.flush();
        self.finish_here();
        served.cost += self.measured(at);
        let Some(slot) = self.slots.get_mut(at).filter(|_| served.units > 0) else { return served };
        slot.flush();
        slot.on.counters.bursts.add(1);
        // The burst ended because of its share, and not because the ring was empty.
        (served.moved, served.more) = (true, served.cost >= quantum);
        served
    }

    /// Step 1: fetches a group of requests that the guest has published: `room` of them at most, at
    /// a cost of about `quantum`. False: the burst ends with this group. An error is the peer's,
    /// after this group.
    fn fetch(&mut self, at: usize, room: usize, quantum: u64) -> Result<bool, QueueError> {
        let Some(slot) = self.slots.get_mut(at) else { return Ok(false) };
        // Requests of a limited disk are checked, and paid for, one by one.
        let one_by_one = slot.limits.is_some() || !slot.on.queue.takes_groups();
        // A queue that failed while an earlier group was published has no room, and is not called.
        let most = room.min(slot.room()).min(if one_by_one { 1 } else { GROUP });
        let mut cost = 0;
        while self.fetched.len() < most && cost < quantum {
            if slot.is_limited(self.now) {
                return Ok(false);
            }
            let mut request = self.pool.pop().unwrap_or_default();
            if !take(slot, &mut request)? {
                self.pool.push(request);
                slot.cancel_reservation();
                return Ok(false);
            }
            request.slot = at;
            cost += CHARGE + request.chain.readable_len() + request.chain.writable_len();
            self.fetched.push(request);
        }
        Ok(most > 0 && room > most)
    }

    fn fail(&mut self, at: usize, error: QueueError) {
        if let Some(slot) = self.slots.get_mut(at) {
            slot.fail(error);
        }
    }

    /// Step 2: parses the request, and checks that it is allowed. Returns its cost. Requests of a
    /// queue that failed since they were fetched are dropped: nobody waits for their answers.
    fn check(&mut self, at: usize, mut request: Box<Request>) -> u64 {
        let Some(slot) = self.slots.get_mut(at).filter(|slot| !slot.on.failed) else { return 0 };
        let next = match parse(slot, &mut request) {
            Ok(command) => begin(slot, &mut request, command, self.now),
            Err(refusal) => {
                slot.on.counters.requests.others.add(1);
                Next::Failed(refusal.status(), refusal.into())
            }
        };
        if slot.limits.is_some() {
            slot.pay(
                self.now,
                if matches!(next, Next::Submit) { limits::bytes(&request) } else { 0 },
            );
        }
        match next {
            Next::Submit => {
                let image = slot.on.disk.image();
                let direct = image.alignment().is_some() && !image.is_in_memory();
                let direct = direct && !slot.on.queue.copies_data();
                let bytes = if direct { request.work.left / DIRECT } else { request.work.left };
                slot.in_flight += 1;
                self.in_flight += 1;
                request.pages = request.chain.pages();
                self.submit(request);
                return CHARGE + bytes;
            }
            Next::Done(len) => self.answer(request, BlockStatus::Ok, len),
            Next::Failed(status, reason) => {
                slot.on.counters.fail(reason);
                self.answer(request, status, 0);
            }
        }
        CHARGE
    }

    /// Step 3: hands the request to the engine, which begins all requests of a burst at once. For a
    /// qcow2 image, the place of the request's bytes is looked up first; if the worker does not
    /// know it, the image's thread finds it.
    fn submit(&mut self, mut request: Box<Request>) {
        if !self.engine.takes_copies()
            && let Some(result) = request.copy_here()
        {
            return self.here.push((request, result));
        }
        if request.find_place() {
            return self.engine.submit(request);
        }
        let image = request.image.clone();
        if let Some(qcow2) = image.as_ref().and_then(|image| image.qcow2()) {
            let inbox = Arc::clone(&self.inbox);
            request.qcow2.inbox = Some(inbox);
            qcow2.ask(request);
        }
    }

    /// Step 4: completes the requests that the kernel has finished. True when there were any.
    pub(crate) fn complete_finished(&mut self) -> bool {
        if self.in_flight == 0 {
            self.engine.release();
            return false;
        }
        if self.engine.has_unsubmitted() {
            self.engine.flush();
        }
        let mut finished = std::mem::take(&mut self.finished);
        self.engine.reap(&mut finished);
        let returned = self.take_returned(&mut finished);
        let moved = returned || !finished.is_empty();
        finished.drain(..).for_each(|finished| self.finish_measured(finished));
        self.finished = finished;
        self.finish_here();
        if moved {
            self.engine.flush();
            self.publish();
        }
        moved
    }

    /// Continues requests whose step was carried out by this worker.
    fn finish_here(&mut self) {
        if self.here.is_empty() {
            return;
        }
        // The time of the copies belongs to these requests.
        self.now = Instant::now();
        while !self.here.is_empty() {
            let mut here = std::mem::take(&mut self.here);
            here.drain(..).for_each(|finished| self.finish(finished));
            if self.here.is_empty() {
                self.here = here;
            }
        }
        self.publish();
    }

    /// Continues requests that threads of images return. True when there were any.
    fn take_returned(&mut self, finished: &mut Vec<Finished>) -> bool {
        if !self.inbox.take(&mut self.returned) {
            return false;
        }
        for mut returned in self.returned.drain(..) {
            let request = returned.request();
            if let Some(slot) = self.slots.get_mut(request.slot) {
                slot.charge_thread(std::mem::take(&mut request.qcow2.thread_ns));
            }
            match returned {
                Returned::Placed(request) => self.engine.submit(request),
                Returned::Done(done) => finished.push(done),
            }
        }
        true
    }

    /// Continues a request whose step is done, with the next step or the answer.
    pub(crate) fn finish(&mut self, (mut request, result): Finished) {
        (request.qcow2.entered, request.qcow2.place) = (None, None);
        let error = match result.and_then(|moved| advance(&mut request, moved)) {
            Ok(false) => return self.submit(request),
            Ok(true) => None,
            Err(errno) if retries(&mut request, errno) => return self.submit(request),
            Err(errno) => {
                request.chain.log_writable();
                Some(errno)
            }
        };
        self.in_flight -= 1;
        // The request of a queue that left is not used again.
        let Some(slot) = self.slots.get_mut(request.slot) else { return };
        slot.in_flight -= 1;
        slot.pages += request.pages;
        if let Some((kind, fetched)) = request.accepted.take() {
            let latency = self.now.saturating_duration_since(fetched);
            slot.on.counters.latency(kind).record(latency);
        }
        let failure = error.map(failure);
        if let Some((_, reason)) = failure {
            slot.on.counters.fail(reason);
        }
        let status = failure.map_or(BlockStatus::Ok, |(status, _)| status);
        let (at, room) = (request.slot, request.room);
        self.answer(request, status, room);
        if !self.dirty.contains(&at) {
            self.dirty.push(at);
        }
    }

    /// Answers a request that has `len` bytes in its buffers before the status byte.
    fn answer(&mut self, request: Box<Request>, status: BlockStatus, len: u32) {
        request.chain.set_status(status as u8);
        if let Some(slot) = self.slots.get_mut(request.slot) {
            slot.complete(request.token, len.saturating_add(1));
        }
        self.recycle(request);
    }

    fn publish(&mut self) {
        while let Some(at) = self.dirty.pop() {
            if let Some(slot) = self.slots.get_mut(at) {
                slot.flush();
            }
        }
    }

    /// Forgets the memory and the images that unused requests hold.
    pub(crate) fn empty_pool(&mut self) {
        self.pool.clear();
    }

    fn recycle(&mut self, mut request: Box<Request>) {
        request.clear();
        if self.pool.len() < POOL {
            self.pool.push(request);
        }
    }
}

/// Takes the next request that the guest has published. False: there is none.
fn take(slot: &mut Slot, request: &mut Request) -> Result<bool, QueueError> {
    let Some(token) = slot.on.queue.take(&mut request.chain)? else { return Ok(false) };
    if !request.chain.split_status() {
        return Err(QueueError::Malformed("a status byte"));
    }
    request.token = token;
    request.room = request.chain.writable_len() as u32;
    Ok(true)
}
