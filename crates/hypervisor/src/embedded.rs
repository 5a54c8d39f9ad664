//! A hypervisor in one process tree: everything that Xen's side of the netif protocol needs, on any
//! Linux.
//!
//! - A [`Machine`] is a host. Its domain 0 is this process; its guests are other processes
//!   ([`server`], [`client`]), or, for tests, parts of this one.
//! - A guest's memory is a memory file that cannot shrink. The guest grants pages by writing
//!   entries into its grant table, which lies in that memory. Each use of a grant is checked
//!   against the entry as it is at that moment, and is counted in an active entry outside of the
//!   guest's memory ([`table`](self), versions 1 and 2: whole pages, parts of pages, pages for
//!   reading, grants passed on).
//! - Mapped pages are pages of the guest's file at addresses of this process, so unmapping flushes
//!   real TLBs. Copies run between the guests' memory files, within the bytes that are granted.
//! - Event channels are eventfds, and the store has permissions, watches and transactions.
//!
//! Xen's inner design has changed over time. [`Design`] selects a generation.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLock, Weak};

use ring::{MapError, Memory, RegionSpec};

use crate::{DomId, GrantRef, Hypervisor, PAGE, StoreError};

mod callpage;
pub mod client;
mod config;
mod copy_usage;
mod device;
mod dom0_grants;
mod events;
mod grants;
mod guest;
mod guest_grants;
mod layout;
mod local_hypercalls;
mod maptrack;
mod protocol;
pub mod server;
mod signal;
mod store;
mod store_usage;
mod sync;
mod table;
mod tablelock;
mod tally;
mod throttle;
mod tree;
mod vcpu;
mod vcpus;
mod watches;
mod window;
mod xenstored;

pub use config::{Copying, Design, Flush, Locking, Maptrack, Named};
pub use copy_usage::CopyUsage;
pub use device::Device;
pub use events::Port;
pub use guest::Guest;
pub use layout::{Reason, Version};
pub use store_usage::StoreUsage;

use dom0_grants::Dom0Grants;
use events::EventChannelTable;
use grants::Mapper;
use layout::Layout;
use maptrack::HandleTable;
use store::SharedStore;
use sync::{lock, read, write};
use table::Table;
use tablelock::Readers;
use tally::Tally;
use vcpu::VCPUS;
use window::Window;

/// Pages of other domains that one domain can have mapped at a time.
const MAPPINGS: u32 = 32 << 10;

/// A host. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Machine {
    host: Arc<Host>,
}

/// State that all domains of a host share.
pub(crate) struct Host {
    design: Design,
    readers: Arc<Readers>,
    domains: RwLock<BTreeMap<DomId, Arc<Table>>>,
    /// Destroyed domains of which pages are still mapped.
    dying: Mutex<BTreeMap<DomId, Weak<Table>>>,
    mappers: Mutex<BTreeMap<DomId, Arc<Mapper>>>,
    /// Domain 0's own grant table, created when it is first needed.
    own: Mutex<Option<Arc<Dom0Grants>>>,
    event_channels: EventChannelTable,
    store: SharedStore,
    counts: Tallies,
    on_refusal: Option<OnRefusal>,
}

/// Called with each use of a grant that was refused.
pub type OnRefusal = Box<dyn Fn(Refusal) + Send + Sync>;

/// One use of a grant that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The domain that tried to use the grant.
    pub by: DomId,
    /// The domain named as the owner of the grant.
    pub domain: DomId,
    /// The grant's reference.
    pub reference: GrantRef,
    /// Why it was refused.
    pub reason: Reason,
}

/// Counters of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches of copies.
    pub batches: u64,
    /// Copies in them.
    pub copies: u64,
    /// Copies of which both ends are granted pages.
    pub both_granted: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Copy calls of guests. They do not count as batches.
    pub guest_copy_calls: u64,
    /// Bytes copied in calls of guests. They are not part of `bytes`.
    pub guest_copied_bytes: u64,
    /// Pages that were mapped.
    pub maps: u64,
}

