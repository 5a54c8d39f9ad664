//! Frames that are handed off from one worker to another.
//!
//! A batch carries heads and scatter lists, never payload: the receiving worker makes the one copy,
//! out of the sender's buffers, and sends the batch back. Only then does the sending worker
//! complete the frames, so the sender's ring stays in order and its memory stays pinned. Batches
//! are recycled; a worker has a bounded number of them, and frames that find none wait in their
//! sender's ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::{Blocked, Doorbell, QueueId, Waits};
use switch::PortId;

use crate::backpressure::Waiting;
use crate::slots::Slots;
use crate::topology::QueueLocation;

mod batch;
mod channel;
mod ring_probe;

pub use batch::HandoffBatch;
use batch::MAX_BATCHES;
pub use channel::{WorkerChannel, channels};
pub use ring_probe::{RingAnswer, RingProbe};

/// Interval at which a worker looks for room for a blocked batch.
const ROOM_INTERVAL: Duration = Duration::from_micros(50);

/// One worker's side of all hand-offs.
pub struct Handoff {
    channels: Vec<Option<WorkerChannel>>,
    doorbells: Arc<[Doorbell]>,
    own: OwnBatches,
    /// For each other worker, the batch whose receiver is full. The batches behind it wait, to keep
    /// their order.
    blocked: Vec<Option<Box<HandoffBatch>>>,
    /// Batches of others that are delivered, but for passed frames that are outstanding; with the
    /// workers that they came from.
    #[allow(clippy::vec_box)]
    outstanding: Vec<(usize, Box<HandoffBatch>)>,
    /// The backlog: own batches for full receivers of this worker.
    backlog: VecDeque<Box<HandoffBatch>>,
    /// Batches of the backlog that are delivered.
    #[allow(clippy::vec_box)]
    finished: Vec<Box<HandoffBatch>>,
    /// How many batches have come in, and from each worker.
    received: u64,
    received_from: Vec<u64>,
}

/// The batches of one worker.
#[derive(Default)]
struct OwnBatches {
    // Boxed, because a batch moves between threads as a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<HandoffBatch>>,
    made: usize,
    /// How many have been sent.
    sent: u64,
    /// Batches that are not back.
    out: Vec<OutBatch>,
    /// The batches of the present burst, with the workers that they are for.
    open: Vec<(usize, Box<HandoffBatch>)>,
}

/// An own batch that is not back.
struct OutBatch {
    /// Its number.
    number: u64,
    /// The queue that it is for.
    receiver: QueueId,
    /// The port that its frames came from.
    sender: PortId,
}

impl Handoff {
    /// Over the channels of one worker.
    pub fn new(channels: Vec<Option<WorkerChannel>>, doorbells: Arc<[Doorbell]>) -> Self {
        Handoff {
            own: OwnBatches::default(),
            blocked: channels.iter().map(|_| None).collect(),
            outstanding: Vec::new(),
            backlog: VecDeque::with_capacity(MAX_BATCHES),
            finished: Vec::with_capacity(MAX_BATCHES),
            received: 0,
            received_from: vec![0; channels.len()],
            channels,
            doorbells,
        }
    }

    /// How many workers there are.
    #[inline]
    pub fn workers(&self) -> usize {
        self.channels.len()
    }

    /// The batch of the present burst for the queue at `location`, with room for one more frame;
    /// `None` when the sender's port `port` already has its share of batches in flight.
    pub fn batch_for(
        &mut self,
        location: QueueLocation,
        port: PortId,
        sender: QueueId,
        burst: u64,
    ) -> Option<&mut HandoffBatch> {
        self.own.open(location, port, sender, burst)
    }

    /// Whether the present burst can have a batch for each of `receivers` queues.
    pub fn has_room(&self, port: PortId, receivers: usize) -> bool {
        self.own.has_share_for(port, receivers)
    }

    /// How many batches of the present burst are for `worker`.
    pub fn opened_for(&self, worker: usize) -> usize {
        self.own.open.iter().filter(|(to, _)| *to == worker).count()
    }

