//! A hypervisor for tests: the embedded one ([`crate::embedded`]) with guests in this process. It
//! records the uses of grants that it refused, and panics when a test requests something
//! impossible.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::{MapError, Memory};

use crate::domain::{Domain, Extent};
use crate::{DomId, GrantRef, Hypervisor, Store, embedded};

pub use embedded::{Counts, Design, Device, Port, Reason, Refusal, Version};

/// How long a copy that is under way may use a page.
const COPYING: Duration = Duration::from_secs(10);

/// A host. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Machine {
    machine: embedded::Machine,
    refusals: Arc<Mutex<Vec<Refusal>>>,
}

impl Machine {
    /// A host that has only domain 0.
    ///
    /// # Panics
    /// When no thread is left.
    pub fn new() -> Self {
        Self::of(Design::default())
    }

    /// One of that inner design.
    ///
    /// # Panics
    /// When no thread is left.
    pub fn of(design: Design) -> Self {
        let refusals: Arc<Mutex<Vec<Refusal>>> = Arc::default();
        let list = Arc::clone(&refusals);
        let note = move |refusal| list.lock().push(refusal);
        let machine = embedded::Machine::watched(design, Some(Box::new(note)));
        Self { machine: machine.expect("a thread for the store"), refusals }
    }

    /// The hypervisor as `domain` sees it.
    ///
    /// # Panics
    /// When there are no addresses left to map pages at.
    pub fn hypervisor(&self, domain: DomId) -> Hypervisor {
        self.machine.hypervisor(domain).expect("addresses to map pages at")
    }

    /// Creates a domain with `pages` pages of memory. An existing domain of the same number is
    /// destroyed.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn guest(&self, domain: DomId, pages: u32) -> Result<Guest, MapError> {
        self.guest_of(domain, pages, Version::V1)
    }

    /// As [`domain`](Self::domain), with a grant table of that version.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn guest_of(&self, domain: DomId, pages: u32, version: Version) -> Result<Guest, MapError> {
        Ok(Guest {
            guest: Arc::new(self.machine.guest(domain, pages, version)?),
            machine: self.machine.clone(),
        })
    }

    /// Takes the list of refused uses of grants, oldest first.
    pub fn refusals(&self) -> Vec<Refusal> {
        std::mem::take(&mut *self.refusals.lock())
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Machine {
    type Target = embedded::Machine;

    fn deref(&self) -> &embedded::Machine {
        &self.machine
    }
}

/// A domain from its own side.
#[derive(Clone, Debug)]
pub struct Guest {
    guest: Arc<embedded::Guest>,
    machine: embedded::Machine,
}

impl Guest {
    /// The domain itself.
    pub fn domain(&self) -> &Arc<embedded::Guest> {
        &self.guest
    }

    /// Its number.
    pub fn id(&self) -> DomId {
        self.guest.id()
    }

    /// Its memory: page n begins at address 4096 n.
    pub fn memory(&self) -> &Arc<Memory> {
        self.guest.memory()
    }

    /// The store as it sees it.
    pub fn store(&self) -> &dyn Store {
        self.guest.store()
    }

    /// Grants a page to domain `to`, for reading or, if `writable`, for writing too.
    ///
    /// # Panics
    /// When the grant table is full, or there is no such page.
    pub fn grant(&self, to: DomId, page: u32, writable: bool) -> GrantRef {
        self.guest.grant(to, page, Extent::Whole, writable).expect("a grant")
    }

    /// Revokes a grant. False if it is mapped: then it stays.
    pub fn revoke(&self, reference: GrantRef) -> bool {
        let until = Instant::now() + COPYING;
        loop {
            if self.guest.revoke(reference) {
                return true;
            }
            if self.mapped() > 0 && Instant::now() + COPYING > until + Duration::from_millis(20) {
                return false;
            }
            if Instant::now() > until {
                return false;
            }
            // A copy is in progress.
            std::thread::yield_now();
        }
    }

    /// How many pages are mapped by others.
    pub fn mapped(&self) -> usize {
        self.machine.mapped(self.id())
    }

    /// Opens an event channel for domain `to` to bind.
    ///
    /// # Errors
    /// When there are too many.
    pub fn open(&self, to: DomId) -> io::Result<Port> {
        self.guest.open_port(to)
    }
}

#[cfg(test)]
mod tests;
