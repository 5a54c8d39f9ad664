//! The device side of a virtqueue of either layout.
//!
//! The common part of fetching, completing and putting is here; a [`Layout`] knows where the
//! descriptors are, and how they are given back.

use std::sync::Arc;

use crate::buffers::{Buffers, Fit};
use crate::device::{DeviceRing, Put, Recovery, RingConfig};
use crate::gather::{Body, Chain, Gather};
use crate::grant_copy_batch::GrantCopyBatch;
use crate::inflight::RingRecord;
use crate::layout::Layout;
use crate::pending_log::PendingLog;
use crate::region::Memory;
use crate::violation::Violation;
use crate::walk::Fetch;

/// Buffers that are taken together when one is missing.
const BATCH: usize = 64;

/// The number of buffers looked at in vain, for a frame too big for all of them, that cost as much
/// as filling one piece.
const LOOKED_AT: usize = 8;

/// The device side of one virtqueue.
#[derive(Debug)]
pub struct Virtqueue<L> {
    layout: L,
    /// Rx: buffers taken ahead.
    buffers: Buffers,
    /// Rx: pieces of memory that frames were put into, beyond one a frame.
    extra_pieces: u32,
    /// Rx: the writes since the last publication, while writes are logged.
    pending_log: PendingLog,
}

// SAFETY: the spans of `buffers` point into memory that the layout keeps mapped for the whole
// process, and that is only reached through raw copies; the layout itself can be sent.
unsafe impl<L: Layout> Send for Virtqueue<L> {}

