//! A frontend's Tx ring, with the pages that it sends from.
//!
//! The backend may answer in any order, and with any response: an id beyond the ring's is a
//! violation, and pages are used again only when they and all pages before them were answered.

use std::collections::VecDeque;
use std::sync::Arc;

use super::FrontError;
use super::ring::GrantedRing;
use crate::netif::slots::{Meta, extra, flag, rsp};
use crate::xenbus::{GrantedPages, PageAllocator};
use hypervisor::{Channel, DomId, Domain, Extent, PAGE};

/// Pages to send from: one for each slot, and as many again so that the next frame finds contiguous
/// room at their end or at their start.
const PAGES: u32 = 512;

/// Most pages of a frame, whose length has 16 bits.
const LONGEST: u32 = 16;

/// Slots of the longest frame: its pages, and extra info.
const SLOTS: u32 = LONGEST + 1;

/// A Tx ring.
///
/// A frame is written into consecutive pages, at [`place`](Self::place), and then sent from there.
/// Pages are granted permanently. If the backend offers `feature-range-grants`, only the bytes of a
/// frame are granted, and only while it is in flight.
pub struct Sender {
    ring: GrantedRing<3>,
    pages: GrantedPages,
    /// The index of the page where the next frame begins.
    next: u32,
    /// Pages that are not free: the oldest frame's, and all up to `next`.
    used: u32,
    /// Pages that were sent, oldest first.
    sent: VecDeque<SentPage>,
    /// Whether each page was answered, by index.
    answered: Box<[bool]>,
    /// Frames that the backend answered with an error.
    refused: u64,
    /// Grants the bytes of each frame, and nothing else, as long as it is in flight.
    ranges: Option<Ranges>,
}

/// A page that was sent.
#[derive(Clone, Copy)]
struct SentPage {
    index: u32,
    /// Pages skipped before this one, because the longest frame would not have fitted there.
    skipped: u32,
}

/// Grants that are made frame by frame.
struct Ranges {
    domain: Arc<dyn Domain>,
    to: DomId,
}