    /// Whether the present burst has no batches.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.own.open.is_empty()
    }

    /// The batches of the present burst.
    pub fn open(&mut self) -> impl Iterator<Item = &mut HandoffBatch> {
        self.own.open.iter_mut().map(|(_, batch)| &mut **batch)
    }

    /// Sends the batches of the present burst, and tells `sent` how many frames each has. Returns
    /// how many there were.
    #[cold]
    pub fn send_open(&mut self, mut sent: impl FnMut(usize)) -> usize {
        let mut count = 0;
        for (worker, mut batch) in self.own.open.drain(..) {
            let frames = batch.burst.frames().len();
            let channel = self.channels.get_mut(worker).and_then(Option::as_mut);
            let Some(channel) = channel else {
                self.received += 1;
                (batch.number, batch.passed) = (self.received, 0);
                self.backlog.push_back(batch);
                count += 1;
                continue;
            };
            // A channel holds as many batches as a worker has, so there is room.
            if channel.out.push(batch).is_ok() {
                sent(frames);
                self.doorbells[worker].ring();
                count += 1;
            }
        }
        count
    }

    /// Asks the worker at `location` about the ring of the queue there. Returns the number of the
    /// batch that asks; `None`: the receiver's port has its share of batches in flight.
    #[cold]
    pub fn probe(&mut self, location: QueueLocation, probe: RingProbe) -> Option<u64> {
        let channel = self.channels.get_mut(location.worker)?.as_mut()?;
        let mut batch = self.own.take(location.queue, probe.port)?;
        batch.probe = Some(probe);
        let number = batch.sent;
        // As in `send_open`, there is room.
        if channel.out.push(batch).is_ok() {
            self.doorbells[location.worker].ring();
        }
        Some(number)
    }

    /// The next batch from `worker` to deliver here: first the one that is blocked.
    #[inline]
    pub fn receive(&mut self, worker: usize) -> Option<Box<HandoffBatch>> {
        if let Some(blocked) = self.blocked[worker].take() {
            return Some(blocked);
        }
        let mut batch = self.channels[worker].as_mut()?.inbox.pop().ok()?;
        self.received += 1;
        self.received_from[worker] += 1;
        (batch.number, batch.passed) = (self.received, 0);
        Some(batch)
    }

    /// Who waits while a batch from `worker` waits for its receiver: only batches of the same
    /// queues, or also others behind it.
    pub fn waiting(&mut self, worker: usize, batch: &HandoffBatch) -> Waiting {
        let Some(channel) = self.channels[worker].as_mut() else { return Waiting::Shared };
        let Ok(behind) = channel.inbox.read_chunk(channel.inbox.slots()) else {
            return Waiting::Shared;
        };
        let (first, second) = behind.as_slices();
        let same =
            |other: &HandoffBatch| (other.sender, other.receiver) == (batch.sender, batch.receiver);
        if first.iter().chain(second).all(|other| same(other)) {
            Waiting::Sole
        } else {
            Waiting::Shared
        }
    }

    /// How many batches are in the backlog.
    #[inline]
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// Takes the batch out of the backlog that was tried least recently.
    pub fn pop_backlog(&mut self) -> Option<Box<HandoffBatch>> {
        self.backlog.pop_front()
    }

    /// Puts a batch into the backlog again.
    pub fn push_backlog(&mut self, batch: Box<HandoffBatch>) {
        self.backlog.push_back(batch);
    }

    /// Keeps a batch whose receiver is full, to go on with it later.
    pub fn block(&mut self, worker: usize, batch: Box<HandoffBatch>) {
        self.blocked[worker] = Some(batch);
    }

    /// Gives a delivered batch back to `worker`, or keeps it as long as passed frames of it are
    /// outstanding.
    #[inline]
    pub fn delivered(&mut self, worker: usize, batch: Box<HandoffBatch>) {
        if batch.passed > 0 {
            self.outstanding.push((worker, batch));
        } else {
            self.give_back(worker, batch);
        }
    }

    /// The number of batches from each worker, including those that are on their way now.
    pub fn expected(&self) -> Vec<u64> {
        let waiting = |channel: &Option<WorkerChannel>| {
            channel.as_ref().map_or(0, |channel| channel.inbox.slots() as u64)
        };
        let all = self.received_from.iter().zip(&self.channels);
        all.map(|(received, channel)| received + waiting(channel)).collect()
    }

    /// Whether the expected number of batches has come from each worker, and none for `queue` is
    /// blocked.
    pub fn has_delivered(&self, expected: &[u64], queue: QueueId) -> bool {
        self.received_from.iter().zip(expected).all(|(received, expected)| received >= expected)
            && !self.undelivered().any(|batch| batch.receiver == queue)
    }

    /// Batches that wait for full receivers.
    fn undelivered(&self) -> impl Iterator<Item = &HandoffBatch> {
        self.blocked.iter().flatten().chain(&self.backlog).map(|batch| &**batch)
    }

    /// The number of the newest own batch.
    pub fn sent(&self) -> u64 {
        self.own.sent
    }

    /// Whether all own batches for `queue` up to this one are back, and so have been delivered.
    pub fn has_arrived(&self, queue: QueueId, sent: u64) -> bool {
        !self.own.out.iter().any(|batch| batch.receiver == queue && batch.number <= sent)
    }

    /// A passed frame of batch `number` is released. The batch goes back if it was the last.
    pub fn released(&mut self, number: u64) {
        let mut blocked = self.blocked.iter_mut().flatten().chain(&mut self.backlog);
        if let Some(blocked) = blocked.find(|batch| batch.number == number) {
            blocked.passed = blocked.passed.saturating_sub(1);
            return;
        }
        let mut all = self.outstanding.iter();
        let Some(at) = all.position(|(_, batch)| batch.number == number) else { return };
        let batch = &mut self.outstanding[at].1;
        batch.passed = batch.passed.saturating_sub(1);
        if batch.passed == 0 {
            let (worker, batch) = self.outstanding.swap_remove(at);
            self.give_back(worker, batch);
        }
    }

    /// Gives a batch back to `worker`, which sent it.
    fn give_back(&mut self, worker: usize, batch: Box<HandoffBatch>) {
        let Some(channel) = &mut self.channels[worker] else {
            self.finished.push(batch);
            return;
        };
        // The way back has room for all batches of a worker, too.
        let _ = channel.done.push(batch);
        self.doorbells[worker].ring();
    }

    /// An own batch that has come back from `worker`.
    #[inline]
    pub fn returned(&mut self, worker: usize) -> Option<Box<HandoffBatch>> {
        match &mut self.channels[worker] {
            Some(channel) => channel.back.pop().ok(),
            None => self.finished.pop(),
        }
    }

    /// Keeps an own batch that has come back for another burst.
    #[inline]
    pub fn recycle(&mut self, batch: Box<HandoffBatch>) {
        self.own.recycle(batch);
    }

    /// Whether anything lies in a channel for this worker.
    pub fn has_mail(&self) -> bool {
        let has_mail =
            |channel: &WorkerChannel| !channel.inbox.is_empty() || !channel.back.is_empty();
        !self.finished.is_empty() || self.channels.iter().flatten().any(has_mail)
    }

    /// Notes the waits of the blocked batches.
    pub fn pending(&self, slots: &Slots, now: Instant, waits: &mut Waits) {
        for batch in self.undelivered() {
            let room = slots.find(batch.receiver);
            waits.add(Blocked { room, until: Some(now + ROOM_INTERVAL) });
        }
    }
}

