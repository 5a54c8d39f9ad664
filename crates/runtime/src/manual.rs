//! A worker without a thread of its own, which works when its owner drives it, and never sleeps.
//!
//! Manual workers are for callers that must know exactly when a worker works and what that takes:
//! measurements that must give the same figure each time, and measurements in which one thread also
//! plays the guests.

use std::thread;
use std::time::Instant;

#[cfg(test)]
use crate::id::QueueId;
use crate::pipeline::Pipeline;
#[cfg(test)]
use crate::queues::Descriptors;
use crate::worker::Worker;

/// A worker that is driven by its owner.
pub struct ManualWorker<P: Pipeline>(Worker<P>);

impl<P: Pipeline> ManualWorker<P> {
    pub(crate) fn new(worker: Worker<P>) -> Self {
        ManualWorker(worker)
    }

    /// One round, as a worker with a thread makes it, at the time `now`, which must not go back.
    /// True when anything moved.
    pub fn run_once(&mut self, now: Instant) -> bool {
        self.0.tick_to(now);
        // First, so that what was signalled before this round is found in it.
        self.0.poll_events_again();
        // Only a group that is being dropped sends `Stop`, so the result is not needed any more.
        self.0.obey() && self.0.round()
    }

    /// Whether the queue's descriptors are watched.
    #[cfg(test)]
    pub fn is_watched(&self, queue: QueueId) -> bool {
        let queues = &self.0.queues;
        let queue = queues.find(queue).and_then(|slot| queues.get(slot));
        queue.is_some_and(|queue| queue.descriptors != Descriptors::Unwatched)
    }

    /// Runs rounds, by the real time, while another thread does `work`. Calls of the control side
    /// in `work` wait for all workers.
    ///
    /// # Panics
    /// When `work` does.
    pub fn run_while<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let work = scope.spawn(work);
            while !work.is_finished() {
                self.run_once(Instant::now());
                thread::yield_now();
            }
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
