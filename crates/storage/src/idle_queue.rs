//! A queue for tests that never gives a request.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::IoChain;
use runtime::QueueId;
use runtime::coalescing::Notified;

use crate::Disk;
use crate::queue::{QueueError, RequestQueue};
use crate::slot::Attachment;

/// A queue without requests.
#[derive(Default)]
pub(crate) struct Idle {
    /// What its peer is interrupted by.
    pub call: Option<OwnedFd>,
    /// Whether it looks as if there were a request.
    pub claims_more: bool,
    /// Called to look for one.
    pub on_take: Option<fn()>,
    /// Page faults that were noted.
    pub noted: Arc<AtomicU64>,
    /// Pages that the kernel has used.
    pub used: Arc<AtomicU64>,
}

impl RequestQueue for Idle {
    fn take(&mut self, _: &mut IoChain) -> Result<Option<u16>, QueueError> {
        self.on_take.inspect(|on_take| on_take());
        Ok(None)
    }

    fn has_next(&mut self) -> Result<bool, QueueError> {
        Ok(self.claims_more)
    }

    fn complete(&mut self, _: u16, _: u32) {}

    fn flush(&mut self) -> Result<Notified, QueueError> {
        let Some(call) = &self.call else { return Ok(Notified::Nothing) };
        ring::interrupt::interrupt(call.as_fd())?;
        Ok(Notified::Sent)
    }

    fn arm(&mut self) -> Result<bool, QueueError> {
        Ok(false)
    }

    fn disarm(&mut self) {}

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn note_faults(&self, faults: u64) {
        self.noted.fetch_add(faults, Ordering::Relaxed);
    }

    fn used_by_kernel(&self, pages: u64) {
        self.used.fetch_add(pages, Ordering::Relaxed);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// The queue on its way to a worker, as the first one of `disk`.
pub(crate) fn attachment(queue: Idle, disk: Arc<Disk>) -> Attachment {
    Attachment {
        id: QueueId(0),
        class: 0,
        name: "disk".into(),
        index: 0,
        queue: Box::new(queue),
        disk,
        counters: Arc::default(),
        on_error: Arc::new(|_, _| ()),
        policy: None,
        failed: false,
    }
}