impl OwnBatches {
    /// As [`Handoff::batch_for`].
    fn open(
        &mut self,
        location: QueueLocation,
        port: PortId,
        sender: QueueId,
        burst: u64,
    ) -> Option<&mut HandoffBatch> {
        let fits = |(_, batch): &(usize, Box<HandoffBatch>)| {
            batch.receiver == location.queue && batch.burst.room() > 0
        };
        if let Some(found) = self.open.iter().position(fits) {
            return Some(&mut self.open[found].1);
        }
        let mut batch = self.take(location.queue, port)?;
        (batch.sender, batch.burst_number) = (sender, burst);
        self.open.push((location.worker, batch));
        self.open.last_mut().map(|(_, batch)| &mut **batch)
    }

    /// A numbered batch without frames for queue `receiver`, out of the share of `port`.
    fn take(&mut self, receiver: QueueId, port: PortId) -> Option<Box<HandoffBatch>> {
        if !self.has_share(port) {
            return None;
        }
        let mut batch = self.blank()?;
        self.sent += 1;
        (batch.receiver, batch.sent, batch.next) = (receiver, self.sent, 0);
        self.out.push(OutBatch { number: self.sent, receiver, sender: port });
        Some(batch)
    }

    /// Whether `port` may have one more batch in flight. A port may not have more than are then
    /// left for others, so that no port can take all of them.
    fn has_share(&self, port: PortId) -> bool {
        self.has_share_for(port, 1)
    }

    /// Whether `port` may have `more` more batches in flight.
    fn has_share_for(&self, port: PortId, more: usize) -> bool {
        let own = self.out.iter().filter(|batch| batch.sender == port).count();
        // Batches are taken one by one, so the check is that of the last one.
        let last = more.saturating_sub(1);
        own + last < MAX_BATCHES.saturating_sub(self.out.len() + last)
    }

    fn blank(&mut self) -> Option<Box<HandoffBatch>> {
        if let Some(batch) = self.spare.pop() {
            return Some(batch);
        }
        if self.made == MAX_BATCHES {
            return None;
        }
        self.made += 1;
        Some(Box::new(HandoffBatch::new()))
    }

    /// Keeps a batch for the next time, and lets go of the memory that it pins.
    fn recycle(&mut self, mut batch: Box<HandoffBatch>) {
        self.out.retain(|out| out.number != batch.sent);
        batch.recycle();
        self.spare.push(batch);
    }
}
