//! A hypervisor for tests: a host with domains in one process.
//!
//! What matters is as real as it can be: a guest's memory is a memory file that is mapped once more for whoever maps its
//! grants, every use of a grant is checked when it happens, signals are eventfds that are masked until they are taken,
//! and the store has permissions, transactions that can be overtaken, and watches that run on a thread of their own. What
//! is refused is also written down with its real reason, which Xen keeps to itself ([`Machine::refusals`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use ring::MapError;

use crate::{DomId, GrantRef, Hypervisor, StoreError};

mod device;
mod events;
mod grants;
mod guest;
mod store;
mod tree;

pub use device::Device;
pub use events::Port;
pub use guest::Guest;

use events::Wiring;
use grants::Table;
use store::Keeper;

/// A host. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Machine {
    host: Arc<Host>,
}

#[derive(Debug)]
struct Host {
    domains: Mutex<BTreeMap<DomId, Arc<Table>>>,
    /// Destroyed domains: as long as pages of them are mapped, they are not quite gone.
    dying: Mutex<BTreeMap<DomId, Weak<Table>>>,
    wiring: Wiring,
    store: Keeper,
    /// Held for reading while copies run, for writing while a grant is revoked: who has revoked a grant knows that nobody
    /// uses it.
    copying: RwLock<()>,
    refusals: Mutex<Vec<Refusal>>,
    counts: Mutex<Counts>,
}

/// Why the use of a grant was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no such domain, or no more.
    NoDomain,
    /// The domain has been destroyed; it is still there because pages of it are mapped.
    Dying,
    /// The reference is beyond the end of the grant table.
    BeyondTable,
    /// Nothing was ever granted under that reference.
    NeverGranted,
    /// What was granted has been revoked.
    Revoked,
    /// It is granted to another domain.
    NotToUs,
    /// It is granted for reading, and was to be written.
    ReadOnly,
}

/// One use of a grant that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Who tried.
    pub by: DomId,
    /// Whose grant.
    pub domain: DomId,
    /// Which.
    pub reference: GrantRef,
    /// Why it was refused.
    pub reason: Reason,
}

/// How often things were done on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches of copies.
    pub batches: u64,
    /// Copies in them.
    pub copies: u64,
    /// Of those, with both ends granted.
    pub both_granted: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Pages that were mapped.
    pub maps: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A host with nothing but domain 0.
    pub fn new() -> Self {
        let host = Host {
            domains: Mutex::default(),
            dying: Mutex::default(),
            wiring: Wiring::default(),
            store: Keeper::new(),
            copying: RwLock::new(()),
            refusals: Mutex::default(),
            counts: Mutex::default(),
        };
        let machine = Self { host: Arc::new(host) };
        machine.host.store.introduce(DomId(0));
        machine
    }

    /// The hypervisor as `domain` sees it.
    pub fn hypervisor(&self, domain: DomId) -> Hypervisor {
        Hypervisor {
            domain,
            grants: Arc::new(grants::Of { host: self.host.clone(), by: domain }),
            events: Arc::new(events::Of { host: self.host.clone(), by: domain }),
            store: Arc::new(store::Of::new(self.host.store.clone(), domain)),
        }
    }

    /// A new domain with `pages` pages of memory. One of that number that is there already is destroyed.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn guest(&self, domain: DomId, pages: u32) -> Result<Guest, MapError> {
        self.destroy(domain);
        let table = Arc::new(Table::new(pages)?);
        lock(&self.host.domains).insert(domain, table.clone());
        self.host.store.introduce(domain);
        Ok(Guest::new(self.host.clone(), domain, table))
    }

    /// Destroys a domain, as a toolstack does that is in a hurry: all at once, and its directory in the store vanishes
    /// first. What others have mapped of it stays with them.
    pub fn destroy(&self, domain: DomId) {
        let known = lock(&self.host.domains).contains_key(&domain);
        if known {
            self.host.store.release(domain);
            let _copying = self.host.copying.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(table) = lock(&self.host.domains).remove(&domain) {
                lock(&self.host.dying).insert(domain, Arc::downgrade(&table));
            }
            self.host.wiring.close_all(domain);
        }
    }

    /// Creates a device, as a toolstack does.
    ///
    /// # Errors
    /// What the store says.
    pub fn attach(&self, device: &Device<'_>) -> Result<(), StoreError> {
        device.attach(&store::Of::new(self.host.store.clone(), DomId(0)))
    }

    /// Asks for the end of a device, as a toolstack does: its backend is to close.
    ///
    /// # Errors
    /// What the store says.
    pub fn detach(&self, device: &Device<'_>) -> Result<(), StoreError> {
        device.detach(&store::Of::new(self.host.store.clone(), DomId(0)))
    }

    /// Removes what is left of a device in the store.
    ///
    /// # Errors
    /// What the store says.
    pub fn forget(&self, device: &Device<'_>) -> Result<(), StoreError> {
        device.forget(&store::Of::new(self.host.store.clone(), DomId(0)))
    }

    /// Takes the list of uses of grants that were refused, oldest first.
    pub fn refusals(&self) -> Vec<Refusal> {
        std::mem::take(&mut *lock(&self.host.refusals))
    }

    /// How often things were done so far.
    pub fn counts(&self) -> Counts {
        *lock(&self.host.counts)
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    fn domain(&self, domain: DomId) -> Result<Arc<Table>, Reason> {
        if let Some(table) = lock(&self.domains).get(&domain) {
            return Ok(table.clone());
        }
        let dying = lock(&self.dying).get(&domain).and_then(Weak::upgrade);
        Err(if dying.is_some_and(|table| table.mapped() > 0) { Reason::Dying } else { Reason::NoDomain })
    }
}

#[cfg(test)]
mod tests;
