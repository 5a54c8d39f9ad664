//! How an event channel's signal is raised and taken.
//!
//! A word says whether a signal waits; a descriptor wakes who waits for it. Only the signal that
//! finds none waiting writes the descriptor, so that a hundred signals cost one system call. The
//! order in which both are taken matters: one that is raised in between must neither be lost nor
//! leave a word that says "waits" beside a descriptor that is empty, for then nobody would ever
//! write it again.

use super::sync::{AtomicU32, Ordering};

/// Raises a signal: `wake` writes the descriptor.
#[inline]
pub fn raise(waiting: &AtomicU32, wake: impl FnOnce()) {
    if waiting.swap(1, Ordering::SeqCst) == 0 {
        wake();
    }
}

/// Takes a signal, if one waits: `empty` empties the descriptor. Work that the signal was about is
/// to be looked for after this.
///
/// The descriptor is emptied even if the word says that nothing waits: another domain may write
/// both, and one that stays readable would keep us awake.
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

    /// Somebody does work and signals, twice; another takes signals, and looks for work each time
    /// it could sleep.
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
            // And the next signal comes through as well.
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
