//! Requests of `/dev/xen/gntalloc` (linux/include/uapi/xen/gntalloc.h): pages of the kernel that
//! this domain grants. A request returns the index at which they can be mapped from the device.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::c_ulong;

use super::request;
use crate::{DomId, GrantRef};

/// `IOCTL_GNTALLOC_ALLOC_GREF`.
const ALLOC_GREF: c_ulong = request(b'G', 5, 24);
/// `IOCTL_GNTALLOC_DEALLOC_GREF`.
const DEALLOC_GREF: c_ulong = request(b'G', 6, 16);
/// `GNTALLOC_FLAG_WRITABLE`.
const WRITABLE: u16 = 1;
/// Most pages of one request here: as many as any stage of copies has.
pub const MAX_PAGES: usize = 16;

/// `struct ioctl_gntalloc_alloc_gref`, with room for [`MAX_PAGES`] references.
#[repr(C)]
struct AllocGref {
    domain: u16,
    flags: u16,
    count: u32,
    /// Out: the offset in the device at which the pages can be mapped, in bytes.
    index: u64,
    /// Out.
    references: [u32; MAX_PAGES],
}

/// `struct ioctl_gntalloc_dealloc_gref`.
#[repr(C)]
struct DeallocGref {
    index: u64,
    count: u32,
}

/// Granted pages that can be mapped from the device.
pub struct Allocated {
    /// Their offset in the device, in bytes.
    pub index: u64,
    /// The grant of each.
    pub references: Vec<GrantRef>,
}

/// Makes the kernel allocate `count` pages, at most [`MAX_PAGES`], and grant them to domain `to`.
pub fn alloc(
    device: BorrowedFd<'_>,
    to: DomId,
    count: usize,
    writable: bool,
) -> io::Result<Allocated> {
    if !(1..=MAX_PAGES).contains(&count) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = if writable { WRITABLE } else { 0 };
    let mut alloc = AllocGref {
        domain: to.0,
        flags,
        count: count as u32,
        index: 0,
        references: [0; MAX_PAGES],
    };
    // SAFETY: the request reads the first fields, and writes the index and as many references as
    // `count` says, for which there is room.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), ALLOC_GREF, ptr::from_mut(&mut alloc)) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let references = alloc.references.iter().take(count).copied().map(GrantRef).collect();
    Ok(Allocated { index: alloc.index, references })
}

/// Gives one page back. The kernel revokes its grant once it is no longer in use.
pub fn dealloc(device: BorrowedFd<'_>, index: u64) {
    let mut dealloc = DeallocGref { index, count: 1 };
    // SAFETY: the request reads a structure of this size. It fails for a page that was not
    // allocated.
    unsafe { libc::ioctl(device.as_raw_fd(), DEALLOC_GREF, ptr::from_mut(&mut dealloc)) };
}
