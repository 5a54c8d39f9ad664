//! Pages of a domain that are granted to its backend, as long as they are kept.

use std::fmt;
use std::io;
use std::sync::Arc;

use hypervisor::{DomId, Domain, Extent, GrantRef, PAGE};

/// Granted pages, side by side.
pub struct Granted {
    domain: Arc<dyn Domain>,
    first: u32,
    references: Box<[GrantRef]>,
    /// Granted part by part, under references that stay.
    by_parts: bool,
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages from {} on", self.references.len(), self.first)
    }
}

impl Granted {
    /// How many pages.
    pub fn len(&self) -> u32 {
        self.references.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// The address of the `n`th.
    pub fn addr(&self, n: u32) -> u64 {
        (u64::from(self.first) + u64::from(n)) * PAGE as u64
    }

    /// The number of the `n`th.
    pub fn page(&self, n: u32) -> u32 {
        self.first.saturating_add(n)
    }

    /// The references of all, if they are granted whole, as long as they are kept.
    pub fn references(&self) -> &[GrantRef] {
        if self.by_parts { &[] } else { &self.references }
    }

    /// The reference of the `n`th.
    pub fn reference(&self, n: u32) -> GrantRef {
        // None is granted under a reference that low.
        self.references.get(n as usize).copied().unwrap_or(GrantRef(0))
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        for reference in &self.references {
            match self.by_parts {
                true => self.domain.release(*reference),
                // What is still mapped stays granted, and its reference is not used again.
                false => _ = self.domain.revoke(*reference),
            }
        }
    }
}

/// Pages of a domain that are given out once each.
#[derive(Clone, Debug)]
pub struct Area {
    next: u32,
    end: u32,
}

impl Area {
    /// `count` pages from page `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Area { next: first, end: first.saturating_add(count) }
    }

    /// Takes so many pages and grants them to domain `to`.
    ///
    /// # Errors
    /// When so many are not left, or can't be granted.
    pub fn grant(
        &mut self,
        domain: &Arc<dyn Domain>,
        to: DomId,
        count: u32,
        writable: bool,
    ) -> io::Result<Granted> {
        self.take(domain, count, false, |page| domain.grant(to, page, Extent::Whole, writable))
    }

    /// Takes so many pages, of which nothing is granted yet; each has a reference to grant parts of
    /// it.
    ///
    /// # Errors
    /// As for [`grant`](Self::grant), and when parts can't be granted.
    pub fn reserve(&mut self, domain: &Arc<dyn Domain>, count: u32) -> io::Result<Granted> {
        self.take(domain, count, true, |_| domain.reserve())
    }

    fn take(
        &mut self,
        domain: &Arc<dyn Domain>,
        count: u32,
        by_parts: bool,
        refer: impl Fn(u32) -> io::Result<GrantRef>,
    ) -> io::Result<Granted> {
        let first = self.next;
        let end = first.checked_add(count).filter(|end| *end <= self.end);
        let end = end.ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, "the domain has no pages left")
        })?;
        // Those that were granted are revoked if one is refused.
        let mut granted =
            Granted { domain: Arc::clone(domain), first, references: Box::new([]), by_parts };
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
