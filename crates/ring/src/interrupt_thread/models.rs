//! Loom models: an entry is sent, or its worker knows that it has to send by itself, in any
//! interleaving and with any memory reordering.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use super::queued::Queued;
use super::state::{Pushed, State};

/// What a worker and the thread share.
struct Shared {
    state: State,
    /// Entries that were put into the queue, and taken out of it.
    put: AtomicUsize,
    taken: AtomicUsize,
    unparked: AtomicBool,
}

impl Shared {
    /// The thread is awake.
    fn new() -> Arc<Shared> {
        let [put, taken] = [0, 0].map(AtomicUsize::new);
        let (state, unparked) = (State::asleep(), AtomicBool::new(false));
        state.wake();
        Arc::new(Shared { state, put, taken, unparked })
    }

    /// The worker puts an entry. False: it has to send by itself.
    fn push(&self) -> bool {
        if !self.state.is_awake() {
            if !self.state.wake() {
                return false;
            }
            self.unparked.swap(true, Ordering::AcqRel);
        }
        let put = self.put.load(Ordering::Relaxed);
        self.put.store(put + 1, Ordering::Release);
        match self.state.pushed() {
            Pushed::Seen => true,
            Pushed::Wake => {
                self.unparked.swap(true, Ordering::AcqRel);
                true
            }
            Pushed::Ended => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.put.load(Ordering::Acquire) == self.taken.load(Ordering::Relaxed)
    }

    fn take(&self) {
        self.taken.store(self.put.load(Ordering::Acquire), Ordering::Relaxed);
    }

    /// The thread, until it parks without having been unparked (false), or ends.
    fn run(&self) -> bool {
        loop {
            self.take();
            if self.state.has_ended() {
                self.take();
                return true;
            }
            if self.state.sleep(|| self.is_empty()) && self.state.is_asleep() {
                // Parks.
                if !self.unparked.swap(false, Ordering::AcqRel) {
                    return false;
                }
            }
            thread::yield_now();
        }
    }
}

/// Checks with a bounded number of preemptions: all of them would take hours.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut most = loom::model::Builder::new();
    most.preemption_bound = Some(3);
    most.check(model);
}

#[test]
fn loom_thread_does_not_sleep_on_an_entry() {
    check(|| {
        let shared = Shared::new();
        let its = shared.clone();
        let thread = thread::spawn(move || its.run());
        for _ in 0..2 {
            assert!(shared.push(), "the thread has not ended");
        }
        thread.join().unwrap();
        assert!(shared.is_empty() || shared.unparked.swap(false, Ordering::AcqRel));
    });
}

#[test]
fn loom_entry_at_the_end_is_sent_by_somebody() {
    check(|| {
        let shared = Shared::new();
        let (its, owner) = (shared.clone(), shared.clone());
        let thread = thread::spawn(move || its.run());
        let end = thread::spawn(move || {
            owner.state.end();
            owner.unparked.swap(true, Ordering::AcqRel);
        });
        let queued = shared.push();
        end.join().unwrap();
        let has_ended = thread.join().unwrap();
        if !has_ended && shared.unparked.swap(false, Ordering::AcqRel) {
            // The thread goes on.
            shared.run();
        }
        assert!(!queued || shared.is_empty(), "nobody sends the entry");
    });
}

#[test]
fn loom_queued_target_is_written_after_what_was_published() {
    loom::model(|| {
        let shared = Arc::new((Queued::default(), AtomicUsize::new(0), AtomicUsize::new(0)));
        // The target is in the queue.
        shared.0.set();
        let its = shared.clone();
        let thread = thread::spawn(move || {
            let (queued, published, written) = &*its;
            queued.clear();
            written.store(published.load(Ordering::Relaxed), Ordering::Relaxed);
        });
        let (queued, published, written) = &*shared;
        published.store(1, Ordering::Relaxed);
        let is_covered = queued.set();
        thread.join().unwrap();
        assert!(!is_covered || written.load(Ordering::Relaxed) == 1);
    });
}
