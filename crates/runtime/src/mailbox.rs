//! Commands for one worker, from any thread.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// A box that a worker looks into once a round. Looking costs one load; the lock is only taken
/// when something is there.
pub(crate) struct Mailbox<C> {
    full: AtomicBool,
    commands: Mutex<Vec<C>>,
}

impl<C> Default for Mailbox<C> {
    fn default() -> Self {
        Mailbox { full: AtomicBool::new(false), commands: Mutex::new(Vec::new()) }
    }
}

impl<C> Mailbox<C> {
    /// Leaves a command; the worker's doorbell is to be rung afterwards.
    pub fn post(&self, command: C) {
        self.commands.lock().push(command);
        self.full.store(true, Ordering::Release);
    }

    /// Whether there is a command.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes all commands, oldest first.
    pub fn take(&self) -> Vec<C> {
        self.full.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.commands.lock())
    }
}