#[derive(Debug, Default)]
struct Tallies {
    batches: Tally,
    copies: Tally,
    both_granted: Tally,
    bytes: Tally,
    guest_copy_calls: Tally,
    guest_copied_bytes: Tally,
    maps: Tally,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("design", &self.design).finish_non_exhaustive()
    }
}

impl Machine {
    /// A host that has only domain 0.
    ///
    /// # Errors
    /// When no thread is left.
    pub fn new(design: Design) -> std::io::Result<Self> {
        Self::watched(design, None)
    }

    /// A host that reports each use of a grant that it refuses.
    ///
    /// # Errors
    /// When no thread is left.
    pub fn watched(design: Design, on_refusal: Option<OnRefusal>) -> std::io::Result<Self> {
        let host = Host {
            design,
            readers: Arc::new(Readers::new(VCPUS)),
            domains: RwLock::default(),
            dying: Mutex::default(),
            mappers: Mutex::default(),
            own: Mutex::default(),
            event_channels: EventChannelTable::default(),
            store: SharedStore::new()?,
            counts: Tallies::default(),
            on_refusal,
        };
        let machine = Self { host: Arc::new(host) };
        machine.host.store.introduce(DomId(0));
        Ok(machine)
    }

    /// Its inner design.
    pub fn design(&self) -> Design {
        self.host.design
    }

    /// The hypervisor as `domain` sees it.
    ///
    /// # Errors
    /// When no address range is left for mapped pages.
    pub fn hypervisor(&self, domain: DomId) -> std::io::Result<Hypervisor> {
        let host = || Arc::clone(&self.host);
        let mapper = self.host.mapper(domain)?;
        Ok(Hypervisor {
            domain,
            grants: Arc::new(grants::DomainGrants {
                user: grants::GrantUser { host: host(), by: domain },
                mapper,
            }),
            events: Arc::new(events::DomainEvents { host: host(), by: domain }),
            store: Arc::new(store::DomainStore::new(self.host.store.clone(), domain)),
        })
    }

    /// Creates a domain in this process, with `pages` pages of memory. An existing domain of the
    /// same number is destroyed.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn guest(&self, domain: DomId, pages: u32, version: Version) -> Result<Guest, MapError> {
        let layout = Layout { pages };
        let (memory, file) = Memory::shared(layout.total() * PAGE)?;
        let table = self.create(domain, (Arc::new(memory), file), layout, version);
        Ok(Guest::local(&self.host, &table))
    }

    /// Creates a domain with this memory, of this file: its own pages, and the pages shared with
    /// the hypervisor.
    fn create(
        &self,
        domain: DomId,
        (memory, file): (Arc<Memory>, OwnedFd),
        layout: Layout,
        version: Version,
    ) -> Arc<Table> {
        self.destroy(domain);
        let table = Table::new(
            domain,
            (memory, file),
            layout,
            self.host.design.locking,
            &self.host.readers,
        );
        table.set_version(version);
        let table = Arc::new(table);
        write(&self.host.domains).insert(domain, Arc::clone(&table));
        self.host.store.introduce(domain);
        table
    }

    /// How many mappings of its pages other domains hold; zero for a domain that is gone.
    pub fn mapped(&self, domain: DomId) -> usize {
        read(&self.host.domains).get(&domain).map_or(0, |table| table.mapped())
    }

    /// The cost of a domain's copy calls; zero for a domain that is gone.
    pub fn copy_usage(&self, domain: DomId) -> CopyUsage {
        read(&self.host.domains)
            .get(&domain)
            .map(|table| table.copy_usage().copy_usage())
            .unwrap_or_default()
    }

    /// A domain's use of the store; zero for a domain that is gone.
    pub fn store_usage(&self, domain: DomId) -> StoreUsage {
        let domains = read(&self.host.domains);
        domains.get(&domain).map(|table| table.store_usage().usage()).unwrap_or_default()
    }

    /// Destroys a domain at once, as `xl destroy` does. Its directory in the store is removed
    /// first. Pages that other domains have mapped stay mapped there.
    pub fn destroy(&self, domain: DomId) {
        let known = read(&self.host.domains).contains_key(&domain);
        if known {
            self.host.store.release(domain);
            let gone = write(&self.host.domains).remove(&domain);
            if let Some(table) = gone {
                table.kill();
                let mut dying = lock(&self.host.dying);
                dying.retain(|_, table| table.upgrade().is_some());
                dying.insert(domain, Arc::downgrade(&table));
            }
            self.host.event_channels.close_all(domain);
            lock(&self.host.mappers).remove(&domain);
        }
    }

    /// Creates a device, as a toolstack does.
    ///
    /// # Errors
    /// The store's error.
    pub fn attach(&self, device: &Device<'_>) -> Result<(), StoreError> {
        device.attach(&store::DomainStore::new(self.host.store.clone(), DomId(0)))
    }

    /// Requests that the backend of a device closes, as a toolstack does before it removes a
    /// device.
    ///
    /// # Errors
    /// The store's error.
    pub fn detach(&self, device: &Device<'_>) -> Result<(), StoreError> {
        device.detach(&store::DomainStore::new(self.host.store.clone(), DomId(0)))
    }

    /// Removes what is left of a device in the store.
    ///
    /// # Errors
    /// The store's error.
    pub fn forget(&self, device: &Device<'_>) -> Result<(), StoreError> {
        device.forget(&store::DomainStore::new(self.host.store.clone(), DomId(0)))
    }

    /// The counters of the host so far.
    pub fn counts(&self) -> Counts {
        let counts = &self.host.counts;
        Counts {
            batches: counts.batches.get(),
            copies: counts.copies.get(),
            both_granted: counts.both_granted.get(),
            bytes: counts.bytes.get(),
            guest_copy_calls: counts.guest_copy_calls.get(),
            guest_copied_bytes: counts.guest_copied_bytes.get(),
            maps: counts.maps.get(),
        }
    }
}

