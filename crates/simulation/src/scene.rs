//! The scene of a simulation: a host, its guests, their traffic, and the cost of each operation.

use crate::event::Time;
use crate::place::Flows;

/// Frames that a thread takes at once, at most: the worker's own limit.
pub const BURST: usize = 64;

/// A lock that a worker needs for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The grant table of the guest that sends.
    Source,
    /// The grant table of the guest that receives.
    Target,
    /// The host's list of guests.
    Guests,
    /// The backend's list of mappings.
    Maptrack,
    /// The backend's address space.
    AddressSpace,
}

/// A part of what a worker does for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Works by itself.
    Work(Time),
    /// Works and holds a lock.
    Locked(Which, Time),
    /// Works under a lock, and flushes the TLBs of all other workers that run before the lock is
    /// released.
    Flush(Which, Time),
}

/// The cost of flushing TLBs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flushing {
    /// The time of the asking thread, for each CPU that has to flush.
    pub wait: Time,
    /// The one who is interrupted.
    pub stolen: Time,
}

/// The work of a worker.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Once for each burst.
    pub burst: Time,
    /// For each frame, before its receiver is known.
    pub head: Time,
    /// For each frame, to put it into the receiver's ring.
    pub parts: Vec<Part>,
    /// For each frame that goes to another worker, on either.
    pub handoff: Time,
    /// The cost of flushing.
    pub flushing: Flushing,
    /// How long a grant table's lock takes from one CPU to another, where a thread waits.
    pub handover: Time,
    /// How long a lock that is free takes from one CPU to another, at most.
    pub fetch: Time,
    /// How long the data that all guests have in common takes from one CPU to another.
    pub shared: Time,
    /// How long the lock of the backend's address space takes, where a thread waits.
    pub address_space: Time,
}

/// The work of a guest's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guest {
    /// Once for each burst.
    pub burst: Time,
    /// For each frame.
    pub frame: Time,
}

/// The duties of each thread.
#[derive(Clone, Debug, Default)]
pub struct Duties {
    /// The work of the workers.
    pub worker: Work,
    /// The work of a sender's threads.
    pub sender: Guest,
    /// The work of a receiver's threads.
    pub receiver: Guest,
}

/// When threads run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scheduling {
    /// How long a thread runs on while others wait for its CPU. A thread leaves its CPU between
    /// bursts only.
    pub slice: Time,
    /// How long a worker polls before it sleeps.
    pub spin: Time,
    /// The time until a sleeping thread with new work runs.
    pub wake: Time,
    /// The time of the thread that wakes another.
    pub notify: Time,
}

/// CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// CPUs for the workers, and CPUs for the threads of guests.
    Apart {
        /// For the workers.
        workers: usize,
        /// For all guests together.
        guests: usize,
    },
    /// A CPU for each worker, which the guests that the worker serves share with it.
    Together,
}

impl Host {
    /// A scene without waits for a CPU.
    pub const ENDLESS: Host = Host::Apart { workers: usize::MAX, guests: usize::MAX };
}

/// What limits the frames that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A window of each stream, as that of TCP: a frame leaves the window when it has arrived.
    Window(usize),
    /// The rings of each queue pair. A frame leaves the sender's ring when the worker has delivered
    /// the frame, and leaves the receiver's ring when the receiver has taken the frame. A sender
    /// that found its ring full is notified when half of the ring is free.
    Rings {
        /// Frames that a ring to the backend holds.
        tx: usize,
        /// Frames that a ring to a guest holds.
        rx: usize,
    },
}

/// A scene.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Workers.
    pub workers: usize,
    /// Guests.
    pub guests: usize,
    /// Queues of each.
    pub queues: usize,
    /// The receiver of each sender.
    pub links: Vec<(usize, usize)>,
    /// Streams of each link.
    pub streams: usize,
    /// The limit of frames under way.
    pub limit: Limit,
    /// Whether the two guests of a link are one thread, as those of the traffic generator.
    pub joint: bool,
    /// The mean time between two frames of a stream. `None`: a stream sends as many frames as are
    /// carried.
    pub interval: Option<Time>,
    /// Frames of a worker's burst, at most.
    pub burst: usize,
    /// How streams come to queues.
    pub flows: Flows,
    /// CPUs.
    pub host: Host,
    /// How threads get their CPUs.
    pub scheduling: Scheduling,
    /// The work of all threads.
    pub duties: Duties,
    /// Chooses where streams go.
    pub seed: u64,
    /// Frames to deliver before the end. The first tenth is not counted.
    pub frames: u64,
}

impl Scene {
    /// A scene of `pairs` guests that send to as many others, in which nothing costs anything yet,
    /// with CPUs for all.
    pub fn pairs(pairs: usize, workers: usize, queues: usize, streams: usize) -> Scene {
        Scene {
            workers,
            guests: pairs * 2,
            queues,
            links: (0..pairs).map(|pair| (pair * 2, pair * 2 + 1)).collect(),
            streams,
            limit: Limit::Window(BURST),
            joint: false,
            interval: None,
            burst: BURST,
            flows: Flows::Hashed,
            host: Host::ENDLESS,
            scheduling: Scheduling::default(),
            duties: Duties::default(),
            seed: 1,
            frames: 10_000,
        }
    }

    /// Guests in a ring, each of which sends to the next.
    pub fn ring(guests: usize, workers: usize, queues: usize, streams: usize) -> Scene {
        let links = (0..guests).map(|guest| (guest, (guest + 1) % guests)).collect();
        Scene { guests, links, ..Scene::pairs(0, workers, queues, streams) }
    }
}
