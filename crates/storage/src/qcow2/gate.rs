//! Grace periods: waiting until an old mapping is no longer in use.
//!
//! A worker that hands a step to the kernel has looked up the place of the step's bytes in the
//! file. Before such a place is given to other data, each step that may have looked it up must have
//! ended. Steps are counted from their look-up to their end, under one of two counts. After a
//! mapping was removed, the image's thread directs new steps to the other count, and waits for the
//! old count to become zero. It then does so once more with the counts exchanged, since a step may
//! have read the choice of the count just before it changed (the algorithm of Linux's SRCU).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

/// How long a waiting thread sleeps between two looks.
const INTERVAL: Duration = Duration::from_micros(100);

/// Counts of the steps that are under way.
#[derive(Debug, Default)]
pub(super) struct Gate {
    current: AtomicUsize,
    inside: [AtomicUsize; 2],
}

/// A step that is under way. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Gate>, usize);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.inside[self.1].fetch_sub(1, Ordering::Release);
    }
}

impl Gate {
    /// Begins a step: mappings that are looked up from now on are valid until it ends.
    pub fn enter(self: &Arc<Self>) -> Entered {
        let side = self.current.load(Ordering::Relaxed) & 1;
        self.inside[side].fetch_add(1, Ordering::Relaxed);
        // The step is counted before its look-up. This pairs with the fence of `wait`: either the
        // count is seen there, or the removal of the mapping is seen here.
        fence(Ordering::SeqCst);
        Entered(Arc::clone(self), side)
    }

    /// Waits until all steps have ended that may have looked up a mapping removed before. Called by
    /// one thread only.
    pub fn wait(&self) {
        fence(Ordering::SeqCst);
        for _ in 0..2 {
            let old = self.current.fetch_add(1, Ordering::SeqCst) & 1;
            while self.inside[old].load(Ordering::Acquire) > 0 {
                std::thread::sleep(INTERVAL);
            }
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_wait_ends_after_the_steps_before_it_and_not_after_later_ones() {
        let gate = Arc::new(Gate::default());
        let before = gate.enter();
        let (waiting, done) = (Arc::clone(&gate), Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&done);
        let waiter = std::thread::spawn(move || {
            waiting.wait();
            flag.store(true, Ordering::SeqCst);
        });
        // The waiter has directed new steps to the other count.
        while gate.current.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(!done.load(Ordering::SeqCst));
        drop(before);
        waiter.join().unwrap();
        let _later = gate.enter();
        assert!(done.load(Ordering::SeqCst));
    }
}
