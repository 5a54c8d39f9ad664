//! A frontend's control ring: one message at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{Channel, DomId, Domain, GrantRef};
use ring::Memory;
use ring::front::FrontRing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::FrontError;
use crate::netif::control::message;
use crate::netif::toeplitz::kind;
use crate::xenbus::{GrantedPages, PageAllocator};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A control ring, and a page for what messages are about.
pub struct Caller {
    ring: FrontRing<4>,
    ring_page: GrantedPages,
    page: GrantedPages,
    memory: Arc<Memory>,
    channel: Arc<dyn Channel>,
}

impl Caller {
    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        area: &mut PageAllocator,
        channel: Arc<dyn Channel>,
    ) -> Result<Self, FrontError> {
        let ring_page = area.grant(domain, backend, 1, true)?;
        // Some lists come back with marks in them.
        let page = area.grant(domain, backend, 1, true)?;
        let memory = Arc::clone(domain.memory());
        let ring = FrontRing::new(Arc::clone(&memory), ring_page.addr(0))?;
        Ok(Caller { ring, ring_page, page, memory, channel })
    }

    /// Pages that a control ring takes.
    pub const PAGES: u32 = 2;

    /// The page that the ring is in.
    pub fn ring_page(&self) -> &GrantedPages {
        &self.ring_page
    }

    /// Sends a message, and waits for its answer: status and data.
    ///
    /// # Errors
    /// When the backend breaks the rules, or does not answer.
    pub fn ask(&mut self, kind: u16, data: [u32; 3]) -> Result<(u32, u32), FrontError> {
        let head = self.ring.upcoming() & 0xffff | u32::from(kind) << 16;
        self.ring.push([head, data[0], data[1], data[2]])?;
        if self.ring.publish()? {
            self.channel.notify();
        }
        let until = Instant::now() + PATIENCE;
        while self.ring.arm(1)? == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FrontError::Backend("does not answer its control ring"));
            }
            let timeout = Timespec::try_from(left).ok();
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(self.channel.waker(), PollFlags::IN)],
                timeout.as_ref(),
            );
            self.channel.take();
        }
        let [answered, status, data, _] = self.ring.response(0)?;
        self.ring.take(1);
        if answered != head {
            return Err(FrontError::Backend("answered another message"));
        }
        Ok((status, data))
    }

    /// The page for what messages are about.
    pub(super) fn list_page(&self) -> GrantRef {
        self.page.reference(0)
    }

    /// Writes to the start of that page.
    pub(super) fn write_list(&self, bytes: &[u8]) -> Result<(), FrontError> {
        Ok(self.memory.write(self.page.addr(0), bytes)?)
    }

    /// Reads so many entries of eight bytes from its start.
    pub(super) fn read_list(&self, count: usize) -> Result<Vec<u8>, FrontError> {
        let mut bytes = vec![0; count * 8];
        self.memory.read(self.page.addr(0), &mut bytes)?;
        Ok(bytes)
    }

    /// Has the backend spread what comes over `queues` queues by Toeplitz hash, with this key of up
    /// to 40 bytes.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask), and when it refuses.
    pub fn spread(&mut self, queues: u16, key: &[u8]) -> Result<(), FrontError> {
        let table: Vec<u8> = (0..u32::from(queues)).flat_map(u32::to_le_bytes).collect();
        let reference = self.page.reference(0).0;
        let must = |(status, _)| {
            if status == 0 { Ok(()) } else { Err(FrontError::Backend("refuses a control message")) }
        };
        must(self.ask(message::SET_HASH_ALGORITHM, [1, 0, 0])?)?;
        self.write_list(key)?;
        must(self.ask(message::SET_HASH_KEY, [reference, key.len() as u32, 0])?)?;
        must(self.ask(message::SET_HASH_MAPPING_SIZE, [queues.into(), 0, 0])?)?;
        self.write_list(&table)?;
        must(self.ask(message::SET_HASH_MAPPING, [reference, queues.into(), 0])?)?;
        must(self.ask(message::SET_HASH_FLAGS, [kind::ALL, 0, 0])?)
    }
}
