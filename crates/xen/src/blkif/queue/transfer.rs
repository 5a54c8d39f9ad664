//! The data of requests on its way between the guest's pages and memory of this process.

use std::sync::Arc;

use hypervisor::{DomId, GrantRef, Granted, PAGE};
use ring::copies::{Copies, Place};
use ring::{Engine, MapError, Memory};
use storage::command::{BlockStatus, Refusal};

use super::entry::Entry;
use super::{BATCH, BUFFERS};
use crate::blkif::persistent_grants::PersistentGrants;

/// Bytes of each request's own part of the memory, behind the data: header, range, status.
const CONTROL: usize = 64;

/// The address of the own part of the request in slot `at`.
pub(super) fn control_at(at: usize) -> u64 {
    (BUFFERS + CONTROL * at) as u64
}

/// The memory of the data, and the copies from and to it.
pub(super) struct Transfer {
    domain: DomId,
    engine: Arc<dyn Engine>,
    /// The data of requests, then the own part of each.
    pub memory: Arc<Memory>,
    /// Copies from the guest. Empty, except while requests are taken.
    incoming: Copies,
    /// Copies to the guest, until they are published.
    outgoing: Copies,
}

impl Transfer {
    /// Room for the data of a ring with `size` slots.
    pub fn new(domain: DomId, engine: Arc<dyn Engine>, size: usize) -> Result<Self, MapError> {
        let segments = BUFFERS / PAGE;
        Ok(Transfer {
            domain,
            engine,
            memory: Arc::new(Memory::anonymous(BUFFERS + size * CONTROL)?),
            // No segment has more than a page of room, and each request has at most one list.
            incoming: Copies::new(segments + BATCH as usize, 1)?,
            outgoing: Copies::new(segments, 1)?,
        })
    }

    /// Requests a copy of `len` bytes from a granted page to byte `to` of the data.
    pub fn fetch(
        &mut self,
        at: usize,
        page: GrantRef,
        offset: u16,
        to: u32,
        len: u16,
        entry: &mut Entry,
    ) {
        let source = Place::Granted(Granted { domain: self.domain, reference: page, offset });
        let copies = &mut self.incoming;
        let target = copies.place(&self.memory, to.into(), len.into()).ok();
        let queued =
            target.map(|target| copies.push(source, target, len.into(), at as u32).is_ok());
        if queued != Some(true) {
            entry.refusal = Some(Refusal::Grant);
        }
    }

    /// Makes the copies from the guest. A request with a failed copy is refused. False: there were
    /// none.
    pub fn run_incoming(&mut self, entries: &mut [Entry]) -> bool {
        if self.incoming.is_empty() {
            return false;
        }
        self.engine.run(&mut self.incoming);
        for (at, ..) in self.incoming.failed() {
            if let Some(entry) = entries.get_mut(at as usize) {
                entry.refusal = Some(Refusal::Grant);
            }
        }
        self.incoming.clear();
        true
    }

    /// Copies the data of a request from or to pages that are mapped.
    pub fn copy_mapped(&self, entry: &mut Entry, pages: Option<&PersistentGrants>) {
        let (memory, writes) = (&self.memory, entry.writes());
        let mut at = u64::from(entry.span.at);
        for (segment, place) in entry.segments.iter().zip(&entry.pages) {
            let copied =
                pages.and_then(|pages| pages.memory(*place)).is_some_and(|(page, addr)| {
                    let (addr, len) = (addr + u64::from(segment.offset), u32::from(segment.len));
                    match writes {
                        true => page.copy_to(addr, memory, at, len).is_ok(),
                        false => memory.copy_to(at, page, addr, len).is_ok(),
                    }
                });
            if !copied {
                entry.refusal = Some(Refusal::Grant);
                entry.status = BlockStatus::IoErr;
            }
            at += u64::from(segment.len);
        }
    }

    /// Requests the copies of the data that was read.
    pub fn deliver(&mut self, at: usize, entry: &mut Entry) {
        let mut from = entry.span.at;
        for segment in &entry.segments {
            let (domain, reference) = (self.domain, segment.page);
            let target = Place::Granted(Granted { domain, reference, offset: segment.offset });
            let (len, copies) = (u32::from(segment.len), &mut self.outgoing);
            let source = copies.place(&self.memory, from.into(), len).ok();
            let queued = source.map(|source| copies.push(source, target, len, at as u32).is_ok());
            if queued != Some(true) {
                entry.status = BlockStatus::IoErr;
            }
            from += len;
        }
    }

    /// Makes the copies to the guest. Returns how many requests failed because of that.
    pub fn run_outgoing(&mut self, entries: &mut [Entry]) -> u64 {
        let mut lost = 0;
        if self.outgoing.is_empty() {
            return 0;
        }
        self.engine.run(&mut self.outgoing);
        for (at, ..) in self.outgoing.failed() {
            if let Some(entry) = entries.get_mut(at as usize)
                && entry.status == BlockStatus::Ok
            {
                entry.status = BlockStatus::IoErr;
                lost += 1;
            }
        }
        self.outgoing.clear();
        lost
    }
}
