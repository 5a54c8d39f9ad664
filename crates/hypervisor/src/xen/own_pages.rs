//! Pages that this domain has granted to itself, through `/dev/xen/gntalloc`.
//!
//! For each mapped end of a copy `/dev/xen/gntdev` makes the kernel walk this process's page
//! tables, which costs a PV domain more than the copy of some hundred bytes does. A granted end is
//! passed to Xen unchanged.

use std::os::fd::{AsFd, OwnedFd};

use ring::copies::OwnPages;

use super::{gntalloc, mapped};
use crate::{DomId, PAGE};

/// `len` bytes that domain `own`, in which this process runs, has granted to itself, from `device`.
/// `None` when the device has no more pages: copies work without them.
pub fn own_pages(device: &OwnedFd, own: DomId, len: usize) -> Option<OwnPages> {
    let count = len.div_ceil(PAGE);
    let allocated = gntalloc::alloc(device.as_fd(), own, count, true).ok()?;
    let len = count * PAGE;
    let memory = mapped::map(device.as_fd(), allocated.index, len, ());
    // Pages that are deallocated while they are mapped are freed when they are unmapped.
    let indices = (0..count).map(|page| allocated.index + (page * PAGE) as u64);
    indices.for_each(|index| gntalloc::dealloc(device.as_fd(), index));
    Some(OwnPages { memory: memory.ok()?, len, references: allocated.references })
}
