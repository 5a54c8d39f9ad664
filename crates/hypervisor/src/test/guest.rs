//! A domain from its own side.

use std::io;
use std::sync::{Arc, PoisonError};

use ring::Memory;

use super::events::Port;
use super::grants::Table;
use super::{Host, store};
use crate::{DomId, GrantRef, Store};

/// A domain: its memory, and what it grants of it.
#[derive(Debug)]
pub struct Guest {
    host: Arc<Host>,
    id: DomId,
    table: Arc<Table>,
    store: store::Of,
}

impl Guest {
    pub(super) fn new(host: Arc<Host>, id: DomId, table: Arc<Table>) -> Self {
        let store = store::Of::new(host.store.clone(), id);
        Self { host, id, table, store }
    }

    /// Its number.
    pub fn id(&self) -> DomId {
        self.id
    }

    /// Its memory: page n begins at address 4096 n.
    pub fn memory(&self) -> &Arc<Memory> {
        self.table.memory()
    }

    /// The store as it sees it.
    pub fn store(&self) -> &dyn Store {
        &self.store
    }

    /// Grants a page to domain `to`, for reading or, if `writable`, for writing too. References of revoked grants are used
    /// again, the last one first, as Linux does.
    ///
    /// # Panics
    /// When the grant table is full, or there is no such page.
    pub fn grant(&self, to: DomId, page: u32, writable: bool) -> GrantRef {
        self.table.grant(to, page, writable)
    }

    /// Revokes a grant. False if it is mapped: then it stays.
    pub fn revoke(&self, reference: GrantRef) -> bool {
        let _copying = self.host.copying.write().unwrap_or_else(PoisonError::into_inner);
        self.table.revoke(reference)
    }

    /// How many pages are mapped by others.
    pub fn mapped(&self) -> usize {
        self.table.mapped()
    }

    /// Opens an event channel for domain `to` to bind.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn open(&self, to: DomId) -> io::Result<Port> {
        self.host.wiring.open(&self.host, self.id, to)
    }
}
