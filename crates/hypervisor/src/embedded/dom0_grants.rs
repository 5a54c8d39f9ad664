//! Domain 0's own grant table. Domain 0 has no memory of its own to grant. All of its entries are
//! transitive: they pass on grants of other domains.

use std::io;
use std::sync::Arc;

use ring::Memory;

use super::Host;
use super::guest_grants::GuestGrantTable;
use super::layout::{Entry, GrantKind, Layout, Version};
use super::sync::{lock, write};
use super::table::Table;
use crate::grants::TransitiveGrants;
use crate::{DomId, GrantRef, PAGE};

/// The table, from both sides.
#[derive(Debug)]
pub struct Dom0Grants {
    table: Arc<Table>,
    grant_table: GuestGrantTable,
}

impl Dom0Grants {
    fn new(host: &Host) -> io::Result<Dom0Grants> {
        let layout = Layout { pages: 1 };
        let (memory, file) = Memory::shared(layout.total() * PAGE).map_err(io::Error::other)?;
        let memory = Arc::new(memory);
        let grant_table = GuestGrantTable::new(Arc::clone(&memory), layout, Version::V2);
        let table =
            Table::new(DomId(0), (memory, file), layout, host.design.locking, &host.readers);
        table.set_version(Version::V2);
        Ok(Dom0Grants { table: Arc::new(table), grant_table })
    }
}

impl Host {
    /// Domain 0's table, created when it is first needed.
    pub(super) fn dom0_grants(&self) -> io::Result<Arc<Dom0Grants>> {
        let mut own = lock(&self.own);
        if let Some(own) = &*own {
            return Ok(Arc::clone(own));
        }
        let new = Arc::new(Dom0Grants::new(self)?);
        write(&self.domains).insert(DomId(0), Arc::clone(&new.table));
        *own = Some(Arc::clone(&new));
        Ok(new)
    }
}

impl TransitiveGrants for Dom0Grants {
    fn reserve(&self) -> io::Result<GrantRef> {
        self.grant_table.reserve(|frames| {
            self.table.grow(frames);
            Ok(())
        })
    }

    fn grant(&self, reference: GrantRef, to: DomId, domain: DomId, granted: GrantRef) {
        let entry = Entry {
            to,
            writable: false,
            what: GrantKind::Transitive { domain, reference: granted },
        };
        // The entry is there: its reference was reserved.
        let _ = self.grant_table.write(reference, entry);
    }

    fn end_access(&self, reference: GrantRef) -> bool {
        self.grant_table.end_access(reference)
    }

    fn release(&self, reference: GrantRef) {
        self.grant_table.release(reference);
    }
}
