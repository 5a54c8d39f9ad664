//! A frontend's Rx ring, with the pages that it receives into.

use std::ops::Range;
use std::sync::Arc;

use hypervisor::{Channel, DomId, Domain, GrantRef, Granted, PAGE, Pull, Puller};
use ring::Memory;
use ring::copies::Status;
use ring::front::FrontRing;

use super::FrontError;
use crate::netif::slots::{Meta, RxSlot, extra, flag};
use crate::xenbus::{GrantedPages, PageAllocator};

/// Pages to receive into: one for each slot, always the same.
const PAGES: u32 = FrontRing::<2>::SIZE;

/// Frames that are taken out of the ring at a time.
const BATCH: usize = 64;

/// Pieces that are fetched in one call, before those of the last frame.
const PIECES: usize = 180;

/// An Rx ring.
///
/// The page of a slot is the slot's own: a response lies in the slot of its request. So a frame's
/// pages follow each other, but for the one whose slot holds extra info.
///
/// Frames are taken in batches. What the backend has left for us to fetch ([`fetch`](crate::netif::fetch))
/// is fetched for all of a batch in one call of the hypervisor.
pub struct Receiver {
    ring: FrontRing<2>,
    ring_page: GrantedPages,
    memory: Arc<Memory>,
    pages: GrantedPages,
    channel: Arc<dyn Channel>,
    backend: DomId,
    /// How we fetch, if the backend leaves that to us.
    puller: Option<Box<dyn Puller>>,
    /// What is to be fetched, and what became of it.
    pulls: Vec<Pull>,
    outcomes: Vec<Status>,
    /// What the frame that is being taken has to be fetched from.
    lent: Vec<(GrantRef, u16)>,
    /// Frames that were taken; those before `handed` were handed out.
    batch: Vec<Taken>,
    taken: usize,
    handed: usize,
    /// The number behind the last slot of the last frame that was handed out.
    done: u32,
    /// Frames that the backend could not deliver whole.
    spoiled: u64,
    /// Frames that were not there to be fetched any more.
    missed: u64,
}

/// A frame out of the ring.
#[derive(Default)]
struct Taken {
    frame: Frame,
    whole: bool,
    /// Which of the pulls are its own.
    pulls: Range<usize>,
    /// The number behind its last slot.
    end: u32,
}

