//! The trait that a worker calls: the queues of one worker, and how they are served.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::id::ClassId;
use crate::poll::PollingPolicy;
use crate::run_counters::RunCounters;

/// The cost of a nanosecond, in the unit of all pipelines: the time that copying a byte takes.
pub const COST_PER_NS: u64 = 16;

/// The queues of one worker. A queue is named by the slot that [`attach`](Self::attach) returns.
///
/// All methods are called from the worker's thread, and none may block. The implementation must
/// check everything that a peer publishes. A queue whose peer broke the protocol reports
/// [`Status::Failed`], and is not served again.
pub trait Pipeline: Send + Sized + 'static {
    /// A queue while it changes owners.
    type Queue: Send + 'static;
    /// State of all queues that all workers follow.
    type Topology: Default + Send + Sync + 'static;
    /// Requests of the control side other than taking and giving back queues.
    type Request: Send + 'static;

    /// The cost that a class may use in one round, as [`Served::cost`] counts it. Must be more than
    /// twice the greatest cost of one unit of work.
    const QUANTUM: u64;

    /// Where the worker counts its rounds.
    fn counters(&self) -> &RunCounters;

    /// The worker's thread has started, and calls all other methods from now on.
    fn started(&mut self) {}

    /// Sets the current time to `now`.
    fn tick(&mut self, now: Instant);

    /// Takes a queue.
    fn attach(&mut self, queue: Self::Queue) -> Attached;

    /// The queue in `slot` is about to leave: nothing more is fetched from it.
    fn depart(&mut self, slot: usize, how: Departure);

    /// Whether nothing of a departing queue is under way any more.
    fn is_drained(&self, slot: usize) -> bool;

    /// A departing queue stays after all.
    fn resume(&mut self, slot: usize);

    /// Gives a drained queue back, and forgets it.
    fn detach(&mut self, slot: usize) -> Option<Self::Queue>;

    /// Follows a changed topology, or the same one after queues came or left.
    fn follow(&mut self, topology: &Self::Topology);

    /// Does what the control side asks.
    fn request(&mut self, request: Self::Request);

    /// Begins a round: sends deferred interrupts that are due, and takes what came from other
    /// workers. True when anything moved.
    fn begin(&mut self) -> bool;

    /// Serves one queue: one burst, whose cost is to stay within `quantum`.
    fn serve(&mut self, slot: usize, quantum: u64) -> Served;

    /// Ends a round that moved something.
    fn end(&mut self);

    /// Why a queue that moved nothing did not.
    fn status(&self, slot: usize) -> Status;

    /// Adds the waits that belong to no queue that is being served.
    fn pending(&self, waits: &mut Waits);

    /// The time at which the worker has to be awake even without a signal.
    fn deadline(&self) -> Option<Instant>;

    /// Whether another worker has left something.
    fn has_mail(&self) -> bool;

    /// Asks a queue's peer to signal when it publishes work (and, if `room`, when it makes room),
    /// then looks once more. True when something is there already.
    ///
    /// # Errors
    /// When the queue has failed, now or before.
    fn arm(&mut self, slot: usize, room: bool) -> Result<bool, Failed>;

    /// Tells a queue's peer that signals are not needed.
    fn disarm(&mut self, slot: usize);

    /// A queue's peer has signalled work.
    fn woken(&mut self, slot: usize);

    /// The descriptors that a queue's peer signals through.
    fn wakers(&self, slot: usize) -> Wakers<'_>;

    /// The kind and name of what the queue in `slot` belongs to, for the log, such as `port a`.
    /// `None`: there is no such queue.
    fn owner(&self, slot: usize) -> Option<String>;

    /// A descriptor that becomes readable when something has come that no queue's peer signals,
    /// and that [`begin`](Self::begin) takes. It is watched edge-triggered and never read, from
    /// before the first queue on.
    fn completions(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The worker is about to sleep, or (`false`) has slept.
    fn sleeping(&mut self, begins: bool);
}

/// A queue that a pipeline has taken.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// Where the queue is from now on.
    pub slot: usize,
    /// The class that the queue shares its worker in.
    pub class: ClassId,
    /// How to wait for the queue's work; `None`: as the worker does for others.
    pub policy: Option<PollingPolicy>,
    /// The queue's peer broke the protocol before: the queue is not served.
    pub failed: bool,
}

/// How a queue leaves its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Back to the control side, without waiting for anything that only the peer can do.
    Detach,
    /// To another worker: nothing may be lost or reordered.
    Migrate,
    /// To another process, together with all other queues: nothing may be lost.
    Withdraw,
}

/// The result of serving a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Cost to the worker.
    pub cost: u64,
    /// Units of work that were done.
    pub units: u64,
    /// Anything moved.
    pub moved: bool,
    /// The queue is likely to have more: its burst was as long as it could be, and all of it is
    /// done.
    pub more: bool,
}

/// A queue that moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing to do until the peer publishes something: the queue may be armed.
    Idle,
    /// The queue's work waits for something else: the queue is polled until that has come.
    Blocked(Blocked),
    /// Its peer broke the protocol: it is not served any more.
    Failed,
}

/// The reason why a queue's work is blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Room in the queue in this slot.
    pub room: Option<usize>,
    /// The end of the wait, if that is known.
    pub until: Option<Instant>,
}

/// A queue has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// The descriptors of one queue. They are watched edge-triggered and never read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wakers<'a> {
    /// Becomes readable when the peer has published work.
    pub work: Option<BorrowedFd<'a>>,
    /// Becomes readable, or writable, when the peer has made room.
    pub room: Option<BorrowedFd<'a>>,
    /// A signal of room is also a reason to serve the queue.
    pub room_is_work: bool,
    /// The peer signals all work, whether or not the queue is armed.
    pub unmasked: bool,
}

/// Queues whose room is waited for, and when the first wait ends.
#[derive(Debug, Default)]
pub struct Waits {
    /// The queues' slots.
    pub rooms: Vec<usize>,
    /// The end of the first wait.
    pub until: Option<Instant>,
}

impl Waits {
    /// Something waits for room in the queue in slot `room`, or until `until`.
    pub fn add(&mut self, Blocked { room, until }: Blocked) {
        self.rooms.extend(room);
        self.until = self.until.into_iter().chain(until).min();
    }

    /// Forgets all waits.
    pub fn clear(&mut self) {
        self.rooms.clear();
        self.until = None;
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty() && self.until.is_none()
    }
}
