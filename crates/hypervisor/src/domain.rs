//! A domain from its own side: what a frontend needs.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use ring::Memory;
use ring::grant::{DomId, GrantRef};

use crate::events::{Channel, RemotePort};
use crate::hypercall::Hypercalls;
use crate::store::Store;

/// How much of a page is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Some bytes of it (`GTF_sub_page`), for copies only. Needs a grant table of version 2.
    SubPage {
        /// The first byte.
        offset: u16,
        /// How many.
        len: u16,
    },
}

/// A domain from its own side.
pub trait Domain: Debug + Send + Sync {
    /// Its number.
    fn id(&self) -> DomId;

    /// Its memory: page n begins at address 4096 n.
    fn memory(&self) -> &Arc<Memory>;

    /// How many pages it has.
    fn pages(&self) -> u32;

    /// Grants a page of its own to domain `to`, for reading or, if `writable`, for writing too.
    ///
    /// # Errors
    /// When the grant table is full, or its version has no such grants.
    fn grant(&self, to: DomId, page: u32, extent: Extent, writable: bool) -> io::Result<GrantRef>;

    /// Passes a grant of `domain` to this one on to domain `to` (`GTF_transitive`), for copies
    /// only. Needs a grant table of version 2.
    ///
    /// # Errors
    /// When the grant table is full, or its version has no such grants.
    fn grant_transitive(
        &self,
        to: DomId,
        domain: DomId,
        reference: GrantRef,
        writable: bool,
    ) -> io::Result<GrantRef>;

    /// Revokes a grant. False when it is in use: then it stays.
    fn revoke(&self, reference: GrantRef) -> bool;

    /// Whether it can grant parts of pages, and pass grants on: whether its grant table is of
    /// version 2.
    fn has_sub_page_grants(&self) -> bool;

    /// Reserves a reference, under which pages can be granted again and again. Nothing is granted
    /// under it yet. Needs a grant table of version 2.
    ///
    /// # Errors
    /// When the grant table is full, or of version 1.
    fn reserve(&self) -> io::Result<GrantRef>;

    /// Grants for reading, as [`grant`](Self::grant) does, under a reserved reference under which
    /// nothing is granted.
    ///
    /// # Errors
    /// When there is no such page or reference.
    fn grant_at(&self, reference: GrantRef, to: DomId, page: u32, extent: Extent)
    -> io::Result<()>;

    /// Revokes the grant under a reserved reference (Linux: `gnttab_end_foreign_access_ref`): no
    /// use of it begins any more. False while a use is in progress; nothing may be granted under
    /// the reference until that use ends.
    fn end_access(&self, reference: GrantRef) -> bool;

    /// Releases a reserved reference, and revokes the grant under it.
    fn release(&self, reference: GrantRef);

    /// Opens an event channel for domain `to` to bind.
    ///
    /// # Errors
    /// When there are too many.
    fn open(&self, to: DomId) -> io::Result<(RemotePort, Box<dyn Channel>)>;

    /// Another virtual CPU, to make hypercalls.
    ///
    /// # Errors
    /// When there are too many, or the hypervisor has none for this domain.
    fn hypercalls(&self) -> io::Result<Box<dyn Hypercalls>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The store as it sees it.
    fn store(&self) -> &dyn Store;
}
