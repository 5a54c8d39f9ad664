//! Pages that other domains granted.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use ring::copies::{Copies, OwnPages};
use ring::grant::{DomId, GrantRef};
use ring::{Memory, Page};
use thiserror::Error;

/// Why pages could not be mapped, or a batch of copies not be run.
#[derive(Debug, Error)]
pub enum GrantError {
    /// At least one of the pages is not granted to us for writing.
    #[error("domain {domain} has not granted {}", list(references))]
    Refused {
        /// The domain that owns the pages.
        domain: DomId,
        /// The requested grants.
        references: Vec<GrantRef>,
    },
    /// The page is not granted to us for this use.
    #[error("domain {domain} has not granted page {reference} to us for {}", if *.write { "writing" } else { "reading" })]
    Page {
        /// The domain that owns the page.
        domain: DomId,
        /// The requested grant.
        reference: GrantRef,
        /// Whether the use was a write.
        write: bool,
    },
    /// No page, or more pages than any device needs.
    #[error("mapping {0} pages at once")]
    Count(usize),
    /// The kernel refused for another reason.
    #[error("{what}: {error}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

fn list(references: &[GrantRef]) -> String {
    match references {
        [one] => format!("page {one} to us for writing"),
        many => format!("all of the {} pages asked for to us for writing", many.len()),
    }
}

/// Most pages that are mapped at once: as many as a ring of one page has buffers. (The largest ring
/// that any Xen device has is in 16 pages.)
pub const MAX_PAGES: usize = 256;

/// Uses pages of other domains.
pub trait Grants: Debug + Send + Sync {
    /// Maps pages of `domain`, readable and writable, side by side from address 0 of the memory.
    /// The pages stay mapped as long as the memory lives, even when their domain is gone. Such
    /// memory is for rings, and for devices to write into; it cannot be a local end of a copy.
    ///
    /// # Errors
    /// See [`GrantError`]; all pages are mapped, or none.
    fn map(&self, domain: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError>;

    /// Maps one page of `domain` for copies from it and, if `write`, to it. It stays mapped as long
    /// as the page lives, even when its domain is gone. A mapping for reading needs only a grant
    /// for reading.
    ///
    /// # Errors
    /// See [`GrantError`].
    fn map_page(&self, domain: DomId, reference: GrantRef, write: bool)
    -> Result<Page, GrantError>;

    /// Makes the copies of `copies`, in as few hypercalls as possible. Each copy gets a status; one
    /// that fails does not prevent the others.
    ///
    /// # Errors
    /// When none could be tried. All of them have failed then.
    fn copy(&self, copies: &mut Copies) -> Result<(), GrantError>;

    /// `len` bytes of this domain that are cheaper to copy from and to than other memory. `None`:
    /// there are no such pages, or no more.
    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        let _ = len;
        None
    }

    /// The interface to pass on grants of other domains; `None`: the hypervisor does not support
    /// that.
    fn transitive_grants(&self) -> Option<Arc<dyn TransitiveGrants>> {
        None
    }
}

/// Transitive grants (`GTF_transitive`), which pass on grants of other domains to this one, for
/// copies only. References are reserved once and then reused.
pub trait TransitiveGrants: Debug + Send + Sync {
    /// Reserves a reference, under which nothing is granted yet.
    ///
    /// # Errors
    /// When the grant table is full.
    fn reserve(&self) -> io::Result<GrantRef>;

    /// Lets domain `to` read, under a reserved reference, the page or bytes that `domain` granted
    /// to us under `granted`. Must not be called while the reference is in use.
    fn grant(&self, reference: GrantRef, to: DomId, domain: DomId, granted: GrantRef);

    /// Revokes the grant: no use of the reference begins any more. False while one is in progress.
    fn end_access(&self, reference: GrantRef) -> bool;

    /// Releases a reserved reference, and revokes the grant under it.
    fn release(&self, reference: GrantRef);
}
