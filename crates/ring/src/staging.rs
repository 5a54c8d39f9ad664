//! Private bytes that copies are made to and from.

use std::ptr::NonNull;

use crate::grant::{DomId, GrantRef, Granted, PAGE};
use crate::region::Memory;
use crate::segment::{Local, Place};

/// Private bytes of a [`Copies`], to be filled by a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    at: u32,
    len: u32,
}

impl Stage {
    /// How many bytes.
    pub(crate) fn len(self) -> usize {
        self.len as usize
    }

    /// Where the `len` bytes from `offset` on begin, if the stage has so many.
    #[inline]
    fn within(self, offset: u32, len: u32) -> Option<u32> {
        offset.checked_add(len).filter(|end| *end <= self.len)?;
        self.at.checked_add(offset)
    }
}

/// Memory of our own that is granted to ourselves, page by page. A kernel has to look up each
/// mapped end of a copy. A granted page is passed on to the hypervisor by its reference instead.
#[derive(Debug)]
pub struct OwnPages {
    /// The pages, at address 0.
    pub memory: Memory,
    /// How many bytes.
    pub len: usize,
    /// One for each page.
    pub references: Vec<GrantRef>,
}

/// Room for the private bytes of one batch of copies.
pub(crate) struct Staging {
    memory: Memory,
    len: usize,
    /// The grants of the pages to this domain itself, if there are any.
    references: Vec<GrantRef>,
    used: usize,
}

impl Staging {
    /// Room in these pages.
    pub(crate) fn new(OwnPages { memory, len, references }: OwnPages) -> Self {
        Self { memory, len, references, used: 0 }
    }

    /// Forgets all staged bytes.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// The memory that the bytes lie in.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Private room for `len` bytes, to be copied to. `None` when there is none before the next
    /// [`clear`](Self::clear). The bytes are arbitrary until they are copied to.
    pub(crate) fn reserve(&mut self, len: usize) -> Option<(Stage, Place)> {
        let at = self.next_stage(len);
        let end = at.checked_add(len).filter(|end| *end <= self.len)?;
        let (place, _) = self.memory.run(at.min(self.len - 1) as u64, &mut 0)?;
        self.used = end;
        Some((Stage { at: at as u32, len: len as u32 }, Place::Local(Local::new(place))))
    }

    /// The address of the `len` bytes that begin `offset` bytes into `stage`. `None`: these are not
    /// in the stage.
    #[inline]
    pub(crate) fn address(&self, stage: Stage, offset: u32, len: u32) -> Option<NonNull<u8>> {
        let (at, left) = self.memory.run(stage.within(offset, len)?.into(), &mut 0)?;
        (left >= u64::from(len)).then_some(at)
    }

    /// The `len` bytes that begin `offset` bytes into `stage`, as one end of a copy: by this
    /// domain's own grant, if there is one, and by their address otherwise. `None`: these are not
    /// in the stage.
    #[inline]
    pub(crate) fn end(&self, stage: Stage, offset: u32, len: u32) -> Option<Place> {
        match self.grant_at(stage.within(offset, len)? as usize, len) {
            Some(grant) => Some(Place::Granted(grant)),
            None => Some(Place::Local(Local::new(self.address(stage, offset, len)?))),
        }
    }

    /// The domain's own grant of the `len` bytes at offset `at`, if these are granted and lie in
    /// one page.
    #[inline]
    fn grant_at(&self, at: usize, len: u32) -> Option<Granted> {
        let (reference, offset) = (*self.references.get(at / PAGE)?, at % PAGE);
        (offset + len as usize <= PAGE).then_some(Granted {
            domain: DomId::SELF,
            reference,
            offset: offset as u16,
        })
    }

    /// The offset of the next `len` private bytes, which must not cross the end of a granted page.
    #[inline]
    fn next_stage(&self, len: usize) -> usize {
        let left = PAGE - self.used % PAGE;
        if self.references.is_empty() || len <= left || len > PAGE {
            self.used
        } else {
            self.used + left
        }
    }

    /// Whether there is room for `len` more private bytes before the next [`clear`](Self::clear).
    #[inline]
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.next_stage(len) + len <= self.len
    }

    /// The domain's own grant of staged bytes, if they are granted and lie in one page.
    pub(crate) fn own_grant(&self, place: Place, len: u32) -> Option<Granted> {
        let Place::Local(Local(at)) = place else { return None };
        if self.references.is_empty() || !self.memory.covers(at, len.into()) {
            return None;
        }
        let (base, _) = self.memory.run(0, &mut 0)?;
        self.grant_at(at.addr().get().checked_sub(base.addr().get())?, len)
    }

    /// A private copy of `bytes`, to be copied from.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Option<(Stage, Place)> {
        let (stage, place) = self.reserve(bytes.len())?;
        self.memory.write(u64::from(stage.at), bytes).ok()?;
        Some((stage, place))
    }

    /// Reads what was copied to `stage`, from `offset` on; returns how many bytes there were.
    pub(crate) fn read(&self, stage: Stage, offset: usize, buf: &mut [u8]) -> usize {
        let len = (stage.len as usize).saturating_sub(offset).min(buf.len());
        let buf = &mut buf[..len];
        if self.memory.read(u64::from(stage.at) + offset as u64, buf).is_ok() { len } else { 0 }
    }
}
