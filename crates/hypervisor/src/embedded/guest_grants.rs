//! A domain's grant table, from its own side: the domain writes entries into its memory, and
//! revokes them.

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

use ring::Memory;

use super::layout::{Entry, FRAMES, Layout, RESERVED, Version, flag};
use super::sync::lock;
use crate::GrantRef;

/// The grants that a domain gives.
#[derive(Debug)]
pub struct GuestGrantTable {
    memory: Arc<Memory>,
    layout: Layout,
    version: Version,
    references: Mutex<References>,
}

#[derive(Debug)]
struct References {
    /// The entries of revoked grants.
    free: Vec<u32>,
    /// The lowest reference that was never used.
    next: u32,
    /// The end of the table.
    end: u32,
}

impl GuestGrantTable {
    /// A new table, of one page.
    pub fn new(memory: Arc<Memory>, layout: Layout, version: Version) -> Self {
        let references = References { free: Vec::new(), next: RESERVED, end: version.per_frame() };
        GuestGrantTable { memory, layout, version, references: Mutex::new(references) }
    }

    /// Makes a grant. References of revoked grants are used again, the last one first, as in Linux.
    /// `grow` grows the table to a number of pages.
    ///
    /// # Errors
    /// When the table is full, or does not grow.
    pub fn grant(
        &self,
        entry: Entry,
        grow: impl FnOnce(u32) -> io::Result<()>,
    ) -> io::Result<GrantRef> {
        let reference = self.reserve(grow)?;
        self.write(reference, entry)?;
        Ok(reference)
    }

    /// Reserves a reference without a grant. It is used for nothing else until it is released.
    ///
    /// # Errors
    /// As for [`grant`](Self::grant).
    pub fn reserve(&self, grow: impl FnOnce(u32) -> io::Result<()>) -> io::Result<GrantRef> {
        let mut references = lock(&self.references);
        let reference = match references.free.pop() {
            Some(free) => free,
            None => {
                if references.next == references.end {
                    let frames = references.end / self.version.per_frame() + 1;
                    if frames > FRAMES {
                        return Err(io::Error::new(
                            io::ErrorKind::StorageFull,
                            "the grant table is full",
                        ));
                    }
                    grow(frames)?;
                    references.end = frames * self.version.per_frame();
                }
                references.next += 1;
                references.next - 1
            }
        };
        Ok(GrantRef(reference))
    }

    /// Grants under a reference that is reserved, and under which nothing is granted or in use.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn write(&self, reference: GrantRef, entry: Entry) -> io::Result<()> {
        let at = self.layout.entry(self.version, reference);
        let ([first, last], word) =
            (entry.encode(), |at| self.memory.atomic_u64(at).map_err(io::Error::other));
        match self.version {
            Version::V1 => word(at)?.store(first | last << 32, Ordering::SeqCst),
            Version::V2 => {
                word(at + 8)?.store(last, Ordering::Relaxed);
                word(at)?.store(first, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Revokes a grant. False when it is in use: then it stays.
    pub fn revoke(&self, reference: GrantRef) -> bool {
        let revoked = match self.version {
            Version::V1 => self.revoke_v1(reference),
            Version::V2 => self.revoke_v2(reference),
        };
        if revoked == Some(true) {
            lock(&self.references).free.push(reference.0);
        }
        revoked != Some(false)
    }

    /// Revokes the grant under a reserved reference of version 2, even while it is in use: no use
    /// of it begins any more. False while an earlier use is in progress.
    pub fn end_access(&self, reference: GrantRef) -> bool {
        let word = self.memory.atomic_u64(self.layout.entry(Version::V2, reference));
        let status = self.memory.atomic_u16(self.layout.status(reference));
        let (Version::V2, Ok(word), Ok(status)) = (self.version, word, status) else { return true };
        word.store(word.load(Ordering::Relaxed) & !0xffff, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        status.load(Ordering::Acquire) & (flag::READING | flag::WRITING) == 0
    }

    /// Releases a reserved reference. One that is still in use is not allocated again.
    pub fn release(&self, reference: GrantRef) {
        if self.end_access(reference) {
            lock(&self.references).free.push(reference.0);
        }
    }

    /// Revokes a grant of version 1. `None`: there was no grant.
    fn revoke_v1(&self, reference: GrantRef) -> Option<bool> {
        let word = self.memory.atomic_u64(self.layout.entry(Version::V1, reference)).ok()?;
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let flags = seen as u16;
            if flags & flag::TYPE == flag::INVALID {
                return None;
            }
            if flags & (flag::READING | flag::WRITING) != 0 {
                return Some(false);
            }
            match word.compare_exchange_weak(
                seen,
                seen & !0xffff,
                Ordering::SeqCst,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(true),
                Err(now) => seen = now,
            }
        }
    }

    fn revoke_v2(&self, reference: GrantRef) -> Option<bool> {
        let word = self.memory.atomic_u64(self.layout.entry(Version::V2, reference)).ok()?;
        let status = self.memory.atomic_u16(self.layout.status(reference)).ok()?;
        let seen = word.load(Ordering::Acquire);
        if seen as u16 & flag::TYPE == flag::INVALID {
            return None;
        }
        word.store(seen & !0xffff, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if status.load(Ordering::Acquire) & (flag::READING | flag::WRITING) != 0 {
            word.store(seen, Ordering::SeqCst);
            return Some(false);
        }
        Some(true)
    }
}
