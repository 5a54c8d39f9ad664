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
        /// Whose pages.
        domain: DomId,
        /// The grants that were asked for.
        references: Vec<GrantRef>,
    },
    /// The page is not granted to us for this use.
    #[error("domain {domain} has not granted page {reference} to us for {}", if *.write { "writing" } else { "reading" })]
    Page {
        /// Whose page.
        domain: DomId,
        /// The grant that was asked for.
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
    /// memory is for rings, and for devices to write into; it can't be a local end of a copy.
    ///
    /// # Errors
    /// See [`GrantError`]; all pages are mapped, or none.
    fn map(&self, domain: DomId, references: &[GrantRef]) -> Result<Arc<Memory>, GrantError>;

    /// Maps one page of `domain` for copies from it and, if `write`, to it. It stays mapped as long
    /// as the page lives, even when its domain is gone. One that is mapped for reading needs no
    /// more than a grant for that.
    ///
    /// # Errors
    /// See [`GrantError`].
    fn map_page(&self, domain: DomId, reference: GrantRef, write: bool)
    -> Result<Page, GrantError>;

    /// Makes the copies of `copies`, in as few calls of the hypervisor as possible. Each gets a
    /// status; a copy that fails does not prevent the others.
    ///
    /// # Errors
    /// When none could be tried. All of them have failed then.
    fn copy(&self, copies: &mut Copies) -> Result<(), GrantError>;

    /// `len` bytes of our own that are cheaper to copy from and to than others. `None`: there are
    /// none such, or no more.
    fn own_pages(&self, len: usize) -> Option<OwnPages> {
        let _ = len;
        None
    }

    /// Passes on what other domains granted to this one, where the hypervisor can do that.
    fn transitive_grants(&self) -> Option<Arc<dyn TransitiveGrants>> {
        None
    }
}

/// Transitive grants (`GTF_transitive`): passes on, to be copied only, what other domains granted
/// to this one. Its references are reserved once and used again and again.
pub trait TransitiveGrants: Debug + Send + Sync {
    /// Reserves a reference, under which nothing is granted yet.
    ///
    /// # Errors
    /// When the grant table is full.
    fn reserve(&self) -> io::Result<GrantRef>;

    /// Lets domain `to` read, under a reserved reference, what `domain` granted to us under
    /// `granted`. Not to be called while the reference is in use.
    fn grant(&self, reference: GrantRef, to: DomId, domain: DomId, granted: GrantRef);

    /// Revokes the grant: no use of the reference begins any more. False while one is in progress.
    fn end_access(&self, reference: GrantRef) -> bool;

    /// Releases a reserved reference, and revokes what is granted under it.
    fn release(&self, reference: GrantRef);
}
