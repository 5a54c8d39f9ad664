//! A queue of a vbd: a ring whose requests become requests of the block pipeline.
//!
//! A request is handed to the pipeline in the format of virtio-blk, in memory of this process: a
//! header, data, and a byte for the status. Data is copied between that memory and the guest's
//! pages: from writes when requests are taken out of the ring, and to reads when they are
//! completed. Pages that stay mapped are copied by the worker itself, and others by grant copies,
//! with one call for each burst.
//!
//! The kernel could also use mapped pages directly. But a domain 0 without hardware virtualization
//! spends several times as many instructions to look up a mapped page of another domain as to copy
//! a page.
//!
//! Requests are answered in the order of the ring. So a slot without a published response still
//! holds its request, and after this process was killed, its successor finds in the ring all
//! requests that must be done again.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hypervisor::{Channel, DomId, PAGE};
use ring::xen::BackRing;
use ring::{Engine, IoChain, MapError, Memory, Violation};
use storage::Disk;
use storage::command::{self, BlockStatus, HEADER, MOST_DISCARDED, RANGE, Refusal};
use storage::queue::{Notified, QueueError, RequestQueue};
use thiserror::Error;

mod entry;
mod fetch;
mod transfer;

use super::buffers::Buffers;
use super::layout::{LEN_32, LEN_64, Layout};
use super::persistent_grants::PersistentGrants;
use super::request::{self, MAX_INDIRECT_SEGMENTS, What};
use entry::Entry;
use transfer::{Transfer, control_at};

/// Bytes of data that a queue may have in flight: twice the longest request.
pub const BUFFERS: usize = 2 * MAX_INDIRECT_SEGMENTS as usize * PAGE;

/// Requests that are taken out of the ring together.
const BATCH: u32 = 32;

/// Where the range and the status are, behind the header.
const RANGE_AT: u64 = HEADER as u64;
const STATUS_AT: u64 = (HEADER + RANGE) as u64;

/// The parts that a queue is made of.
pub struct QueueParts {
    /// The pages of its ring, side by side.
    pub ring: Arc<Memory>,
    /// The number of these pages.
    pub pages: usize,
    /// The event channel of the ring.
    pub channel: Box<dyn Channel>,
    /// The layout of its slots.
    pub layout: Layout,
    /// The domain of its frontend.
    pub domain: DomId,
    /// The engine that makes grant copies.
    pub engine: Arc<dyn Engine>,
    /// Its pages that stay mapped; `None`: the frontend has no persistent grants.
    pub persistent: Option<PersistentGrants>,
    /// The disk that requests go to.
    pub disk: Arc<Disk>,
    /// Another process served the ring before, and may have been stopped at any point.
    pub resumed: bool,
}

/// Why there is no queue.
#[derive(Debug, Error)]
pub enum StartError {
    /// The indices of the ring contradict each other.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// There is no memory for its data.
    #[error(transparent)]
    Memory(#[from] MapError),
}

/// Makes a queue that continues its ring from the ring's present indices.
///
/// # Errors
/// See [`StartError`].
pub fn start(parts: QueueParts) -> Result<Box<dyn RequestQueue>, StartError> {
    Ok(match parts.layout {
        Layout::Bits64 => Box::new(BlkQueue::<{ LEN_64 / 4 }>::new(parts)?),
        Layout::Bits32 => Box::new(BlkQueue::<{ LEN_32 / 4 }>::new(parts)?),
    })
}

/// A queue, with slots of `WORDS` words.
struct BlkQueue<const WORDS: usize> {
    ring: BackRing<WORDS>,
    channel: Box<dyn Channel>,
    layout: Layout,
    disk: Arc<Disk>,
    transfer: Transfer,
    buffers: Buffers,
    /// Pages that stay mapped, if the frontend's grants are persistent.
    persistent: Option<PersistentGrants>,
    /// Requests that are taken, by slot.
    entries: Box<[Entry]>,
    /// Number of the next request to hand to the pipeline. The requests from there to the next one
    /// to take out of the ring have their data.
    handed: u32,
    /// There is no room for the data of the next request.
    full: bool,
    /// Reads whose data could not be copied to the guest's pages, not counted yet.
    lost: u64,
}

impl<const WORDS: usize> BlkQueue<WORDS> {
    fn new(parts: QueueParts) -> Result<Self, StartError> {
        let QueueParts { ring, pages, channel, layout, disk, persistent, resumed, .. } = parts;
        let ring = BackRing::attach_pages(ring, 0, pages)?;
        let size = ring.size() as usize;
        let transfer = Transfer::new(parts.domain, parts.engine, size)?;
        let handed = ring.upcoming();
        let mut queue = BlkQueue {
            ring,
            channel,
            layout,
            disk,
            transfer,
            buffers: Buffers::new(BUFFERS as u32),
            persistent,
            entries: (0..size).map(|_| Entry::default()).collect(),
            handed,
            full: false,
            lost: 0,
        };
        if resumed {
            queue.publish_left_over()?;
            queue.channel.notify();
        }
        Ok(queue)
    }