impl Sender {
    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        allocator: &mut PageAllocator,
        channel: Arc<dyn Channel>,
        by_ranges: bool,
    ) -> Result<Self, FrontError> {
        let ring = GrantedRing::new(domain, backend, allocator, channel)?;
        let (pages, ranges) = match by_ranges {
            true => (
                allocator.reserve(domain, PAGES)?,
                Some(Ranges { domain: Arc::clone(domain), to: backend }),
            ),
            false => (allocator.grant(domain, backend, PAGES, false)?, None),
        };
        Ok(Sender {
            ring,
            pages,
            next: 0,
            used: 0,
            sent: VecDeque::with_capacity(PAGES as usize),
            answered: vec![false; PAGES as usize].into(),
            refused: 0,
            ranges,
        })
    }

    /// Pages that a Tx ring takes.
    pub const PAGES: u32 = PAGES + 1;

    /// Most bytes of a frame.
    pub const LONGEST: usize = u16::MAX as usize;

    /// The ring: its page, and its event channel.
    pub fn ring(&self) -> &GrantedRing<3> {
        &self.ring
    }

    /// The pages to send from.
    pub fn pages(&self) -> &GrantedPages {
        &self.pages
    }

    /// Frames that the backend has answered with an error.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Pages at the end that the next frame skips, because the longest would not fit there.
    fn skipped(&self) -> u32 {
        if self.next + LONGEST > PAGES { PAGES - self.next } else { 0 }
    }

    /// The address where the next frame, however long, is to be written. `None` when there is no
    /// room.
    pub fn place(&self) -> Option<u64> {
        let skipped = self.skipped();
        let room = PAGES - self.used >= skipped + LONGEST && self.ring.slots.free() >= SLOTS;
        room.then(|| self.pages.addr(if skipped > 0 { 0 } else { self.next }))
    }

    /// Sends the frame of `len` bytes that was written at [`place`](Self::place), with the next
    /// [`flush`](Self::flush). A frame that is too long or empty is not sent.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn send(&mut self, len: usize, meta: Meta) -> Result<bool, FrontError> {
        if len == 0 || len > Self::LONGEST || self.place().is_none() {
            return Ok(false);
        }
        let skipped = self.skipped();
        let first = if skipped > 0 { 0 } else { self.next };
        let pages = len.div_ceil(PAGE) as u32;
        for n in 0..pages {
            let left = len - n as usize * PAGE;
            // The first slot holds the length of the whole frame.
            let size = if n == 0 { left } else { left.min(PAGE) };
            let mut flags = if n + 1 < pages { flag::TX_MORE_DATA } else { 0 };
            if n == 0 {
                flags |=
                    if meta.csum_blank { flag::TX_CSUM_BLANK | flag::TX_DATA_VALIDATED } else { 0 };
                flags |= if meta.gso.is_some() { flag::TX_EXTRA_INFO } else { 0 };
            }
            let page = first + n;
            self.grant(page, left.min(PAGE))?;
            self.ring.slots.push([
                self.pages.reference(page).0,
                u32::from(flags) << 16,
                page | (size as u32) << 16,
            ])?;
            if let (0, Some((kind, size))) = (n, meta.gso) {
                self.ring.slots.push([
                    u32::from(extra::GSO) | u32::from(size) << 16,
                    kind.into(),
                    0,
                ])?;
            }
            self.sent
                .push_back(SentPage { index: page, skipped: if n == 0 { skipped } else { 0 } });
        }
        self.used += skipped + pages;
        self.next = (first + pages) % PAGES;
        Ok(true)
    }

    /// Whether the sender grants the bytes of frames in flight instead of its pages.
    pub fn grants_ranges(&self) -> bool {
        self.ranges.is_some()
    }

    /// Grants the first `len` bytes of a page, unless the page stays granted.
    fn grant(&self, page: u32, len: usize) -> Result<(), FrontError> {
        let Some(Ranges { domain, to }) = &self.ranges else { return Ok(()) };
        let part = Extent::SubPage { offset: 0, len: len as u16 };
        Ok(domain.grant_at(self.pages.reference(page), *to, self.pages.page(page), part)?)
    }

    /// Revokes the grant of a page that was made for a frame. False while the bytes are being
    /// copied.
    fn revoke(&self, page: u32) -> bool {
        self.ranges
            .as_ref()
            .is_none_or(|ranges| ranges.domain.end_access(self.pages.reference(page)))
    }

    /// Whether the oldest page was answered.
    fn is_answered(&self) -> bool {
        let oldest = self.sent.front().and_then(|page| self.answered.get(page.index as usize));
        oldest.is_some_and(|answered| *answered)
    }

    /// Publishes what was sent.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn flush(&mut self) -> Result<(), FrontError> {
        Ok(self.ring.publish()?)
    }

    /// Takes the backend's responses, which free pages to send from. Returns how many responses
    /// there were.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn collect(&mut self) -> Result<u32, FrontError> {
        let count = self.ring.slots.ready()?;
        for n in 0..count {
            let [answer, ..] = self.ring.slots.response(n)?;
            let status = (answer >> 16) as i16;
            if status == rsp::NULL {
                continue;
            }
            self.refused += u64::from(status != rsp::OKAY);
            let answered = self.answered.get_mut((answer & 0xffff) as usize);
            *answered.ok_or(FrontError::Backend("answered what was not sent"))? = true;
        }
        self.ring.slots.take(count);
        while self.is_answered()
            && let Some(page) = self.sent.front().copied().filter(|page| self.revoke(page.index))
        {
            if let Some(answered) = self.answered.get_mut(page.index as usize) {
                *answered = false;
            }
            self.sent.pop_front();
            self.used -= 1 + page.skipped;
        }
        Ok(count)
    }

    /// Asks for a signal when about half of what is in flight is answered, and looks once more.
    /// True when there are responses now.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        // A page that was answered and could not be revoked is still being copied, and no signal
        // tells when that is over.
        Ok(self.ring.slots.arm(self.ring.slots.under_way() / 2)? > 0 || self.is_answered())
    }

    /// Whether everything that was sent was answered.
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.ring.slots.under_way() == 0
    }
}
