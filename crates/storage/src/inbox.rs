//! Requests on their way back to a worker, from the thread of an image.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::request::{ReturnQueue, Returned};

/// Requests that come back to one worker.
#[derive(Debug)]
pub(crate) struct Inbox {
    returned: Mutex<Vec<Returned>>,
    /// There may be requests. Read without the lock.
    filled: AtomicBool,
    /// Wakes the worker.
    event: Arc<OwnedFd>,
}

impl Inbox {
    /// The inbox of a worker that `event` wakes.
    pub fn new(event: Arc<OwnedFd>) -> Inbox {
        Inbox { returned: Mutex::default(), filled: AtomicBool::new(false), event }
    }

    /// Takes all requests out. False: there were none.
    pub fn take(&self, returned: &mut Vec<Returned>) -> bool {
        if !self.filled.load(Ordering::Acquire) {
            return false;
        }
        self.filled.store(false, Ordering::Relaxed);
        returned.append(&mut self.returned.lock());
        !returned.is_empty()
    }
}

impl ReturnQueue for Inbox {
    fn put(&self, returned: Returned) {
        self.returned.lock().push(returned);
        self.filled.store(true, Ordering::Release);
        // The counter is saturated only if it was never read, and then the event is readable.
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }
}
