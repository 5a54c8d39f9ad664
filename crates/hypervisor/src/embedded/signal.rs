//! The raising and taking of an event channel's signal.
//!
//! A word shows whether a signal is pending; a descriptor wakes the receiver. Only a signal that
//! finds none pending writes the descriptor, so that a hundred signals cost one system call. The
//! order in which word and descriptor are taken matters: a signal that is raised in between must
//! not be lost. It must also not leave the word "pending" with an empty descriptor, since no later
//! signal would write the descriptor then.

use super::sync::{AtomicU32, Ordering};

/// Raises a signal: `wake` writes the descriptor.
#[inline]
pub fn raise(waiting: &AtomicU32, wake: impl FnOnce()) {
    if waiting.swap(1, Ordering::SeqCst) == 0 {
        wake();
    }
}

/// Takes a signal, if one waits: `empty` empties the descriptor. The receiver must look for the
/// announced work after this call.
///
/// The descriptor is emptied even if the word shows no pending signal: a hostile domain may write
/// both, and a descriptor that stays readable would keep the receiver awake.
#[inline]
pub fn take(waiting: &AtomicU32, empty: impl FnOnce()) -> bool {
    empty();
    waiting.swap(0, Ordering::SeqCst) != 0
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Channel {
        waiting: AtomicU32,
        /// An eventfd's counter.
        counter: AtomicU32,
        work: AtomicU32,
    }

    /// One side does work and signals, twice. The other takes signals, and looks for work each time
    /// before it could sleep.
    fn model(take: impl Fn(&Channel) + Copy + Send + Sync + 'static) {
        loom::model(move || {
            let (waiting, counter, work) =
                (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
            let channel = Arc::new(Channel { waiting, counter, work });
            let sender = {
                let channel = channel.clone();
                thread::spawn(move || {
                    for n in 1..=2 {
                        channel.work.store(n, Ordering::Release);
                        raise(&channel.waiting, || {
                            _ = channel.counter.fetch_add(1, Ordering::SeqCst)
                        });
                    }
                })
            };
            let mut seen = 0;
            for _ in 0..2 {
                take(&channel);
                seen = channel.work.load(Ordering::Acquire);
            }
            sender.join().unwrap();
            let wakes = channel.counter.load(Ordering::SeqCst) > 0;
            assert!(seen == 2 || wakes, "sleeps on work that was signalled");
            // The next signal also arrives.
            take(&channel);
            raise(&channel.waiting, || _ = channel.counter.fetch_add(1, Ordering::SeqCst));
            assert!(channel.counter.load(Ordering::SeqCst) > 0, "no signal comes through any more");
        });
    }

    #[test]
    fn loom_no_signal_is_lost() {
        model(|channel| _ = take(&channel.waiting, || channel.counter.store(0, Ordering::SeqCst)));
    }

    #[test]
    #[should_panic(expected = "sleeps on work that was signalled")]
    fn loom_the_descriptor_has_to_be_emptied_first() {
        model(|channel| {
            if channel.waiting.swap(0, Ordering::SeqCst) != 0 {
                channel.counter.store(0, Ordering::SeqCst);
            }
        });
    }
}
