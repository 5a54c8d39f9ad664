//! A worker's queue to the thread, and when the worker uses it.

use std::cell::RefCell;
use std::sync::Arc;

use rtrb::Producer;

use super::shared::{Shared, WINDOW};
use super::state::Pushed;
use super::target::Target;
use crate::ticks;
use crate::violation::Violation;

/// The targets that a worker's queue holds.
pub(super) const CAPACITY: usize = 256;

/// As many interrupts of a worker in a window wake the thread.
pub(super) const FREQUENT: u32 = 16;

/// The [ticks](crate::ticks), some 50 us, after which a worker relies on the thread no more if it
/// has taken nothing.
const LATE: u64 = 1 << 17;

/// A worker's queue to the thread.
pub struct InterruptQueue {
    producer: Producer<Arc<Target>>,
    shared: Arc<Shared>,
    /// The interrupts that the worker sent itself.
    window: Window,
    progress: Progress,
}

thread_local! {
    static QUEUE: RefCell<Option<InterruptQueue>> = const { RefCell::new(None) };
}

impl InterruptQueue {
    pub(super) fn new(producer: Producer<Arc<Target>>, shared: Arc<Shared>) -> Self {
        let (window, progress) = (Window::default(), Progress::default());
        InterruptQueue { producer, shared, window, progress }
    }

    /// From now on, interrupts of the calling thread go through this queue.
    pub fn install(self) {
        QUEUE.set(Some(self));
    }

    fn offer(&mut self, target: &Arc<Target>) -> bool {
        let (state, now) = (&self.shared.state, ticks::now());
        if !state.is_awake() {
            if !self.window.is_frequent(now) || !state.wake() {
                return false;
            }
            self.shared.unpark();
        }
        if self.progress.is_late(CAPACITY - self.producer.slots(), now) {
            return false;
        }
        if target.queued.set() {
            return true;
        }
        if self.producer.push(Arc::clone(target)).is_err() {
            target.queued.clear();
            return false;
        }
        self.progress.queued += 1;
        match state.pushed() {
            Pushed::Seen => true,
            Pushed::Wake => {
                self.shared.unpark();
                true
            }
            Pushed::Ended => false,
        }
    }
}

/// Interrupts a peer, now or within microseconds: the calling thread writes, or the thread to which
/// it has a queue.
///
/// # Errors
/// [`Violation::InterruptBlocks`], of this interrupt or an earlier one.
#[inline]
pub fn interrupt(target: &Arc<Target>) -> Result<(), Violation> {
    target.take_result()?;
    match is_offered(target) {
        true => Ok(()),
        false => target.write(),
    }
}

/// Lets the thread interrupt a peer, if the calling thread has a queue to it and interrupts are
/// frequent. False: the caller has to write itself.
#[inline]
fn is_offered(target: &Arc<Target>) -> bool {
    let offer = |queue: &RefCell<Option<InterruptQueue>>| match &mut *queue.borrow_mut() {
        Some(queue) => queue.offer(target),
        None => false,
    };
    QUEUE.try_with(offer).unwrap_or(false)
}

/// How the thread gets on with a queue.
#[derive(Default)]
struct Progress {
    /// Entries that were put into the queue.
    queued: u64,
    /// Those that the thread had taken when the worker last looked, and when it first saw that.
    taken: u64,
    since: u64,
}

impl Progress {
    /// Whether entries wait for a thread that takes none: it is busy with a slow peer, or has no
    /// CPU. `waiting` entries are in the queue at `now`.
    fn is_late(&mut self, waiting: usize, now: u64) -> bool {
        let taken = self.queued - waiting as u64;
        if waiting == 0 || taken != self.taken {
            (self.taken, self.since) = (taken, now);
        }
        now.wrapping_sub(self.since) > LATE
    }
}

/// Interrupts since a moment.
#[derive(Default)]
struct Window {
    since: u64,
    count: u32,
}

impl Window {
    /// Counts an interrupt. Whether there are many.
    fn is_frequent(&mut self, now: u64) -> bool {
        if now.wrapping_sub(self.since) >= WINDOW {
            *self = Window { since: now, count: 0 };
        }
        self.count += 1;
        self.count >= FREQUENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_takes_nothing_is_late() {
        let mut progress = Progress::default();
        assert!(!progress.is_late(0, 10 * LATE), "nothing waits");
        progress.queued = 3;
        assert!(!progress.is_late(3, 11 * LATE));
        assert!(progress.is_late(3, 11 * LATE + 1));
        assert!(!progress.is_late(2, 20 * LATE), "one was taken");
        assert!(!progress.is_late(2, 21 * LATE));
        assert!(progress.is_late(2, 21 * LATE + 1));
        assert!(!progress.is_late(0, 40 * LATE), "all were taken");
    }

    #[test]
    fn interrupts_are_frequent_within_a_window() {
        let mut window = Window::default();
        let frequent = |n: u32| window.is_frequent(WINDOW + u64::from(n) * (WINDOW / 32));
        let first = (0..64).map(frequent).position(|frequent| frequent);
        assert_eq!(first, Some(FREQUENT as usize - 1));
        let mut window = Window::default();
        assert!(!(1..64).any(|n| window.is_frequent(n * (WINDOW / 8))));
    }
}
