//! The domain that this process runs in, from its own side: pages that it grants through
//! `/dev/xen/gntalloc`, and event channels that others bind.
//!
//! The device allocates a page for each grant; it can't grant pages that exist. So a page is mapped
//! from the device while it is granted, and replaced by an empty one when the grant is revoked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;
use ring::Memory;
use ring::region::MappingOwner;
use rustix::mm::{MapFlags, ProtFlags};

use super::gntalloc::{self, Allocated};
use super::{OpenError, XenStore, evtchn, open_device};
use crate::{Channel, DomId, Domain, Extent, GrantRef, PAGE, RemotePort, Store};

/// A page that is granted.
#[derive(Clone, Copy, Debug)]
struct Grant {
    page: u32,
    index: u64,
    reference: GrantRef,
}

/// The domain that we run in.
#[derive(Debug)]
pub struct OwnDomain {
    id: DomId,
    pages: Pages,
    memory: Arc<Memory>,
    device: OwnedFd,
    grants: Mutex<Vec<Grant>>,
    store: XenStore,
}

impl OwnDomain {
    /// Opens the devices, with memory of `pages` pages, none of which is granted.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(pages: u32) -> Result<Self, OpenError> {
        let device = open_device("/dev/xen/gntalloc")?;
        let store = XenStore::open()?;
        // A relative path is looked up in our own directory.
        let id = DomId(store.nodes().number("domid")?.unwrap_or(0));
        let (pages, memory) = Pages::reserve(pages)?;
        Ok(OwnDomain {
            id,
            pages,
            memory: Arc::new(memory),
            device,
            grants: Mutex::default(),
            store,
        })
    }
}

impl Domain for OwnDomain {
    fn id(&self) -> DomId {
        self.id
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn pages(&self) -> u32 {
        self.pages.count
    }

    /// As in the trait. The page is empty afterwards, and can be granted only once at a time.
    fn grant(&self, to: DomId, page: u32, extent: Extent, writable: bool) -> io::Result<GrantRef> {
        if extent != Extent::Whole {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut grants = self.grants.lock();
        if grants.iter().any(|grant| grant.page == page) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let device = self.device.as_fd();
        let Allocated { index, references } = gntalloc::alloc(device, to, 1, writable)?;
        let reference = *references.first().ok_or(io::ErrorKind::InvalidData)?;
        let placed = self.pages.put(page, Some((&self.device, index)));
        placed.inspect_err(|_| gntalloc::dealloc(device, index))?;
        grants.push(Grant { page, index, reference });
        Ok(reference)
    }

    fn grant_transitive(&self, _: DomId, _: DomId, _: GrantRef, _: bool) -> io::Result<GrantRef> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As in the trait, except for a grant in use, which the kernel revokes when the use ends.
    /// Until then the kernel does not use the page or the reference again.
    fn revoke(&self, reference: GrantRef) -> bool {
        let mut grants = self.grants.lock();
        let Some(at) = grants.iter().position(|grant| grant.reference == reference) else {
            return false;
        };
        let Grant { page, index, .. } = grants.swap_remove(at);
        let taken = self.pages.put(page, None).is_ok();
        gntalloc::dealloc(self.device.as_fd(), index);
        taken
    }

    /// The device grants whole pages only.
    fn has_sub_page_grants(&self) -> bool {
        false
    }

    fn reserve(&self) -> io::Result<GrantRef> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn grant_at(&self, _: GrantRef, _: DomId, _: u32, _: Extent) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn end_access(&self, reference: GrantRef) -> bool {
        self.revoke(reference)
    }

    fn release(&self, reference: GrantRef) {
        self.revoke(reference);
    }

    fn open(&self, to: DomId) -> io::Result<(RemotePort, Box<dyn Channel>)> {
        evtchn::open(to)
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }
}

/// A range of addresses, in which pages are exchanged.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    count: u32,
}

// SAFETY: the range belongs to the process, not to a thread; the pointer is used only to map into
// it.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// Unmaps the range.
#[derive(Debug)]
struct Whole {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: as for the range.
unsafe impl Send for Whole {}
// SAFETY: as for the range.
unsafe impl Sync for Whole {}

impl MappingOwner for Whole {}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and the memory that used it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping");
    }
}

impl Pages {
    /// Reserves a range of empty pages. Returns the range, and a memory over it.
    fn reserve(count: u32) -> io::Result<(Pages, Memory)> {
        let len = count.max(1) as usize * PAGE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: `len` bytes were just mapped there for reading and writing, and stay mapped, even
        // when pages are exchanged, until the keeper unmaps them. No other code knows them, and
        // they belong to no file that could be truncated.
        let memory = unsafe { Memory::adopt(base, len, Box::new(Whole { base, len })) };
        Ok((Pages { base, count }, memory))
    }

    /// Replaces a page by one that `device` offers at an index, or by an empty one.
    fn put(&self, page: u32, device: Option<(&OwnedFd, u64)>) -> io::Result<()> {
        if page >= self.count {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = self.base.as_ptr().wrapping_add(page as usize * PAGE).cast();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the page lies in the range, which is mapped as long as the memory over it lives,
        // and the memory lives as long as the domain that calls this. Concurrent reads and writes
        // find one page or the other.
        unsafe {
            match device {
                Some((fd, index)) => rustix::mm::mmap(
                    at,
                    PAGE,
                    prot,
                    MapFlags::SHARED | MapFlags::FIXED,
                    fd.as_fd(),
                    index,
                ),
                None => {
                    rustix::mm::mmap_anonymous(at, PAGE, prot, MapFlags::PRIVATE | MapFlags::FIXED)
                }
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn pages_take_each_others_place() {
        let (pages, memory) = Pages::reserve(3).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 2 * PAGE]).unwrap();
        let device = OwnedFd::from(file);
        memory.write(0, &[1; 3 * PAGE]).unwrap();
        pages.put(1, Some((&device, PAGE as u64))).unwrap();
        let at = |page: u64| {
            let mut bytes = [0; 2];
            memory.read(page * PAGE as u64 + 100, &mut bytes).unwrap();
            bytes
        };
        assert_eq!([at(0), at(1), at(2)], [[1; 2], [7; 2], [1; 2]]);
        pages.put(1, None).unwrap();
        assert_eq!([at(0), at(1), at(2)], [[1; 2], [0; 2], [1; 2]]);
        assert!(pages.put(3, None).is_err(), "beyond the range");
    }
}
