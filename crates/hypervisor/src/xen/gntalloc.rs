//! Pages of our own that are granted to ourselves, through `/dev/xen/gntalloc`
//! (linux/xen/gntalloc.h).
//!
//! For each mapped end of a copy `/dev/xen/gntdev` makes the kernel walk our page tables, which
//! costs a PV domain more than the copy of some hundred bytes does. A granted end it passes on to
//! Xen as it is.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;

use libc::c_ulong;
use ring::copies::OwnPages;

use super::{mapped, open_device, request};
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

/// `len` bytes that domain `own`, which is us, has granted to itself. `None` when the device is not
/// there or gives no more: one can do without.
pub fn own_pages(own: DomId, len: usize) -> Option<OwnPages> {
    let count = len.div_ceil(PAGE);
    if !(1..=MAX_PAGES).contains(&count) {
        return None;
    }
    let device = open_device("/dev/xen/gntalloc").ok()?;
    let (domain, flags) = (own.0, WRITABLE);
    let mut alloc =
        AllocGref { domain, flags, count: count as u32, index: 0, references: [0; MAX_PAGES] };
    // SAFETY: the request reads the first fields, and writes the index and as many references as
    // `count` says, for which there is room.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), ALLOC_GREF, ptr::from_mut(&mut alloc)) };
    if done < 0 {
        return None;
    }
    let bytes = count * PAGE;
    // The device takes the pages back when it is closed.
    let keeper = Arc::new(device);
    let memory = mapped::map(keeper.as_fd(), alloc.index, bytes, Arc::clone(&keeper)).ok()?;
    let references = alloc.references[..count].iter().copied().map(GrantRef).collect();
    Some(OwnPages { memory, len: bytes, references })
}
