//! Domain 0's own grant table. It has no memory of its own to grant; all that it grants is what it
//! passes on.

use std::io;
use std::sync::Arc;

use ring::Memory;

use super::Host;
use super::granter::Granter;
use super::layout::{Entry, Layout, Version, What};
use super::sync::{lock, write};
use super::table::Table;
use crate::grants::Lender;
use crate::{DomId, GrantRef, PAGE};

/// The table, from both sides.
#[derive(Debug)]
pub struct Own {
    table: Arc<Table>,
    granter: Granter,
}

impl Own {
    fn new(host: &Host) -> io::Result<Own> {
        let layout = Layout { pages: 1 };
        let (memory, file) = Memory::shared(layout.total() * PAGE).map_err(io::Error::other)?;
        let memory = Arc::new(memory);
        let granter = Granter::new(Arc::clone(&memory), layout, Version::V2);
        let table =
            Table::new(DomId(0), (memory, file), layout, host.design.locking, &host.readers);
        table.set_version(Version::V2);
        Ok(Own { table: Arc::new(table), granter })
    }
}

impl Host {
    /// Domain 0's table, made when it is first needed.
    pub(super) fn own(&self) -> io::Result<Arc<Own>> {
        let mut own = lock(&self.own);
        if let Some(own) = &*own {
            return Ok(Arc::clone(own));
        }
        let new = Arc::new(Own::new(self)?);
        write(&self.domains).insert(DomId(0), Arc::clone(&new.table));
        *own = Some(Arc::clone(&new));
        Ok(new)
    }
}

impl Lender for Own {
    fn reserve(&self) -> io::Result<GrantRef> {
        self.granter.reserve(|frames| {
            self.table.grow(frames);
            Ok(())
        })
    }

    fn lend(&self, reference: GrantRef, to: DomId, domain: DomId, granted: GrantRef) {
        let entry =
            Entry { to, writable: false, what: What::Through { domain, reference: granted } };
        // The entry is there: its reference was reserved.
        let _ = self.granter.write(reference, entry);
    }

    fn recall(&self, reference: GrantRef) -> bool {
        self.granter.withdraw(reference)
    }

    fn release(&self, reference: GrantRef) {
        self.granter.release(reference);
    }
}
