//! The common part of a frontend's rings: the granted page that they lie in, and the event channel.

use std::sync::Arc;

use ::ring::front::FrontRing;
use hypervisor::{Channel, DomId, Domain};
use ring::{Memory, Violation};

use crate::xenbus::{FrontError, GrantedPages, PageAllocator};

/// A ring of slots of `WORDS` words, in a page that is granted to the backend.
pub struct GrantedRing<const WORDS: usize> {
    pub(super) slots: FrontRing<WORDS>,
    page: GrantedPages,
    memory: Arc<Memory>,
    channel: Arc<dyn Channel>,
}

impl<const WORDS: usize> GrantedRing<WORDS> {
    /// A new ring, in the next page of `pages`.
    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        pages: &mut PageAllocator,
        channel: Arc<dyn Channel>,
    ) -> Result<Self, FrontError> {
        let page = pages.grant(domain, backend, 1, true)?;
        let memory = Arc::clone(domain.memory());
        let slots = FrontRing::new(Arc::clone(&memory), page.addr(0))?;
        Ok(GrantedRing { slots, page, memory, channel })
    }

    /// The page that the ring lies in.
    pub fn page(&self) -> &GrantedPages {
        &self.page
    }

    /// Its event channel.
    pub fn channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    /// The memory of the domain, in which frames lie.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Publishes the requests that were pushed, and signals the backend if it asked for a signal.
    pub(super) fn publish(&mut self) -> Result<(), Violation> {
        if self.slots.publish()? {
            self.channel.notify();
        }
        Ok(())
    }
}
