//! A frontend's Rx ring, with the pages that it receives into.

use std::sync::Arc;

use hypervisor::{Channel, DomId, Domain, PAGE};
use ring::Memory;
use ring::front::FrontRing;

use super::FrontError;
use super::pages::{Area, Granted};
use crate::slots::{Meta, extra, flag};

/// Pages to receive into: one for each slot, always the same.
const PAGES: u32 = FrontRing::<2>::SIZE;

/// An Rx ring.
///
/// The page of a slot is the slot's own: a response lies in the slot of its request. So a frame's pages follow each other, but
/// for the one whose slot holds extra info.
pub struct Receiver {
    ring: FrontRing<2>,
    ring_page: Granted,
    memory: Arc<Memory>,
    pages: Granted,
    channel: Arc<dyn Channel>,
    /// Frames that the backend could not deliver whole.
    spoiled: u64,
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
        area: &mut Area,
        channel: Arc<dyn Channel>,
    ) -> Result<Self, FrontError> {
        let ring_page = area.grant(domain, backend, 1, true)?;
        let pages = area.grant(domain, backend, PAGES, true)?;
        let memory = Arc::clone(domain.memory());
        let ring = FrontRing::new(Arc::clone(&memory), ring_page.addr(0))?;
        let mut receiver = Receiver { ring, ring_page, memory, pages, channel, spoiled: 0 };
        receiver.post()?;
        Ok(receiver)
    }

    /// Pages that an Rx ring takes.
    pub const PAGES: u32 = PAGES + 1;

    /// The page that the ring is in.
    pub fn ring_page(&self) -> &Granted {
        &self.ring_page
    }

    /// The pages that it receives into.
    pub fn pages(&self) -> &Granted {
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

    /// Takes the next frame, if there is one. Its pages are its own until the next [`post`](Self::post).
    ///
    /// # Errors
    /// When the backend breaks the rules.
    pub fn next(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        while self.ring.ready()? > 0 {
            frame.clear();
            if self.take(frame)? {
                return Ok(true);
            }
            self.spoiled += 1;
        }
        Ok(false)
    }

    /// Takes a frame; false: one that is not whole.
    fn take(&mut self, frame: &mut Frame) -> Result<bool, FrontError> {
        let (mut more, mut first, mut whole) = (true, true, true);
        while more {
            let (slot, [place, outcome]) = self.slot()?;
            let (offset, flags, size) = ((place >> 16) as u16, outcome as u16, (outcome >> 16) as i16);
            match u16::try_from(size) {
                Ok(size) if usize::from(offset) + usize::from(size) > PAGE => {
                    return Err(FrontError::Backend("wrote beyond a page"));
                }
                Ok(size) => frame.add(self.pages.addr(slot) + u64::from(offset), size.into()),
                Err(_) => whole = false,
            }
            more = flags & flag::RX_MORE_DATA != 0;
            if first {
                frame.meta.csum_blank = flags & flag::RX_CSUM_BLANK != 0;
                frame.validated = flags & flag::RX_DATA_VALIDATED != 0;
                if flags & flag::RX_EXTRA_INFO != 0 {
                    self.extras(frame)?;
                }
            }
            first = false;
        }
        Ok(whole)
    }

    fn extras(&mut self, frame: &mut Frame) -> Result<(), FrontError> {
        let mut more = true;
        while more {
            let (_, [head, tail]) = self.slot()?;
            let [kind, flags, _, _] = head.to_le_bytes();
            if kind == extra::GSO {
                frame.meta.gso = Some((tail as u8, (head >> 16) as u16)).filter(|(_, size)| *size > 0);
            }
            more = flags & extra::MORE != 0;
        }
        Ok(())
    }

    /// The next slot of a frame that has begun.
    fn slot(&mut self) -> Result<(u32, [u32; 2]), FrontError> {
        if self.ring.ready()? == 0 {
            return Err(FrontError::Backend("published part of a frame"));
        }
        let (slot, words) = (self.ring.position() % PAGES, self.ring.response(0)?);
        self.ring.take(1);
        Ok((slot, words))
    }

    /// Posts the pages of all frames that were taken.
    ///
    /// # Errors
    /// Never, while the ring is there.
    pub fn post(&mut self) -> Result<(), FrontError> {
        while self.ring.free() > 0 {
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
        Ok(self.ring.arm(1)? > 0)
    }
}