    /// Publishes responses that another process wrote and did not publish.
    fn publish_left_over(&mut self) -> Result<(), Violation> {
        while self.ring.ready(1)? > 0 && request::is_response(self.layout, &self.ring.request(0)) {
            let response = self.ring.request(0);
            self.ring.take(1);
            self.ring.respond(response);
        }
        self.ring.publish();
        self.handed = self.ring.upcoming();
        Ok(())
    }

    /// The place of request number `number` in the table.
    fn slot(&self, number: u32) -> usize {
        (number & (self.ring.size() - 1)) as usize
    }

    /// Puts the next part of a request into `chain`. True when no part of the request is left.
    fn hand_out(&mut self, at: usize, chain: &mut IoChain) -> Result<bool, Violation> {
        let (control, memory) = (control_at(at), &self.transfer.memory);
        let entry = &mut self.entries[at];
        let (data, len) = (u64::from(entry.span.at), entry.bytes);
        let mut hint = 0;
        chain.begin(memory);
        chain.add(control, HEADER as u32, false, &mut hint)?;
        let (kind, sector) = match entry.what {
            _ if entry.refusal.is_some() => (command::FLUSH, 0),
            What::Data { write: true, .. } => {
                chain.add(data, len, false, &mut hint)?;
                (command::OUT, entry.sector)
            }
            What::Data { write: false, .. } => {
                chain.add(data, len, true, &mut hint)?;
                (command::IN, entry.sector)
            }
            What::Discard(left) => {
                let sectors = left.min(MOST_DISCARDED.into());
                memory.write(control + RANGE_AT, &range(entry.sector, sectors as u32))?;
                chain.add(control + RANGE_AT, RANGE as u32, false, &mut hint)?;
                entry.what = What::Discard(left - sectors);
                entry.sector += sectors;
                (command::DISCARD, 0)
            }
            What::Flush | What::Refused(_) => (command::FLUSH, 0),
        };
        memory.write(control, &header(kind, sector))?;
        chain.add(control + STATUS_AT, 1, true, &mut hint)?;
        Ok(entry.handed_out())
    }
}

fn header(kind: u32, sector: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[8..].copy_from_slice(&sector.to_le_bytes());
    header
}

fn range(sector: u64, sectors: u32) -> [u8; RANGE] {
    let mut range = [0; RANGE];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&sectors.to_le_bytes());
    range
}

impl<const WORDS: usize> RequestQueue for BlkQueue<WORDS> {
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, QueueError> {
        if self.handed == self.ring.upcoming() {
            self.ingest()?;
            if self.handed == self.ring.upcoming() {
                return Ok(None);
            }
        }
        let at = self.slot(self.handed);
        if self.hand_out(at, chain)? {
            self.handed = self.handed.wrapping_add(1);
        }
        Ok(Some(at as u16))
    }

    /// The parts of a long request have one header after the other in the same place.
    fn takes_groups(&self) -> bool {
        false
    }

    fn has_next(&mut self) -> Result<bool, QueueError> {
        let left = self.handed != self.ring.upcoming();
        Ok(!self.full && (left || self.ring.posted()? != self.ring.upcoming()))
    }

    fn complete(&mut self, token: u16, _: u32) {
        let at = usize::from(token);
        let Some(entry) = self.entries.get_mut(at) else { return };
        let mut status = [0];
        let read = self.transfer.memory.read(control_at(at) + STATUS_AT, &mut status);
        if !entry.part_done(if read.is_ok() { status[0] } else { BlockStatus::IoErr as u8 }) {
            return;
        }
        if entry.status == BlockStatus::Ok && entry.reads() {
            match entry.is_mapped() {
                true => self.transfer.copy_mapped(entry, self.persistent.as_ref()),
                false => self.transfer.deliver(at, entry),
            }
        }
    }

    fn flush(&mut self) -> Result<Notified, QueueError> {
        self.lost += self.transfer.run_outgoing(&mut self.entries);
        while self.ring.taken() > 0 {
            let at = self.slot(self.ring.position());
            let entry = &mut self.entries[at];
            if !entry.is_done() {
                break;
            }
            let (id, operation, status, span) = entry.end();
            self.ring.respond(request::response(self.layout, id, operation, status));
            self.buffers.free_oldest(span);
            self.full = false;
        }
        Ok(match self.ring.publish() {
            None => Notified::Nothing,
            Some(true) => {
                self.channel.notify();
                Notified::Sent
            }
            Some(false) => Notified::Suppressed,
        })
    }

    fn arm(&mut self) -> Result<bool, QueueError> {
        // The channel comes first, so that a signal which comes while the ring is read is not lost.
        self.channel.take();
        Ok(self.handed != self.ring.upcoming() || self.ring.arm()? > 0)
    }

    /// Does nothing: the ring's event stays in the past, and the channel's signal is not taken, so
    /// no other comes.
    fn disarm(&mut self) {}

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.waker())
    }

    fn refusal(&self, token: u16) -> Option<Refusal> {
        self.entries.get(usize::from(token)).and_then(|entry| entry.refusal)
    }

    fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    fn is_full(&self) -> bool {
        self.full
    }

    fn copies_data(&self) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