/// A frame that came.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Where it is: addresses and lengths.
    pub pieces: Vec<(u64, u32)>,
    /// Its length in bytes.
    pub len: u32,
    /// What is left to be done to it.
    pub meta: Meta,
    /// Its checksum is known to be good.
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
        area: &mut PageAllocator,
        channel: Arc<dyn Channel>,
        fetches: bool,
    ) -> Result<Self, FrontError> {
        let ring_page = area.grant(domain, backend, 1, true)?;
        let pages = area.grant(domain, backend, PAGES, true)?;
        let memory = Arc::clone(domain.memory());
        let ring = FrontRing::new(Arc::clone(&memory), ring_page.addr(0))?;
        let puller = if fetches { Some(domain.puller()?) } else { None };
        let mut receiver = Receiver {
            ring,
            ring_page,
            memory,
            pages,
            channel,
            backend,
            puller,
            pulls: Vec::new(),
            outcomes: Vec::new(),
            lent: Vec::new(),
            batch: (0..BATCH).map(|_| Taken::default()).collect(),
            taken: 0,
            handed: 0,
            done: 0,
            spoiled: 0,
            missed: 0,
        };
        receiver.post()?;
        Ok(receiver)
    }

    /// Pages that an Rx ring takes.
    pub const PAGES: u32 = PAGES + 1;

    /// The page that the ring is in.
    pub fn ring_page(&self) -> &GrantedPages {
        &self.ring_page
    }

    /// The pages that it receives into.
    pub fn pages(&self) -> &GrantedPages {
        &self.pages
    }

    /// Its event channel.
    pub fn channel(&self) -> &Arc<dyn Channel> {
        &self.channel
    }

    /// The memory that frames are in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Frames that the backend could not deliver whole so far.
    pub fn spoiled(&self) -> u64 {
        self.spoiled
    }

    /// Frames that we could not fetch so far: their sender is gone or has thought better of it, or
    /// we were too late.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Takes the next frame, if there is one. Its pages are its own until the next
    /// [`post`](Self::post).
    ///
    /// # Errors
    /// When the backend breaks the rules, or the hypervisor is gone.
    pub fn next(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        loop {
            if self.handed == self.taken && !self.fill()? {
                return Ok(false);
            }
            let Some(taken) = self.batch.get_mut(self.handed) else { return Ok(false) };
            self.handed += 1;
            self.done = taken.end;
            let outcomes = self.outcomes.get(taken.pulls.clone());
            let fetched =
                outcomes.is_some_and(|outcomes| outcomes.iter().all(|status| status.is_done()));
            if taken.whole && fetched {
                std::mem::swap(frame, &mut taken.frame);
                return Ok(true);
            }
            self.missed += u64::from(taken.whole);
            self.spoiled += u64::from(!taken.whole);
        }
    }

    /// Takes frames out of the ring, and fetches what is missing of them. Whether there were any.
    fn fill(&mut self) -> Result<bool, FrontError> {
        (self.taken, self.handed) = (0, 0);
        self.pulls.clear();
        self.outcomes.clear();
        while self.taken < BATCH && self.pulls.len() < PIECES && self.ring.ready()? > 0 {
            let mut taken = self.batch.get_mut(self.taken).map(std::mem::take).unwrap_or_default();
            taken.frame.clear();
            let first = self.pulls.len();
            taken.whole = self.take(&mut taken.frame)?;
            if !taken.whole {
                self.pulls.truncate(first);
            }
            (taken.pulls, taken.end) = (first..self.pulls.len(), self.ring.position());
            if let Some(place) = self.batch.get_mut(self.taken) {
                *place = taken;
            }
            self.taken += 1;
        }
        if !self.pulls.is_empty() {
            let puller = self
                .puller
                .as_mut()
                .ok_or(FrontError::Backend("leaves frames to be fetched unasked"))?;
            puller.pull(&self.pulls, &mut self.outcomes)?;
        }
        Ok(self.taken > 0)
    }

    /// Takes a frame; false: one that is not whole.
    fn take(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        let (slot, words) = self.slot()?;
        let flags = words[1] as u16;
        frame.meta.csum_blank = flags & flag::RX_CSUM_BLANK != 0;
        frame.validated = flags & flag::RX_DATA_VALIDATED != 0;
        self.lent.clear();
        if flags & flag::RX_EXTRA_INFO != 0 {
            self.extras(frame)?;
        }
        // In the order of its slots, from here on.
        self.lent.reverse();
        let lent = !self.lent.is_empty();
        let mut whole = self.piece(frame, slot, words, lent)?;
        let mut more = flags & flag::RX_MORE_DATA != 0;
        while more {
            let (slot, words) = self.slot()?;
            whole &= self.piece(frame, slot, words, lent)?;
            more = words[1] as u16 & flag::RX_MORE_DATA != 0;
        }
        Ok(whole)
    }

    /// Adds what a slot holds to a frame of which something may be `lent`; false: it says that
    /// there is nothing.
    fn piece(
        &mut self,
        frame: &mut Frame,
        slot: u32,
        words: RxSlot,
        lent: bool,
    ) -> Result<bool, FrontError> {
        let [place, outcome] = words;
        let Ok(size) = u16::try_from((outcome >> 16) as i16) else { return Ok(false) };
        // Where the bytes begin; or, if they all begin at the start, how many are there already.
        let offset = (place >> 16) as u16;
        let start = if lent { 0 } else { offset };
        if usize::from(start) + usize::from(size) > PAGE {
            return Err(FrontError::Backend("wrote beyond a page"));
        }
        frame.add(self.pages.addr(slot) + u64::from(start), size.into());
        let missing = if lent { size.saturating_sub(offset) } else { 0 };
        if missing > 0 {
            let (reference, at) =
                self.lent.pop().ok_or(FrontError::Backend("does not say where bytes are"))?;
            let from = Granted { domain: self.backend, reference, offset: at };
            self.pulls.push(Pull { from, page: self.pages.page(slot), offset, len: missing });
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
                extra::FETCH => self.lent.push((GrantRef(tail), (head >> 16) as u16)),
                _ => {}
            }
            more = flags & extra::MORE != 0;
        }
        Ok(())
    }

    /// The next slot of a frame that has begun.
    fn slot(&mut self) -> Result<(u32, RxSlot), FrontError> {
        if self.ring.ready()? == 0 {
            return Err(FrontError::Backend("published part of a frame"));
        }
        let (slot, words) = (self.ring.position() % PAGES, self.ring.response(0)?);
        self.ring.take(1);
        Ok((slot, words))
    }

    /// Posts the pages of all frames that were handed out.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn post(&mut self) -> Result<(), FrontError> {
        while self.ring.upcoming().wrapping_sub(self.done) < PAGES {
            let number = self.ring.upcoming();
            self.ring.push([number & 0xffff, self.pages.reference(number % PAGES).0])?;
        }
        if self.ring.publish()? {
            self.channel.notify();
        }
        Ok(())
    }

    /// Asks to be told of the next frame, and looks once more: whether there is one now.
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn arm(&mut self) -> Result<bool, FrontError> {
        Ok(self.ring.arm(1)? > 0 || self.handed < self.taken)
    }
}
