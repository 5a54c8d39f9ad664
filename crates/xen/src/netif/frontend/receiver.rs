//! A frontend's Rx ring, with the pages that it receives into.
//!
//! The backend may write any response: one beyond a page, part of a frame, or one that leaves bytes
//! to be copied without being asked to is an error. A frame whose bytes could not be copied is
//! counted and skipped.

use std::ops::Range;
use std::sync::Arc;

use ::ring::Memory;
use ::ring::copies::Status;
use ::ring::front::FrontRing;
use hypervisor::{Channel, CopyOp, DomId, Domain, GrantRef, Granted, Hypercalls, PAGE};

use super::ring::GrantedRing;
use super::{FrameSource, FrontError};
use crate::netif::slots::{Meta, RxSlot, extra, flag};
use crate::xenbus::{GrantedPages, PageAllocator};

/// Pages to receive into: one for each slot, always the same.
const PAGES: u32 = FrontRing::<2>::SIZE;

/// Frames that are taken out of the ring at a time.
const BATCH: usize = 64;

/// Copies of one hypercall, not counting those of the last frame.
const COPIES: usize = 180;

/// An Rx ring.
///
/// Each slot has a page of its own, because a response lies in the slot of its request. So a
/// frame's pages follow each other, except for the one whose slot holds extra info.
///
/// Frames are taken in batches. The bytes that the backend has left to the frontend to copy
/// ([`guest_copy`](crate::netif::guest_copy)) are copied for a whole batch in one hypercall.
pub struct Receiver {
    ring: GrantedRing<2>,
    pages: GrantedPages,
    backend: DomId,
    /// Makes the copies that the backend leaves to the frontend; `None`: the backend leaves none.
    hypercalls: Option<Box<dyn Hypercalls>>,
    /// The copies of the batch, and their outcomes.
    copies: Vec<CopyOp>,
    outcomes: Vec<Status>,
    /// Grants from which the present frame is to be copied, and offsets in them.
    passed: Vec<(GrantRef, u16)>,
    /// Frames taken out of the ring, of which those before `returned` were returned.
    batch: Vec<Taken>,
    taken: usize,
    returned: usize,
    /// The index after the last slot of the last frame that was returned.
    done: u32,
    /// Frames with an error response: the backend could not copy them as a whole.
    failed: u64,
    /// Frames that could not be copied: their grants were revoked before.
    missed: u64,
}

/// A frame out of the ring.
#[derive(Default)]
struct Taken {
    frame: Frame,
    whole: bool,
    /// The copies of this frame.
    copies: Range<usize>,
    /// The index after the frame's last slot.
    end: u32,
}

/// A frame that came.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The places of the frame's bytes: addresses and lengths.
    pub pieces: Vec<(u64, u32)>,
    /// Its length in bytes.
    pub len: u32,
    /// The offloads that the frame needs.
    pub meta: Meta,
    /// The frame's checksum is known to be good.
    pub validated: bool,
}

impl Frame {
    fn clear(&mut self) {
        self.pieces.clear();
        (self.len, self.meta, self.validated) = (0, Meta::default(), false);
    }

    fn add(&mut self, addr: u64, len: u32) {
        self.len += len;
        match self.pieces.last_mut() {
            Some((last, bytes)) if *last + u64::from(*bytes) == addr => *bytes += len,
            _ => self.pieces.push((addr, len)),
        }
    }
}

impl Receiver {
    pub(super) fn new(
        domain: &Arc<dyn Domain>,
        backend: DomId,
        allocator: &mut PageAllocator,
        channel: Arc<dyn Channel>,
        fetches: bool,
    ) -> Result<Self, FrontError> {
        let ring = GrantedRing::new(domain, backend, allocator, channel)?;
        let pages = allocator.grant(domain, backend, PAGES, true)?;
        let hypercalls = if fetches { Some(domain.hypercalls()?) } else { None };
        let mut receiver = Receiver {
            ring,
            pages,
            backend,
            hypercalls,
            copies: Vec::new(),
            outcomes: Vec::new(),
            passed: Vec::new(),
            batch: (0..BATCH).map(|_| Taken::default()).collect(),
            taken: 0,
            returned: 0,
            done: 0,
            failed: 0,
            missed: 0,
        };
        receiver.post()?;
        Ok(receiver)
    }

    /// Pages that an Rx ring takes.
    pub const PAGES: u32 = PAGES + 1;

    /// The ring: its page, and its event channel.
    pub fn ring(&self) -> &GrantedRing<2> {
        &self.ring
    }

    /// The pages to receive into.
    pub fn pages(&self) -> &GrantedPages {
        &self.pages
    }

