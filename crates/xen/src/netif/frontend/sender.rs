//! A frontend's Tx ring, with the pages that it sends from.

use std::collections::VecDeque;
use std::sync::Arc;

use hypervisor::{Channel, DomId, Domain, Extent, PAGE};
use ring::Memory;
use ring::front::FrontRing;

use super::FrontError;
use crate::netif::slots::{Meta, extra, flag, rsp};
use crate::xenbus::{GrantedPages, PageAllocator};

/// Pages to send from: as many as there are slots, and as many again so that the next frame finds
/// room at their end or at their start.
const PAGES: u32 = 512;

/// Most pages of a frame; its length is a number of 16 bits.
const LONGEST: u32 = 16;

/// Slots of the longest frame: its pages, and extra info.
const SLOTS: u32 = LONGEST + 1;

/// A Tx ring.
///
/// A frame is written into pages that follow each other, at [`place`](Self::place), and then sent
/// from there. Its pages are granted once and for all, or, if the backend offers
/// `feature-range-grants`, exactly its bytes and as long as it is under way.
pub struct Sender {
    ring: FrontRing<3>,
    ring_page: GrantedPages,
    memory: Arc<Memory>,
    pages: GrantedPages,
    channel: Arc<dyn Channel>,
    /// Where the next frame goes.
    next: u32,
    /// Pages that are not free: the oldest frame's, and all up to `next`.
    used: u32,
    /// Pages that were sent, oldest first: which, and with how many that were passed over before
    /// it.
    sent: VecDeque<(u32, u32)>,
    /// Which of them were answered.
    answered: Box<[bool]>,
    /// Frames that the backend did not take.
    refused: u64,
    /// Who is granted the bytes of each frame, and nothing else, as long as it is under way.
    ranges: Option<Ranges>,
}

/// How pages are granted frame by frame.
struct Ranges {
    domain: Arc<dyn Domain>,
    to: DomId,
}

impl Sender {
    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        area: &mut PageAllocator,
        channel: Arc<dyn Channel>,
        by_ranges: bool,
    ) -> Result<Self, FrontError> {
        let ring_page = area.grant(domain, backend, 1, true)?;
        let (pages, ranges) = match by_ranges {
            true => (
                area.reserve(domain, PAGES)?,
                Some(Ranges { domain: Arc::clone(domain), to: backend }),
            ),
            false => (area.grant(domain, backend, PAGES, false)?, None),
        };
        let memory = Arc::clone(domain.memory());
        Ok(Sender {
            ring: FrontRing::new(Arc::clone(&memory), ring_page.addr(0))?,
            ring_page,
            memory,
            pages,
            channel,
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

    /// The page that the ring is in.
    pub fn ring_page(&self) -> &GrantedPages {
        &self.ring_page
    }

    /// The pages that it sends from.
    pub fn pages(&self) -> &GrantedPages {
        &self.pages
    }

    /// Its event channel.
    pub fn channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    /// The memory that frames are written to.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Frames that the backend did not take so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Pages at the end that the next frame passes over, because the longest would not fit there.
    fn over(&self) -> u32 {
        if self.next + LONGEST > PAGES { PAGES - self.next } else { 0 }
    }

    /// The address where the next frame, however long, is to be written. `None`: there is no room.
    pub fn place(&self) -> Option<u64> {
        let over = self.over();
        let room = PAGES - self.used >= over + LONGEST && self.ring.free() >= SLOTS;
        room.then(|| self.pages.addr(if over > 0 { 0 } else { self.next }))
    }

    /// Sends the frame of `len` bytes that was written at [`place`](Self::place); it goes with the
    /// next [`flush`](Self::flush). One that is too long, or has no bytes, goes nowhere.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn send(&mut self, len: usize, meta: Meta) -> Result<bool, FrontError> {
        if len == 0 || len > Self::LONGEST || self.place().is_none() {
            return Ok(false);
        }
        let over = self.over();
        let first = if over > 0 { 0 } else { self.next };
        let pages = len.div_ceil(PAGE) as u32;
        for n in 0..pages {
            let left = len - n as usize * PAGE;
            // The first slot says how long the whole is.
            let size = if n == 0 { left } else { left.min(PAGE) };
            let mut flags = if n + 1 < pages { flag::TX_MORE_DATA } else { 0 };
            if n == 0 {
                flags |=
                    if meta.csum_blank { flag::TX_CSUM_BLANK | flag::TX_DATA_VALIDATED } else { 0 };
                flags |= if meta.gso.is_some() { flag::TX_EXTRA_INFO } else { 0 };
            }
            let page = first + n;
            self.open(page, left.min(PAGE))?;
            self.ring.push([
                self.pages.reference(page).0,
                u32::from(flags) << 16,
                page | (size as u32) << 16,
            ])?;
            if let (0, Some((kind, size))) = (n, meta.gso) {
                self.ring.push([u32::from(extra::GSO) | u32::from(size) << 16, kind.into(), 0])?;
            }
            self.sent.push_back((page, if n == 0 { over } else { 0 }));
        }
        self.used += over + pages;
        self.next = (first + pages) % PAGES;
        Ok(true)
    }

    /// Whether it grants the bytes of frames, as long as they are under way, and not its pages.
    pub fn grants_ranges(&self) -> bool {
        self.ranges.is_some()
    }

    /// Grants the first `len` bytes of a page, if it is not granted anyway.
    fn open(&self, page: u32, len: usize) -> Result<(), FrontError> {
        let Some(Ranges { domain, to }) = &self.ranges else { return Ok(()) };
        let part = Extent::Part { offset: 0, len: len as u16 };
        Ok(domain.grant_as(self.pages.reference(page), *to, self.pages.page(page), part)?)
    }

    /// Takes back what was granted of a page for a frame. False as long as it is being copied.
    fn close(&self, page: u32) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.domain.withdraw(self.pages.reference(page)))
    }

    /// Whether the oldest page was answered.
    fn is_answered(&self) -> bool {
        let oldest = self.sent.front().and_then(|(page, _)| self.answered.get(*page as usize));
        oldest.is_some_and(|answered| *answered)
    }

    /// Lets the backend see what was sent.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn flush(&mut self) -> Result<(), FrontError> {
        if self.ring.publish()? {
            self.channel.notify();
        }
        Ok(())
    }

    /// Takes the backend's answers, and with them pages to send from. How many answers there were.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn collect(&mut self) -> Result<u32, FrontError> {
        let count = self.ring.ready()?;
        for n in 0..count {
            let [answer, ..] = self.ring.response(n)?;
            let status = (answer >> 16) as i16;
            if status == rsp::NULL {
                continue;
            }
            self.refused += u64::from(status != rsp::OKAY);
            let answered = self.answered.get_mut((answer & 0xffff) as usize);
            *answered.ok_or(FrontError::Backend("answered what was not sent"))? = true;
        }
        self.ring.take(count);
        while self.is_answered()
            && let Some((page, over)) =
                self.sent.front().copied().filter(|(page, _)| self.close(*page))
        {
            if let Some(answered) = self.answered.get_mut(page as usize) {
                *answered = false;
            }
            self.sent.pop_front();
            self.used -= 1 + over;
        }
        Ok(count)
    }

    /// Asks to be told when about half of what is under way has been answered, and looks once more:
    /// whether there is anything now.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        // One that was answered and stayed is still being copied, and nobody tells when that is
        // over.
        Ok(self.ring.arm(self.ring.under_way() / 2)? > 0 || self.is_answered())
    }

    /// Whether everything that was sent was answered.
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.ring.under_way() == 0
    }
}