#[expect(private_bounds, reason = "layouts are an affair of this crate")]
impl<L: Layout> Virtqueue<L> {
    /// How many of the oldest buffers a frame of `total` bytes takes, or why it cannot be put.
    #[inline(always)]
    fn place(&mut self, total: u64, mergeable: bool) -> Result<Result<usize, Put>, Violation> {
        loop {
            match self.buffers.fit(total, mergeable) {
                Fit::Takes(n) => return Ok(Ok(n)),
                Fit::Never => return Ok(Err(Put::TooBig)),
                Fit::Short => {
                    let before = (self.buffers.len(), self.buffers.room());
                    self.prepare(before.0 + BATCH)?;
                    if before == (self.buffers.len(), self.buffers.room()) {
                        return Ok(Err(Put::Full));
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn count_extra(&mut self, pieces: usize) {
        self.extra_pieces = self.extra_pieces.saturating_add(pieces as u32);
    }

    /// Notes the places of the next `total` bytes to be written, in the oldest `n` buffers.
    #[cold]
    fn note_writes(&mut self, n: usize, total: u64) {
        let (memory, pending) = (self.layout.memory(), &mut self.pending_log);
        self.buffers.targets(n, total as usize, |at, len| pending.add(memory, at.as_ptr(), len));
    }

    /// Puts a frame whose body is granted into the oldest `n` buffers.
    #[cold]
    fn put_granted(
        &mut self,
        n: usize,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Put {
        let token = u32::from(self.layout.next_used()) | (n as u32) << 16;
        let pieces = body.fragments() + self.buffers.pieces(n);
        let len = head.len() as u32 + body.len();
        let has_begun = body
            .engine()
            .is_some_and(|engine| grant_copies.begin(engine, body, token, len, pieces, 0));
        if !has_begun {
            return Put::Refused;
        }
        grant_copies.pin(self.layout.memory());
        if self.is_logged() {
            self.note_writes(n, net.len() as u64 + u64::from(len));
        }
        let layout = &mut self.layout;
        self.buffers.fill_granted(n, net, head, body, grant_copies, |used| layout.give_back(used));
        Put::Done
    }
}

impl<L: Layout> DeviceRing for Virtqueue<L> {
    fn new(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation> {
        Ok(Self {
            layout: L::attach(mem, config)?,
            buffers: Buffers::new(),
            extra_pieces: 0,
            pending_log: PendingLog::default(),
        })
    }

    fn recover(&mut self, record: Option<RingRecord>) -> Recovery {
        self.layout.recover(record)
    }

    fn set_memory(&mut self, mem: Arc<Memory>) -> Result<(), Violation> {
        self.pending_log.flush(self.layout.memory());
        self.layout.set_memory(mem, self.buffers.len())?;
        self.buffers.clear();
        Ok(())
    }

    fn set_used_log(&mut self, addr: Option<u64>) {
        self.layout.set_used_log(addr);
    }

    #[inline(always)]
    fn is_logged(&self) -> bool {
        self.layout.memory().is_logged()
    }

    #[inline]
    fn fetch(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        max: usize,
    ) -> Result<usize, Violation> {
        let ready = self.layout.ready(max)?;
        if ready == 0 {
            return Ok(0);
        }
        gather.pin(self.layout.memory());
        let taken = self.layout.take(ready, &mut Fetch::new(gather, chains));
        self.layout.look_ahead();
        taken
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.layout.outstanding() - self.buffers.len()
    }

    #[inline]
    fn complete(&mut self, n: usize) {
        debug_assert!(n <= self.in_flight());
        for _ in 0..n.min(self.in_flight()) {
            self.layout.give_back(0);
        }
    }

    fn rewind(&mut self, n: usize) {
        debug_assert!(n <= self.in_flight());
        self.layout.untake(n.min(self.in_flight()));
    }

    #[inline]
    fn prepare(&mut self, n: usize) -> Result<usize, Violation> {
        let wanted = self.buffers.wanted(n);
        if wanted > 0 {
            let ready = self.layout.ready_at_most(wanted)?;
            self.layout.take(ready, &mut self.buffers)?;
        }
        Ok(self.buffers.len())
    }

    #[inline]
    fn put(
        &mut self,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        mergeable: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, Violation> {
        let total = net.len() as u64 + head.len() as u64 + u64::from(body.len());
        let n = match self.place(total, mergeable)? {
            Ok(n) => n,
            Err(put) => {
                if put == Put::TooBig {
                    self.count_extra(self.buffers.len() / LOOKED_AT);
                }
                return Ok(put);
            }
        };
        self.count_extra(self.buffers.pieces(n).saturating_sub(1));
        if body.is_granted() {
            return Ok(self.put_granted(n, net, head, body, grant_copies));
        }
        if self.is_logged() {
            self.note_writes(n, total);
        }
        let layout = &mut self.layout;
        self.buffers.fill(n, net, head, body, |used| layout.give_back(used));
        Ok(Put::Done)
    }

    #[inline(always)]
    fn put_alone(&mut self, net: [u8; 12], head: &[u8], body: Body<'_>) -> bool {
        debug_assert!(!self.is_logged());
        let Some(used) = self.buffers.fill_alone(net, head, body) else { return false };
        self.layout.give_back(used);
        true
    }

    #[inline]
    fn prefetch(&self, n: usize, len: usize) {
        self.buffers.prefetch(n, len);
    }

    #[inline]
    fn take_extra_pieces(&mut self) -> u32 {
        std::mem::take(&mut self.extra_pieces)
    }

    fn invalidate(&mut self, token: u32) {
        self.layout.invalidate(token as u16, (token >> 16) as u16);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let wanted = self.layout.publish();
        if !self.pending_log.is_empty() {
            self.pending_log.flush(self.layout.memory());
        }
        wanted
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        self.layout.arm()
    }

    fn disarm(&mut self) {
        self.layout.disarm();
    }

    #[inline]
    fn available(&mut self) -> Result<bool, Violation> {
        Ok(self.layout.ready(1)? > 0)
    }

    fn position(&self) -> u32 {
        self.layout.position()
    }

    fn mark(&self) -> u32 {
        self.layout.mark()
    }

    fn has_consumed(&self, mark: u32) -> bool {
        self.layout.has_consumed(mark)
    }
}