    /// Frames with an error response so far: the backend could not copy them as a whole.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Frames that could not be copied so far: their sender is gone, or the grants were revoked
    /// before.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Takes a batch of frames out of the ring, and copies their missing bytes. False when there
    /// are none.
    fn fill(&mut self) -> Result<bool, FrontError> {
        (self.taken, self.returned) = (0, 0);
        self.copies.clear();
        self.outcomes.clear();
        while self.taken < BATCH && self.copies.len() < COPIES && self.ring.slots.ready()? > 0 {
            let mut taken = self.batch.get_mut(self.taken).map(std::mem::take).unwrap_or_default();
            taken.frame.clear();
            let first = self.copies.len();
            taken.whole = self.take(&mut taken.frame)?;
            if !taken.whole {
                self.copies.truncate(first);
            }
            (taken.copies, taken.end) = (first..self.copies.len(), self.ring.slots.position());
            if let Some(place) = self.batch.get_mut(self.taken) {
                *place = taken;
            }
            self.taken += 1;
        }
        if !self.copies.is_empty() {
            let hypercalls = self
                .hypercalls
                .as_mut()
                .ok_or(FrontError::Backend("leaves frames to be copied without being asked to"))?;
            hypercalls.grant_copy(&self.copies, &mut self.outcomes)?;
        }
        Ok(self.taken > 0)
    }

    /// Takes a frame. False when it has an error response.
    fn take(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        let (slot, words) = self.slot()?;
        let flags = words[1] as u16;
        frame.meta.csum_blank = flags & flag::RX_CSUM_BLANK != 0;
        frame.validated = flags & flag::RX_DATA_VALIDATED != 0;
        self.passed.clear();
        if flags & flag::RX_EXTRA_INFO != 0 {
            self.extras(frame)?;
        }
        // The pieces from here on are in the order of the slots.
        self.passed.reverse();
        let is_passed = !self.passed.is_empty();
        let mut whole = self.piece(frame, slot, words, is_passed)?;
        let mut more = flags & flag::RX_MORE_DATA != 0;
        while more {
            let (slot, words) = self.slot()?;
            whole &= self.piece(frame, slot, words, is_passed)?;
            more = words[1] as u16 & flag::RX_MORE_DATA != 0;
        }
        Ok(whole)
    }

    /// Adds the bytes of a slot to a frame. Some of the bytes may be passed by grant. False for an
    /// error response.
    fn piece(
        &mut self,
        frame: &mut Frame,
        slot: u32,
        words: RxSlot,
        is_passed: bool,
    ) -> Result<bool, FrontError> {
        let [place, outcome] = words;
        let Ok(size) = u16::try_from((outcome >> 16) as i16) else { return Ok(false) };
        // The offset of the bytes; or, in a passed frame, the number of bytes that are there
        // already.
        let offset = (place >> 16) as u16;
        let start = if is_passed { 0 } else { offset };
        if usize::from(start) + usize::from(size) > PAGE {
            return Err(FrontError::Backend("wrote beyond a page"));
        }
        frame.add(self.pages.addr(slot) + u64::from(start), size.into());
        let missing = if is_passed { size.saturating_sub(offset) } else { 0 };
        if missing > 0 {
            let (reference, at) =
                self.passed.pop().ok_or(FrontError::Backend("does not say where bytes are"))?;
            let from = Granted { domain: self.backend, reference, offset: at };
            self.copies.push(CopyOp { from, page: self.pages.page(slot), offset, len: missing });
        }
        Ok(true)
    }

    fn extras(&mut self, frame: &mut Frame) -> Result<(), FrontError> {
        let mut more = true;
        while more {
            let (_, [head, tail]) = self.slot()?;
            let [kind, flags, _, _] = head.to_le_bytes();
            match kind {
                extra::GSO => {
                    frame.meta.gso =
                        Some((tail as u8, (head >> 16) as u16)).filter(|(_, size)| *size > 0)
                }
                extra::FETCH => self.passed.push((GrantRef(tail), (head >> 16) as u16)),
                _ => {}
            }
            more = flags & extra::MORE != 0;
        }
        Ok(())
    }

    /// The next slot of a frame: its index in the ring, and its words.
    fn slot(&mut self) -> Result<(u32, RxSlot), FrontError> {
        if self.ring.slots.ready()? == 0 {
            return Err(FrontError::Backend("published part of a frame"));
        }
        let (slot, words) = (self.ring.slots.position() % PAGES, self.ring.slots.response(0)?);
        self.ring.slots.take(1);
        Ok((slot, words))
    }

    /// Asks for a signal with the next frame, and looks once more. True when there is one now.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        Ok(self.ring.slots.arm(1)? > 0 || self.returned < self.taken)
    }
}

impl FrameSource for Receiver {
    fn next(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        loop {
            if self.returned == self.taken && !self.fill()? {
                return Ok(false);
            }
            let Some(taken) = self.batch.get_mut(self.returned) else { return Ok(false) };
            self.returned += 1;
            self.done = taken.end;
            let outcomes = self.outcomes.get(taken.copies.clone());
            let fetched =
                outcomes.is_some_and(|outcomes| outcomes.iter().all(|status| status.is_done()));
            if taken.whole && fetched {
                std::mem::swap(frame, &mut taken.frame);
                return Ok(true);
            }
            self.missed += u64::from(taken.whole);
            self.failed += u64::from(!taken.whole);
        }
    }

    fn post(&mut self) -> Result<(), FrontError> {
        while self.ring.slots.upcoming().wrapping_sub(self.done) < PAGES {
            let number = self.ring.slots.upcoming();
            self.ring.slots.push([number & 0xffff, self.pages.reference(number % PAGES).0])?;
        }
        Ok(self.ring.publish()?)
    }

    fn memory(&self) -> &Arc<Memory> {
        self.ring.memory()
    }
}
