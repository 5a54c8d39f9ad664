//! Pages of a frontend's domain that are granted to its backend.
//!
//! A grant lasts until the pages are dropped, whatever is sent through them. A backend that copies
//! gains nothing from a permanent grant.

use std::fmt;
use std::io;
use std::sync::Arc;

use hypervisor::{DomId, Domain, Extent, GrantRef, PAGE};

/// Consecutive granted pages. Dropping them revokes the grants.
pub struct GrantedPages {
    domain: Arc<dyn Domain>,
    first: u32,
    references: Box<[GrantRef]>,
    /// The references are reserved, and the bytes granted under them change frame by frame.
    reserved: bool,
}

impl fmt::Debug for GrantedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages from {} on", self.references.len(), self.first)
    }
}

impl GrantedPages {
    /// How many pages.
    pub fn len(&self) -> u32 {
        self.references.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// The address of page number `n` of these, in bytes.
    pub fn addr(&self, n: u32) -> u64 {
        (u64::from(self.first) + u64::from(n)) * PAGE as u64
    }

    /// The frame number, in its domain, of page number `n` of these.
    pub fn page(&self, n: u32) -> u32 {
        self.first.saturating_add(n)
    }

    /// The references of all pages; none if they are reserved and not granted as a whole.
    pub fn references(&self) -> &[GrantRef] {
        if self.reserved { &[] } else { &self.references }
    }

    /// The grant reference of page number `n` of these.
    pub fn reference(&self, n: u32) -> GrantRef {
        // References below 8 are reserved, so this one refers to nothing.
        self.references.get(n as usize).copied().unwrap_or(GrantRef(0))
    }
}

impl Drop for GrantedPages {
    fn drop(&mut self) {
        for reference in &self.references {
            match self.reserved {
                true => self.domain.release(*reference),
                // A page that is still mapped stays granted, and its reference is not used again.
                false => _ = self.domain.revoke(*reference),
            }
        }
    }
}

/// Allocates pages of a domain, each once.
#[derive(Clone, Debug)]
pub struct PageAllocator {
    next: u32,
    end: u32,
}

impl PageAllocator {
    /// `count` pages from page `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        PageAllocator { next: first, end: first.saturating_add(count) }
    }

    /// Allocates `count` pages, and grants them to domain `to`.
    ///
    /// # Errors
    /// When fewer are left, or the grant table is full.
    pub fn grant(
        &mut self,
        domain: &Arc<dyn Domain>,
        to: DomId,
        count: u32,
        writable: bool,
    ) -> io::Result<GrantedPages> {
        self.take(domain, count, false, |page| domain.grant(to, page, Extent::Whole, writable))
    }

    /// Allocates `count` pages, and reserves a reference for each, under which parts of it can be
    /// granted. Nothing is granted yet.
    ///
    /// # Errors
    /// As for [`grant`](Self::grant), and when the grant table is of version 1.
    pub fn reserve(&mut self, domain: &Arc<dyn Domain>, count: u32) -> io::Result<GrantedPages> {
        self.take(domain, count, true, |_| domain.reserve())
    }

    fn take(
        &mut self,
        domain: &Arc<dyn Domain>,
        count: u32,
        reserved: bool,
        refer: impl Fn(u32) -> io::Result<GrantRef>,
    ) -> io::Result<GrantedPages> {
        let first = self.next;
        let end = first.checked_add(count).filter(|end| *end <= self.end);
        let end = end.ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, "the domain has no pages left")
        })?;
        // If one grant is refused, the earlier ones are revoked.
        let mut granted =
            GrantedPages { domain: Arc::clone(domain), first, references: Box::new([]), reserved };
        let mut references = Vec::with_capacity(count as usize);
        for page in first..end {
            match refer(page) {
                Ok(reference) => references.push(reference),
                Err(error) => {
                    granted.references = references.into();
                    return Err(error);
                }
            }
        }
        granted.references = references.into();
        self.next = end;
        Ok(granted)
    }
}