impl Host {
    fn table(&self, domain: DomId) -> Result<Arc<Table>, Reason> {
        if let Some(table) = read(&self.domains).get(&domain) {
            return Ok(Arc::clone(table));
        }
        let dying = lock(&self.dying).get(&domain).and_then(Weak::upgrade);
        Err(if dying.is_some_and(|table| table.mapped() > 0) {
            Reason::Dying
        } else {
            Reason::NoDomain
        })
    }

    fn mapper(&self, domain: DomId) -> std::io::Result<Arc<Mapper>> {
        let mut mappers = lock(&self.mappers);
        if let Some(mapper) = mappers.get(&domain) {
            return Ok(Arc::clone(mapper));
        }
        let window = Arc::new(Window::new(MAPPINGS as usize, self.design.flush)?);
        let mapper = Arc::new(Mapper {
            window,
            handles: HandleTable::new(self.design.maptrack, MAPPINGS, VCPUS),
        });
        mappers.insert(domain, Arc::clone(&mapper));
        Ok(mapper)
    }

    fn refuse(&self, refusal: Refusal) {
        if let Some(on_refusal) = &self.on_refusal {
            on_refusal(refusal);
        }
    }
}

/// Maps the memory of a guest that is another process.
///
/// # Errors
/// When the file is too short, is not sealed against shrinking, or has huge pages. A huge page that
/// was mapped in the place of one page would also replace the neighbouring pages, which may belong
/// to other guests.
fn adopt_memory(file: &OwnedFd, layout: Layout) -> Result<Memory, MapError> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    if rustix::fs::fstatfs(file).map_err(std::io::Error::from)?.f_type as u64 & 0xffff_ffff
        != TMPFS_MAGIC
    {
        return Err(MapError::NotMemory(0));
    }
    let len = layout.total() as u64 * PAGE as u64;
    let seals = rustix::fs::fcntl_get_seals(file).map_err(std::io::Error::from)?;
    if !seals.contains(rustix::fs::SealFlags::SHRINK) {
        return Err(MapError::NotMemory(0));
    }
    let fd = file.try_clone()?;
    Memory::map(vec![RegionSpec { guest_addr: 0, user_addr: 0, len, offset: 0, fd }])
}

#[cfg(test)]
mod hypercall_tests;
#[cfg(test)]
mod tests;
