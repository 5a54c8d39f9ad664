//! A thread: of a guest, or a worker. It takes a burst from one of its queues, does what there is
//! to do for it, puts the frames where they go next, and takes the next burst.

use std::collections::VecDeque;

use crate::event::Time;

/// A frame under way.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Its stream.
    pub stream: usize,
    /// When it was made.
    pub since: Time,
}

/// Frames that wait for a thread.
#[derive(Debug)]
pub struct Queue {
    /// The thread.
    pub owner: usize,
    /// The role of the thread for these frames.
    pub role: Role,
    /// The worker that fills it, if it belongs to a receiver.
    pub feeder: Option<usize>,
    /// How many frames more the worker may put into it.
    pub room: usize,
    /// With how many frames a sleeping thread is woken.
    pub wakes_at: usize,
    /// The frames come from another worker, which has classified them already.
    pub crossed: bool,
    /// In the order in which they came.
    pub frames: VecDeque<Frame>,
}

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A guest's: makes frames.
    Sender,
    /// The backend's.
    Worker,
    /// A guest's: takes frames, after which their streams make others.
    Receiver,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Sleeps.
    Idle,
    /// Wakes up, or waits for a CPU.
    Waking,
    /// The thread has a CPU, and works.
    Running,
    /// The thread has a CPU, and waits for a lock.
    Blocked,
    /// The thread has a CPU, and polls for work.
    Spinning,
}

/// A thread.
#[derive(Debug)]
pub struct Actor {
    /// The role of the thread for its burst.
    pub role: Role,
    /// Which CPUs it runs on.
    pub cpus: usize,
    /// Its queues.
    pub queues: Vec<usize>,
    /// Which of them it looks at first.
    pub next: usize,
    /// The state of the thread.
    pub state: State,
    /// The frames that it has taken.
    pub burst: Vec<Frame>,
    /// Whether they come from another worker.
    pub crossed: bool,
    /// Steps of its burst that are complete.
    pub at: usize,
    /// The lock that it holds.
    pub holding: Option<usize>,
    /// Work that others gave it meanwhile.
    pub stolen: Time,
    /// Since when it has its CPU.
    pub since: Time,
    /// How often it has begun to spin.
    pub spins: u64,
    /// For how long it worked, waiting for locks included.
    pub busy: Time,
    /// When it began with its burst.
    pub began: Time,
}

impl Actor {
    /// One that sleeps.
    pub fn new(role: Role, cpus: usize) -> Self {
        Actor {
            role,
            cpus,
            queues: Vec::new(),
            next: 0,
            state: State::Idle,
            burst: Vec::new(),
            crossed: false,
            at: 0,
            holding: None,
            stolen: 0,
            since: 0,
            spins: 0,
            busy: 0,
            began: 0,
        }
    }

    /// Whether it has a CPU.
    pub fn runs(&self) -> bool {
        matches!(self.state, State::Running | State::Blocked | State::Spinning)
    }
}
