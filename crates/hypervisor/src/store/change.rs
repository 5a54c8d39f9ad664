//! Pending changes: a bounded number, however fast they come.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{OnChange, Store, StoreError, Watch};

/// A set of tokens, one for each watch whose node has changed. A token is in the set once, however
/// often the node changes, until it is taken: so a hostile domain that rewrites its keys all the
/// time cannot fill memory.
#[derive(Debug)]
pub struct Changes<T> {
    changed: Arc<Changed<T>>,
}

#[derive(Debug)]
struct Changed<T> {
    tokens: Mutex<BTreeSet<T>>,
    /// Readable while there may be tokens.
    waker: OwnedFd,
}

impl<T> Clone for Changes<T> {
    fn clone(&self) -> Self {
        Self { changed: self.changed.clone() }
    }
}

impl<T: Ord + Clone + Send + Sync + 'static> Changes<T> {
    /// No changes.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { changed: Arc::new(Changed { tokens: Mutex::new(BTreeSet::new()), waker }) })
    }

    /// Watches `path`: its changes add `token` to the set. The token is in the set at once.
    ///
    /// # Errors
    /// The store's error.
    pub fn watch(&self, store: &dyn Store, path: &str, token: T) -> Result<Watch, StoreError> {
        let changes = self.clone();
        let on_change: OnChange = Box::new(move |_| changes.add(token.clone()));
        store.watch(path, on_change)
    }

    /// Adds `token`, as a change would.
    pub fn add(&self, token: T) {
        if self.tokens().insert(token) {
            // The write fails only when the counter is at its maximum; one signal more makes no
            // difference.
            let _ = rustix::io::write(&self.changed.waker, &1u64.to_ne_bytes());
        }
    }

    /// Takes all tokens.
    pub fn take(&self) -> Vec<T> {
        // The waker is read before the tokens are taken, so that a token which comes in between
        // signals again.
        let _ = rustix::io::read(&self.changed.waker, &mut [0; 8]);
        std::mem::take(&mut *self.tokens()).into_iter().collect()
    }

    /// Waits until there is a token, or `timeout` has passed, and takes all tokens.
    pub fn wait(&self, timeout: Duration) -> Vec<T> {
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // An interrupted wait takes the tokens that are there, possibly none.
        let _ = poll(&mut [PollFd::new(&self.changed.waker, PollFlags::IN)], Some(&timeout));
        self.take()
    }

    /// Readable while there are tokens.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.changed.waker.as_fd()
    }

    fn tokens(&self) -> parking_lot::MutexGuard<'_, BTreeSet<T>> {
        self.changed.tokens.lock()
    }
}
