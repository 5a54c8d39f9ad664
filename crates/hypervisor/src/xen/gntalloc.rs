//! Pages of our own that are granted to ourselves, through `/dev/xen/gntalloc` (linux/xen/gntalloc.h).
//!
//! For each mapped end of a copy `/dev/xen/gntdev` makes the kernel walk our page tables, which costs a PV domain more than
//! the copy of some hundred bytes does. A granted end it passes on to Xen as it is.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use libc::c_ulong;
use ring::Memory;
use ring::copies::OwnPages;
use ring::region::Keeper;
use rustix::mm::{MapFlags, ProtFlags};

use super::{open_device, request};
use crate::{DomId, GrantRef, PAGE};

const ALLOC_GREF: c_ulong = request(b'G', 5, 24);
const WRITABLE: u16 = 1;
/// Most pages at once: as much as any stage has.
const MAX_PAGES: usize = 16;

/// `struct ioctl_gntalloc_alloc_gref`, with room for more references than its one.
#[repr(C)]
struct AllocGref {
    domain: u16,
    flags: u16,
    count: u32,
    /// Out: where in the device the pages are.
    index: u64,
    /// Out.
    references: [u32; MAX_PAGES],
}

/// `len` bytes that domain `own`, which is us, has granted to itself. `None` when the device is not there or gives no more:
/// one can do without.
pub fn own_pages(own: DomId, len: usize) -> Option<OwnPages> {
    let count = len.div_ceil(PAGE);
    if !(1..=MAX_PAGES).contains(&count) {
        return None;
    }
    let device = open_device("/dev/xen/gntalloc").ok()?;
    let (domain, flags) = (own.0, WRITABLE);
    let mut alloc = AllocGref { domain, flags, count: count as u32, index: 0, references: [0; MAX_PAGES] };
    // SAFETY: the request reads the first fields, and writes the index and as many references as `count` says, for which
    // there is room.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), ALLOC_GREF, ptr::from_mut(&mut alloc)) };
    if done < 0 {
        return None;
    }
    let bytes = count * PAGE;
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
    let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, prot, flags, device.as_fd(), alloc.index) };
    let base = NonNull::new(mapped.ok()?.cast())?;
    let keeper = Box::new(Mapped { base, len: bytes, device });
    // SAFETY: `bytes` bytes were just mapped there for reading and writing, and are until `keeper` unmaps them. They are
    // the kernel's own pages, no file's.
    let memory = unsafe { Memory::adopt(base, bytes, keeper) };
    let references = alloc.references[..count].iter().copied().map(GrantRef).collect();
    Some(OwnPages { memory, len: bytes, references })
}

/// Pages that are mapped. The device takes them back when it is closed.
#[derive(Debug)]
struct Mapped {
    base: NonNull<u8>,
    len: usize,
    /// Dropped after they are unmapped.
    #[expect(dead_code, reason = "kept to be dropped")]
    device: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread; the pointer is used for nothing but to unmap it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Keeper for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and the memory that used it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping");
    }
}
