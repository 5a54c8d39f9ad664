//! A worker without a thread of its own: it works when somebody turns it, and never sleeps.
//!
//! For whoever has to know exactly when a worker works and what it takes for the time: measurements
//! that are to give the same figure each time, and those where one thread is the guests, too.

use std::thread;
use std::time::Instant;

use crate::worker::Worker;

/// A worker that is turned by hand.
pub struct ManualWorker(Worker);

impl ManualWorker {
    pub(crate) fn new(worker: Worker) -> Self {
        ManualWorker(worker)
    }

    /// One turn, as a worker with a thread takes it, at the time `now`, which must not go back.
    /// True when anything moved.
    pub fn run_once(&mut self, now: Instant) -> bool {
        self.0.tick_to(now);
        // First, so that what was signalled before this turn is found in it.
        self.0.glance_again();
        // Only a fabric that is being dropped says stop, and nothing can be asked of that any more.
        self.0.obey() && self.0.turn()
    }

    /// Turns, by the real time, while `work` is done by another thread: what it asks of the fabric
    /// waits for all workers.
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
