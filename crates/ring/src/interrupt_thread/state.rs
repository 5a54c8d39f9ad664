//! Whether the thread that sends interrupts is asleep, agreed upon without lost wake-ups.
//!
//! A worker puts an entry into its queue, and then looks at the state. The thread sets the state,
//! and then looks at the queues. A full barrier stands between both steps on both sides, so at
//! least one of them sees the other; the loom models check that.

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU8, Ordering, fence};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// The thread sleeps, or is about to sleep after a last look.
const ASLEEP: u8 = 0;
/// The thread polls the queues.
const AWAKE: u8 = 1;
/// The thread looks once more, and ends. This state is the last one.
const ENDED: u8 = 2;

/// The state of the thread.
pub struct State(AtomicU8);

/// What becomes of an entry that a worker has put into its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The thread finds it.
    Seen,
    /// The thread finds it, once the worker has unparked the thread.
    Wake,
    /// Perhaps nobody finds it.
    Ended,
}

impl State {
    pub fn asleep() -> Self {
        State(AtomicU8::new(ASLEEP))
    }

    /// Whether the thread polls. Only a hint.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.0.load(Ordering::Relaxed) == AWAKE
    }

    pub fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASLEEP
    }

    /// Ends the sleep. True: the thread will look at the queues, and the caller unparks the thread.
    /// False: the thread has ended.
    pub fn wake(&self) -> bool {
        let woken = self.0.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire);
        woken != Err(ENDED)
    }

    /// To be called after an entry was put into a queue.
    #[inline]
    pub fn pushed(&self) -> Pushed {
        fence(Ordering::SeqCst);
        match self.0.load(Ordering::Relaxed) {
            AWAKE => Pushed::Seen,
            ASLEEP if self.wake() => Pushed::Wake,
            _ => Pushed::Ended,
        }
    }

    /// The thread wants to sleep. True: the thread may park as long as [`Self::is_asleep`]. False:
    /// the queues are not empty, or the thread has ended, and it looks at the queues again.
    pub fn sleep(&self, is_empty: impl FnOnce() -> bool) -> bool {
        let (slept, order) = (AWAKE, Ordering::AcqRel);
        if self.0.compare_exchange(slept, ASLEEP, order, Ordering::Acquire) == Err(ENDED) {
            return false;
        }
        fence(Ordering::SeqCst);
        is_empty() || !self.wake()
    }

    /// Ends the thread, which the caller then unparks.
    pub fn end(&self) {
        self.0.swap(ENDED, Ordering::AcqRel);
    }

    /// Whether the thread shall end, after a last look at the queues.
    pub fn has_ended(&self) -> bool {
        let ended = self.0.load(Ordering::Acquire) == ENDED;
        fence(Ordering::SeqCst);
        ended
    }
}
