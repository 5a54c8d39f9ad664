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

/// A worker's queue to the thread.
pub struct InterruptQueue {
    producer: Producer<Arc<Target>>,
    shared: Arc<Shared>,
    /// The interrupts that the worker sent itself.
    window: Window,
}

thread_local! {
    static QUEUE: RefCell<Option<InterruptQueue>> = const { RefCell::new(None) };
}

impl InterruptQueue {
    pub(super) fn new(producer: Producer<Arc<Target>>, shared: Arc<Shared>) -> Self {
        InterruptQueue { producer, shared, window: Window::default() }
    }

    /// From now on, interrupts of the calling thread go through this queue.
    pub fn install(self) {
        QUEUE.set(Some(self));
    }

    fn offer(&mut self, target: &Arc<Target>) -> bool {
        let state = &self.shared.state;
        if !state.is_awake() {
            if !self.window.is_frequent(ticks::now()) || !state.wake() {
                return false;
            }
            self.shared.unpark();
        }
        if target.queued.set() {
            return true;
        }
        if self.producer.push(Arc::clone(target)).is_err() {
            target.queued.clear();
            return false;
        }
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
