//! The path of requests to the kernel and back.
//!
//! An engine owns each request from [`Engine::submit`] until [`Engine::reap`] returns it: as long
//! as the kernel may use its buffers.

mod threads;
#[allow(unsafe_code, reason = "hands buffers to the kernel")]
mod uring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use crate::request::Finished;
use crate::request::Request;

pub use threads::ThreadEngine;
pub use uring::UringEngine;

/// Carries out one step of each request that it is given.
pub trait Engine: Send {
    /// Takes a request. It is begun by the next [`flush`](Self::flush) at the latest.
    fn submit(&mut self, request: Box<Request>);

    /// Hands all requests that were submitted to the kernel.
    fn flush(&mut self);

    /// Whether requests wait for the kernel to take them. If so, [`flush`](Self::flush) must be
    /// called again soon.
    fn has_unsubmitted(&self) -> bool;

    /// Appends the requests whose step is done to `finished`.
    fn reap(&mut self, finished: &mut Vec<Finished>);

    /// Makes the kernel release the files of requests that are done. To be called whenever
    /// [`completions`](Self::completions) is readable and no request is in flight.
    fn release(&mut self) {}

    /// Whether the engine also takes steps that only copy in memory. Otherwise workers carry those
    /// out themselves.
    fn takes_copies(&self) -> bool {
        false
    }

    /// Becomes readable when a step is done. Never read.
    fn completions(&self) -> BorrowedFd<'_> {
        self.event().as_fd()
    }

    /// The event behind [`completions`](Self::completions), for others that wake the worker.
    fn event(&self) -> &Arc<OwnedFd>;
}

/// The best engine that this system has.
///
/// # Errors
/// When there are no threads or descriptors.
pub fn best() -> io::Result<Box<dyn Engine>> {
    match UringEngine::new() {
        Ok(engine) => Ok(Box::new(engine)),
        Err(error) => {
            tracing::info!(reason = %error, "io_uring is not available; threads carry out the requests");
            Ok(Box::new(ThreadEngine::new()?))
        }
    }
}
