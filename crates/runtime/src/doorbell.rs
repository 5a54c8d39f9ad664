//! Waking a worker that sleeps, without a system call when it is awake.
//!
//! The sender writes its message, then reads whether the worker sleeps. The worker announces that
//! it sleeps, then looks for messages. Each has a full barrier between the two steps, so at least
//! one of them sees the other: either the worker finds the message, or the sender finds it asleep
//! and signals. (Checked with loom below, as the rings' notifications are in their own crate.)

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether the other side sleeps, or is about to.
pub struct Sleeping(AtomicBool);

impl Default for Sleeping {
    fn default() -> Self {
        Sleeping(AtomicBool::new(false))
    }
}

impl Sleeping {
    /// For the worker: announces sleep. Afterwards it must look for messages once more before it
    /// really sleeps.
    pub fn announce(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// For the worker: it is awake, and needs no signal.
    pub fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// For a sender, after its message is visible: true when the worker must be signalled. Of
    /// several senders, only one is told to signal.
    #[inline]
    pub fn must_signal(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::AcqRel)
    }
}

/// Signals a worker through an eventfd that its epoll set watches edge-triggered.
pub struct Doorbell {
    /// Set while the worker sleeps.
    pub sleeping: Sleeping,
    fd: std::os::fd::OwnedFd,
}

impl Doorbell {
    /// A doorbell that no worker watches yet.
    pub fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Doorbell {
            sleeping: Sleeping::default(),
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Wakes the worker if it sleeps. Call it after the message is visible.
    #[inline]
    pub fn ring(&self) {
        if self.sleeping.must_signal() {
            // The counter can only fail to be raised when it is saturated, and then the signal is
            // pending anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// The descriptor to watch, edge-triggered.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    /// Sender and worker in every interleaving: a message is never left lying while the worker
    /// sleeps unsignalled.
    #[test]
    fn no_message_is_slept_through() {
        loom::model(|| {
            let sleeping = Arc::new(Sleeping::default());
            let mail = Arc::new(AtomicUsize::new(0));
            let signals = Arc::new(AtomicUsize::new(0));
            let sender = {
                let (sleeping, mail, signals) = (sleeping.clone(), mail.clone(), signals.clone());
                loom::thread::spawn(move || {
                    mail.store(1, Ordering::Release);
                    if sleeping.must_signal() {
                        signals.fetch_add(1, Ordering::Release);
                    }
                })
            };
            sleeping.announce();
            let slept = mail.load(Ordering::Acquire) == 0;
            sender.join().unwrap();
            if slept {
                assert_eq!(
                    signals.load(Ordering::Acquire),
                    1,
                    "slept with a message and no signal"
                );
            }
        });
    }

    /// The same without the worker's barrier. Loom finds the lost wake-up, which shows that the
    /// test above can fail.
    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn without_the_barrier_a_message_is_slept_through() {
        loom::model(|| {
            let sleeping = Arc::new(AtomicBool::new(false));
            let mail = Arc::new(AtomicUsize::new(0));
            let sender = {
                let (sleeping, mail) = (sleeping.clone(), mail.clone());
                loom::thread::spawn(move || {
                    mail.store(1, Ordering::Release);
                    sleeping.load(Ordering::Relaxed)
                })
            };
            sleeping.store(true, Ordering::Relaxed);
            let slept = mail.load(Ordering::Acquire) == 0;
            let signalled = sender.join().unwrap();
            assert!(!slept || signalled, "lost wake-up");
        });
    }
}
