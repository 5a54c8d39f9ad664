//! Grant tables, and their use.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use ring::copies::{Copies, Status};
use ring::region::Keeper;
use ring::{MapError, Memory, RegionSpec};

use super::{Host, Reason, Refusal, lock};
use crate::grants::{GrantError, Grants, MAX_PAGES};
use crate::{DomId, GrantRef, PAGE};

/// References below are Xen's own.
const RESERVED: u32 = 8;

/// Entries in a page of a grant table.
const ENTRIES: u32 = 512;

/// Pages that a grant table can grow to.
const FRAMES: u32 = 64;

/// A domain's memory and grant table.
#[derive(Debug)]
pub struct Table {
    memory: Arc<Memory>,
    file: OwnedFd,
    pages: u32,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// From reference [`RESERVED`] on.
    list: Vec<Option<Entry>>,
    /// Revoked references.
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    page: u32,
    to: DomId,
    writable: bool,
    /// How often it is mapped.
    mapped: u32,
}

impl Entries {
    /// The end of the table: it has grown as far as it had to.
    fn end(&self) -> u32 {
        (RESERVED + self.list.len() as u32).max(1).next_multiple_of(ENTRIES)
    }

    fn get(&mut self, reference: GrantRef) -> Option<&mut Option<Entry>> {
        self.list.get_mut(reference.0.checked_sub(RESERVED)? as usize)
    }

    /// The grant of `reference`, if `by` may use it.
    fn check(&mut self, by: DomId, reference: GrantRef, write: bool) -> Result<&mut Entry, Reason> {
        if reference.0 >= self.end() {
            return Err(Reason::BeyondTable);
        }
        let entry = self.get(reference).ok_or(Reason::NeverGranted)?.as_mut().ok_or(Reason::Revoked)?;
        match entry {
            entry if entry.to != by => Err(Reason::NotToUs),
            entry if write && !entry.writable => Err(Reason::ReadOnly),
            entry => Ok(entry),
        }
    }
}

impl Table {
    pub fn new(pages: u32) -> Result<Self, MapError> {
        let (memory, file) = Memory::shared(pages as usize * PAGE)?;
        Ok(Self { memory: Arc::new(memory), file, pages, entries: Mutex::default() })
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub fn grant(&self, to: DomId, page: u32, writable: bool) -> GrantRef {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        let entry = Some(Entry { page, to, writable, mapped: 0 });
        let mut entries = lock(&self.entries);
        if let Some(reference) = entries.free.pop() {
            if let Some(slot) = entries.get(GrantRef(reference)) {
                *slot = entry;
            }
            return GrantRef(reference);
        }
        entries.list.push(entry);
        let reference = RESERVED + entries.list.len() as u32 - 1;
        assert!(reference < FRAMES * ENTRIES, "the grant table is full");
        GrantRef(reference)
    }

    pub fn revoke(&self, reference: GrantRef) -> bool {
        let mut entries = lock(&self.entries);
        let Some(slot) = entries.get(reference) else { return true };
        if slot.is_some_and(|entry| entry.mapped > 0) {
            return false;
        }
        if slot.take().is_some() {
            entries.free.push(reference.0);
        }
        true
    }

    pub fn mapped(&self) -> usize {
        lock(&self.entries).list.iter().flatten().map(|entry| entry.mapped as usize).sum()
    }

    /// Maps pages for `by`: all, or none.
    fn map(self: &Arc<Self>, by: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, (GrantRef, Reason)> {
        let mut entries = lock(&self.entries);
        let mut regions = Vec::new();
        for (n, reference) in references.iter().enumerate() {
            let entry = entries.check(by, *reference, true).map_err(|reason| (*reference, reason))?;
            let file = self.file.try_clone().map_err(|_| (*reference, Reason::NoDomain))?;
            let (at, offset) = ((n * PAGE) as u64, u64::from(entry.page) * PAGE as u64);
            regions.push(RegionSpec { guest_addr: at, user_addr: at, len: PAGE as u64, offset, fd: file });
        }
        let memory = Memory::map(regions).map_err(|_| (GrantRef(0), Reason::NoDomain))?;
        for reference in references {
            if let Some(Some(entry)) = entries.get(*reference) {
                entry.mapped += 1;
            }
        }
        let uses = Box::new(Uses { table: self.clone(), references: references.into() });
        Ok(Arc::new(memory.kept_by(uses)))
    }
}

/// Grants that are mapped.
#[derive(Debug)]
struct Uses {
    table: Arc<Table>,
    references: Vec<GrantRef>,
}

impl Keeper for Uses {}

impl Drop for Uses {
    fn drop(&mut self) {
        let mut entries = lock(&self.table.entries);
        for reference in &self.references {
            if let Some(Some(entry)) = entries.get(*reference) {
                entry.mapped = entry.mapped.saturating_sub(1);
            }
        }
    }
}

/// Other domains' grants as `by` can use them.
#[derive(Debug)]
pub struct Of {
    pub host: Arc<Host>,
    pub by: DomId,
}

impl Of {
    fn refuse(&self, domain: DomId, reference: GrantRef, reason: Reason) {
        lock(&self.host.refusals).push(Refusal { by: self.by, domain, reference, reason });
    }

    /// Where a granted page is, if it may be used.
    fn resolve(&self, domain: DomId, reference: GrantRef, write: bool) -> Result<(Arc<Memory>, u64), Reason> {
        let table = self.host.domain(domain)?;
        let page = lock(&table.entries).check(self.by, reference, write)?.page;
        Ok((table.memory.clone(), u64::from(page) * PAGE as u64))
    }
}

impl Grants for Of {
    fn map(&self, domain: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError> {
        let count = references.len();
        if !(1..=MAX_PAGES).contains(&count) {
            return Err(GrantError::Count(count));
        }
        let first = references.first().copied().unwrap_or(GrantRef(0));
        let table = self.host.domain(domain).map_err(|reason| (first, reason));
        let memory = table.and_then(|table| table.map(self.by, references)).map_err(|(reference, reason)| {
            self.refuse(domain, reference, reason);
            GrantError::Refused { domain, references: references.into() }
        })?;
        lock(&self.host.counts).maps += count as u64;
        Ok(memory)
    }

    fn copy(&self, copies: &mut Copies) -> Result<(), GrantError> {
        if !copies.is_waiting() {
            return Ok(());
        }
        let ran = copies.segments().iter().filter(|segment| segment.status() == Status::WAITING).count();
        let _copying = self.host.copying.read().unwrap_or_else(PoisonError::into_inner);
        copies.emulate(|granted, _, write| {
            let place = self.resolve(granted.domain, granted.reference, write);
            let place = place.inspect_err(|reason| self.refuse(granted.domain, granted.reference, *reason));
            match place {
                Ok((memory, page)) => Ok((memory, page + u64::from(granted.offset))),
                Err(Reason::NoDomain) => Err(Status::BAD_DOMAIN),
                Err(Reason::Dying) => Err(Status::BAD_PAGE),
                Err(Reason::BeyondTable) => Err(Status::BAD_REFERENCE),
                Err(_) => Err(Status::REFUSED),
            }
        });
        let newest = copies.segments().iter().rev().take(ran);
        let mut counts = lock(&self.host.counts);
        counts.batches += 1;
        for segment in newest.filter(|segment| segment.status().is_done()) {
            counts.copies += 1;
            counts.both_granted += u64::from(segment.source().is_some() && segment.target().is_some());
            counts.bytes += u64::from(segment.len());
        }
        Ok(())
    }
}
