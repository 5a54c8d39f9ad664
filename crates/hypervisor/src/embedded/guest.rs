//! A domain of an embedded host as the domain sees itself: in this process, or as a process of its
//! own.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use ring::Memory;

use super::events::{OpenPort, Port};
use super::guest_grants::GuestGrantTable;
use super::layout::{Entry, GrantKind, Layout, Version};
use super::local_hypercalls::LocalHypercalls;
use super::table::Table;
use super::{Host, store};
use crate::domain::{Domain, Extent};
use crate::{Channel, DomId, GrantRef, Hypercalls, RemotePort, Store};

/// The hypercalls of a domain, except copies.
pub trait Calls: Debug + Send + Sync {
    /// Grows the grant table to so many pages.
    ///
    /// # Errors
    /// When it does not.
    fn grow(&self, frames: u32) -> io::Result<()>;

    /// Opens an event channel for domain `to` to bind.
    ///
    /// # Errors
    /// When there are too many.
    fn open(&self, to: DomId) -> io::Result<Port>;

    /// A virtual CPU that can make grant copies.
    ///
    /// # Errors
    /// When there are too many.
    fn hypercalls(&self) -> io::Result<Box<dyn Hypercalls>>;
}

/// A domain.
#[derive(Debug)]
pub struct Guest {
    id: DomId,
    memory: Arc<Memory>,
    layout: Layout,
    version: Version,
    grant_table: GuestGrantTable,
    calls: Box<dyn Calls>,
    store: Box<dyn Store>,
}

/// The parts of a domain.
pub struct GuestParts {
    /// Its number.
    pub id: DomId,
    /// Its memory.
    pub memory: Arc<Memory>,
    /// The layout of the memory.
    pub layout: Layout,
    /// The version of its grant table.
    pub version: Version,
    /// The connection to its hypervisor.
    pub calls: Box<dyn Calls>,
    /// The connection to the store.
    pub store: Box<dyn Store>,
}

impl Guest {
    /// The domain that consists of these parts.
    pub fn new(parts: GuestParts) -> Guest {
        let GuestParts { id, memory, layout, version, calls, store } = parts;
        let grant_table = GuestGrantTable::new(Arc::clone(&memory), layout, version);
        Guest { id, memory, layout, version, grant_table, calls, store }
    }

    /// One in this process.
    pub(super) fn local(host: &Arc<Host>, table: &Arc<Table>) -> Guest {
        let calls = Local { host: Arc::clone(host), table: Arc::clone(table) };
        Guest::new(GuestParts {
            id: table.id(),
            memory: Arc::clone(table.memory()),
            layout: table.layout(),
            version: table.version(),
            calls: Box::new(calls),
            store: Box::new(store::DomainStore::new(host.store.clone(), table.id())),
        })
    }

    /// Opens an event channel for domain `to` to bind.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open_port(&self, to: DomId) -> io::Result<Port> {
        self.calls.open(to)
    }

    fn enter(&self, entry: Entry) -> io::Result<GrantRef> {
        self.grant_table.grant(entry, |frames| self.calls.grow(frames))
    }

    fn what(&self, page: u32, extent: Extent) -> io::Result<GrantKind> {
        if page >= self.layout.pages {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such page"));
        }
        match extent {
            Extent::Whole => Ok(GrantKind::Page(page)),
            Extent::SubPage { offset, len } => {
                self.needs_v2().map(|()| GrantKind::SubPage { page, offset, len })
            }
        }
    }

    fn needs_v2(&self) -> io::Result<()> {
        match self.version {
            Version::V2 => Ok(()),
            Version::V1 => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "that needs a grant table of version 2",
            )),
        }
    }
}

impl Domain for Guest {
    fn id(&self) -> DomId {
        self.id
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn pages(&self) -> u32 {
        self.layout.pages
    }

    fn grant(&self, to: DomId, page: u32, extent: Extent, writable: bool) -> io::Result<GrantRef> {
        self.enter(Entry { to, writable, what: self.what(page, extent)? })
    }

    fn grant_transitive(
        &self,
        to: DomId,
        domain: DomId,
        reference: GrantRef,
        writable: bool,
    ) -> io::Result<GrantRef> {
        self.needs_v2()?;
        self.enter(Entry { to, writable, what: GrantKind::Transitive { domain, reference } })
    }

    fn revoke(&self, reference: GrantRef) -> bool {
        self.grant_table.revoke(reference)
    }

    fn has_sub_page_grants(&self) -> bool {
        self.version == Version::V2
    }

    fn reserve(&self) -> io::Result<GrantRef> {
        self.needs_v2()?;
        self.grant_table.reserve(|frames| self.calls.grow(frames))
    }

    fn grant_at(
        &self,
        reference: GrantRef,
        to: DomId,
        page: u32,
        extent: Extent,
    ) -> io::Result<()> {
        self.needs_v2()?;
        self.grant_table
            .write(reference, Entry { to, writable: false, what: self.what(page, extent)? })
    }

    fn end_access(&self, reference: GrantRef) -> bool {
        self.grant_table.end_access(reference)
    }

    fn release(&self, reference: GrantRef) {
        self.grant_table.release(reference);
    }

    fn open(&self, to: DomId) -> io::Result<(RemotePort, Box<dyn Channel>)> {
        let port = self.open_port(to)?;
        Ok((port.number(), Box::new(port)))
    }

    fn hypercalls(&self) -> io::Result<Box<dyn Hypercalls>> {
        self.calls.hypercalls()
    }

    fn store(&self) -> &dyn Store {
        &*self.store
    }
}

/// Calls within one process.
#[derive(Debug)]
struct Local {
    host: Arc<Host>,
    table: Arc<Table>,
}

impl Calls for Local {
    fn grow(&self, frames: u32) -> io::Result<()> {
        self.table.grow(frames);
        Ok(())
    }

    fn open(&self, to: DomId) -> io::Result<Port> {
        let opened = self.host.event_channels.open(&self.table, to)?;
        let end = OpenPort {
            host: Arc::clone(&self.host),
            owner: self.table.id(),
            number: opened.number,
        };
        Ok(Port::opened(opened, Box::new(end)))
    }

    fn hypercalls(&self) -> io::Result<Box<dyn Hypercalls>> {
        Ok(Box::new(LocalHypercalls::new(&self.host, &self.table)?))
    }
}
