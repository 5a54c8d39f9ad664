//! A domain from its own side: what a frontend needs.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use ring::Memory;

use crate::{Channel, DomId, GrantRef, RemotePort, Store};

/// How much of a page is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Some bytes of it, to be copied only. Needs a grant table of version 2.
    Part {
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
    /// When the grant table is full, or can't say it.
    fn grant(&self, to: DomId, page: u32, extent: Extent, writable: bool) -> io::Result<GrantRef>;

    /// Passes on to domain `to` what `domain` granted to this one, to be copied only. Needs a grant table of version 2.
    ///
    /// # Errors
    /// When the grant table is full, or can't say it.
    fn pass_on(&self, to: DomId, domain: DomId, reference: GrantRef, writable: bool) -> io::Result<GrantRef>;

    /// Takes a grant back. False when it is in use: then it stays.
    fn revoke(&self, reference: GrantRef) -> bool;

    /// Opens an event channel for domain `to` to bind.
    ///
    /// # Errors
    /// When there are too many.
    fn open(&self, to: DomId) -> io::Result<(RemotePort, Box<dyn Channel>)>;

    /// The store as it sees it.
    fn store(&self) -> &dyn Store;
}
