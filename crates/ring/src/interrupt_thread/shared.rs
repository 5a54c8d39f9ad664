//! What workers and the thread share.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::thread::Thread;

use super::state::State;

/// The [ticks](crate::ticks) of a window in which interrupts are counted: one to two milliseconds.
pub const WINDOW: u64 = 1 << 22;

/// What workers and the thread share.
pub struct Shared {
    pub state: State,
    /// Interrupts that the thread has sent.
    pub sent: AtomicU64,
    /// The thread, to wake it.
    pub thread: OnceLock<Thread>,
}

impl Shared {
    /// The thread has yet to start.
    pub fn new() -> Self {
        let (sent, thread) = (AtomicU64::new(0), OnceLock::new());
        Shared { state: State::asleep(), sent, thread }
    }

    /// Lets the thread look at its state.
    pub fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
