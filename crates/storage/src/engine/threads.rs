//! Requests without io_uring: a few threads for each worker, and a system call for each step.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use super::{Engine, Finished};
use crate::request::Request;

/// Threads of one worker.
const THREADS: usize = 4;
/// Stack of each, in bytes.
const STACK: usize = 128 << 10;

/// State that a worker shares with its threads.
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when the queue has requests, or ends.
    ready: Condvar,
    finished: Mutex<Vec<Finished>>,
    event: Arc<OwnedFd>,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Box<Request>>,
    ends: bool,
}

/// Requests carried out by threads.
pub struct ThreadEngine {
    shared: Arc<Shared>,
    /// Submitted since the last flush.
    #[expect(clippy::vec_box, reason = "requests are handed on as boxes, and not moved")]
    batch: Vec<Box<Request>>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadEngine {
    /// Starts the threads.
    ///
    /// # Errors
    /// When there are none, or no descriptors.
    pub fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            ready: Condvar::new(),
            finished: Mutex::default(),
            event: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        });
        let mut engine = ThreadEngine { shared, batch: Vec::new(), threads: Vec::new() };
        for number in 0..THREADS {
            let shared = Arc::clone(&engine.shared);
            let thread = std::thread::Builder::new().name(format!("rm-disk-{number}"));
            let run = move || {
                sandbox::enter_thread(sandbox::Role::Worker);
                work(&shared);
            };
            engine.threads.push(thread.stack_size(STACK).spawn(run)?);
        }
        Ok(engine)
    }
}

fn work(shared: &Shared) {
    loop {
        let mut queue = shared.queue.lock();
        let mut request = loop {
            match queue.requests.pop_front() {
                Some(request) => break request,
                None if queue.ends => return,
                None => shared.ready.wait(&mut queue),
            }
        };
        drop(queue);
        let result = request.step().map_or(Err(libc::EBADF), |step| step.carry_out());
        shared.finished.lock().push((request, result));
        // The counter is saturated only if it was never read, and then the event is readable.
        let _ = rustix::io::write(&*shared.event, &1u64.to_ne_bytes());
    }
}

impl Engine for ThreadEngine {
    fn submit(&mut self, request: Box<Request>) {
        self.batch.push(request);
    }

    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.shared.queue.lock().requests.extend(self.batch.drain(..));
        self.shared.ready.notify_all();
    }

    fn has_unsubmitted(&self) -> bool {
        false
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        finished.append(&mut self.shared.finished.lock());
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.shared.event
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.flush();
        self.shared.queue.lock().ends = true;
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            // Such a thread does not panic; if it did, nothing could be done about it here.
            let _ = thread.join();
        }
    }
}
