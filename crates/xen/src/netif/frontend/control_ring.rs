//! A frontend's control ring: one message at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{Channel, DomId, Domain, GrantRef};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::FrontError;
use super::ring::GrantedRing;
use crate::netif::hash_control::ctrl_type;
use crate::netif::toeplitz::kind;
use crate::xenbus::{GrantedPages, PageAllocator};

/// Longest time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A control ring, and a page for the parameters of messages.
pub struct ControlRing {
    ring: GrantedRing<4>,
    /// The page for the parameters of messages.
    page: GrantedPages,
}

impl ControlRing {
    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        allocator: &mut PageAllocator,
        channel: Arc<dyn Channel>,
    ) -> Result<Self, FrontError> {
        let ring = GrantedRing::new(domain, backend, allocator, channel)?;
        // Writable: the backend writes outcomes into some lists.
        let page = allocator.grant(domain, backend, 1, true)?;
        Ok(ControlRing { ring, page })
    }

    /// Pages that a control ring takes.
    pub const PAGES: u32 = 2;

    /// The ring: its page, and its event channel.
    pub fn ring(&self) -> &GrantedRing<4> {
        &self.ring
    }

    /// Sends a message, and waits for its answer: status and data.
    ///
    /// # Errors
    /// When the backend breaks the rules, or does not answer.
    pub fn request(&mut self, kind: u16, data: [u32; 3]) -> Result<(u32, u32), FrontError> {
        let head = self.ring.slots.upcoming() & 0xffff | u32::from(kind) << 16;
        self.ring.slots.push([head, data[0], data[1], data[2]])?;
        self.ring.publish()?;
        let until = Instant::now() + TIMEOUT;
        while self.ring.slots.arm(1)? == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FrontError::Backend("does not answer its control ring"));
            }
            let timeout = Timespec::try_from(left).ok();
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(self.ring.channel().waker(), PollFlags::IN)],
                timeout.as_ref(),
            );
            self.ring.channel().take();
        }
        let [answered, status, data, _] = self.ring.slots.response(0)?;
        self.ring.slots.take(1);
        if answered != head {
            return Err(FrontError::Backend("answered another message"));
        }
        Ok((status, data))
    }

    /// The page for the parameters of messages.
    pub(super) fn list_page(&self) -> GrantRef {
        self.page.reference(0)
    }

    /// Writes to the start of the page for parameters.
    pub(super) fn write_list(&self, bytes: &[u8]) -> Result<(), FrontError> {
        Ok(self.ring.memory().write(self.page.addr(0), bytes)?)
    }

    /// Reads `count` entries of eight bytes from the start of that page.
    pub(super) fn read_list(&self, count: usize) -> Result<Vec<u8>, FrontError> {
        let mut bytes = vec![0; count * 8];
        self.ring.memory().read(self.page.addr(0), &mut bytes)?;
        Ok(bytes)
    }

    /// Lets the backend distribute frames over `queues` queues by Toeplitz hash, with a key of up
    /// to 40 bytes.
    ///
    /// # Errors
    /// As for [`ask`](Self::request), and when it refuses.
    pub fn set_hash(&mut self, queues: u16, key: &[u8]) -> Result<(), FrontError> {
        let table: Vec<u8> = (0..u32::from(queues)).flat_map(u32::to_le_bytes).collect();
        let reference = self.page.reference(0).0;
        let must = |(status, _)| {
            if status == 0 { Ok(()) } else { Err(FrontError::Backend("refuses a control message")) }
        };
        must(self.request(ctrl_type::SET_HASH_ALGORITHM, [1, 0, 0])?)?;
        self.write_list(key)?;
        must(self.request(ctrl_type::SET_HASH_KEY, [reference, key.len() as u32, 0])?)?;
        must(self.request(ctrl_type::SET_HASH_MAPPING_SIZE, [queues.into(), 0, 0])?)?;
        self.write_list(&table)?;
        must(self.request(ctrl_type::SET_HASH_MAPPING, [reference, queues.into(), 0])?)?;
        must(self.request(ctrl_type::SET_HASH_FLAGS, [kind::ALL, 0, 0])?)
    }
}
