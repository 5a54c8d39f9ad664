//! One queue of a disk: a vring of one vhost-user connection as the block pipeline sees it.
//!
//! A queue has one owner at a time. While a worker has the queue, only that worker touches it. To
//! change it, the session takes it back once none of its requests is with the kernel, makes the
//! change, and hands it over again.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ring::{IoChain, Memory, RequestRing, Violation};
use storage::queue::{Notified, QueueError, RequestQueue};

use crate::transport::device::VringControl;

/// A queue as a session sees it.
pub(super) trait VringQueue: RequestQueue {
    /// Changes how the ring signals and whether it passes data.
    fn control(&mut self, control: VringControl);

    /// Whether it passes data.
    fn is_enabled(&self) -> bool;

    /// Looks up the ring in changed memory.
    ///
    /// # Errors
    /// When the ring is not in the new memory.
    fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), Violation>;

    /// The ring's position, as `GET_VRING_BASE` returns it.
    fn position(&self) -> u32;

    /// Converts the queue for the block pipeline.
    fn into_request_queue(self: Box<Self>) -> Box<dyn RequestQueue>;
}

/// A queue over a virtqueue of one layout.
pub(super) struct BlkQueue<R> {
    ring: R,
    control: VringControl,
}

impl<R: RequestRing> BlkQueue<R> {
    pub(super) fn new(mut ring: R, control: VringControl) -> Self {
        ring.set_used_log(control.used_log);
        ring.disarm();
        BlkQueue { ring, control }
    }

    /// Fails when the guest's memory has a hole, since reads then return zeros, and when more of it
    /// was allocated here than allowed.
    fn check_memory(&self) -> Result<(), Violation> {
        self.ring.memory().violation().map_or(Ok(()), Err)
    }
}

impl<R: RequestRing + 'static> RequestQueue for BlkQueue<R> {
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, QueueError> {
        Ok(self.ring.take(chain)?)
    }

    fn has_next(&mut self) -> Result<bool, QueueError> {
        Ok(self.ring.has_next()?)
    }

    fn complete(&mut self, token: u16, len: u32) {
        self.ring.complete(token, len);
    }

    fn flush(&mut self) -> Result<Notified, QueueError> {
        let notified = match (self.ring.publish(), &self.control.call) {
            (None, _) => Notified::Nothing,
            (Some(true), Some(call)) => {
                call.signal()?;
                Notified::Sent
            }
            (Some(_), _) => Notified::Suppressed,
        };
        self.check_memory()?;
        Ok(notified)
    }

    /// Arms the ring. A driver that gave no kick expects its ring to be polled, so the result is
    /// always true then.
    fn arm(&mut self) -> Result<bool, QueueError> {
        Ok(self.ring.arm()? || self.control.kick.is_none())
    }

    fn disarm(&mut self) {
        self.ring.disarm();
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.control.kick.as_ref().map(|kick| kick.as_fd())
    }

    fn note_faults(&self, faults: u64) {
        self.ring.memory().faulted(faults);
    }

    fn used_by_kernel(&self, pages: u64) {
        self.ring.memory().used_by_kernel(pages);
    }

    /// A `Box<dyn VringQueue>`, whatever the layout.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        let queue: Box<dyn VringQueue> = self;
        Box::new(queue)
    }
}

impl<R: RequestRing + 'static> VringQueue for BlkQueue<R> {
    fn control(&mut self, control: VringControl) {
        self.ring.set_used_log(control.used_log);
        self.control = control;
    }

    fn is_enabled(&self) -> bool {
        self.control.enabled
    }

    fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), Violation> {
        self.ring.set_memory(memory)
    }

    fn position(&self) -> u32 {
        self.ring.position()
    }

    fn into_request_queue(self: Box<Self>) -> Box<dyn RequestQueue> {
        self
    }
}
