//! An engine that carries nothing out: what the path of a request costs without a medium.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use storage::engine::{Engine, Finished};
use storage::request::Request;

/// Each step is done as soon as it is submitted. Reads leave the guest's buffers as they are, and
/// writes go nowhere.
pub struct NullEngine {
    done: Vec<Finished>,
    event: Arc<OwnedFd>,
}

impl NullEngine {
    /// An engine for one worker.
    ///
    /// # Errors
    /// When there are no descriptors.
    pub fn boxed() -> io::Result<Box<dyn Engine>> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Box::new(NullEngine { done: Vec::new(), event }))
    }
}

impl Engine for NullEngine {
    /// Of all steps, also those that the worker would carry out itself.
    fn takes_copies(&self) -> bool {
        true
    }

    fn submit(&mut self, mut request: Box<Request>) {
        let step = request.step();
        let pieces = step.map(|step| step.pieces.iter().map(|piece| piece.iov_len).sum::<usize>());
        // The number is bounded by the limit of one step.
        self.done.push((request, Ok(pieces.unwrap_or_default() as u32)));
    }

    fn flush(&mut self) {}

    /// Nothing becomes readable for what is done: the worker is to look again.
    fn has_unsubmitted(&self) -> bool {
        !self.done.is_empty()
    }

    fn reap(&mut self, finished: &mut Vec<Finished>) {
        finished.append(&mut self.done);
    }

    fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }
}
