//! Pages that this domain has granted to itself, through `/dev/xen/gntalloc`.
//!
//! For each mapped end of a copy `/dev/xen/gntdev` makes the kernel walk this process's page tables,
//! which costs a PV domain more than the copy of some hundred bytes does. A granted end is passed to
//! Xen as it is.

use std::os::fd::AsFd;
use std::sync::Arc;

use ring::copies::OwnPages;

use super::{gntalloc, mapped, open_device};
use crate::{DomId, PAGE};

/// `len` bytes that domain `own`, in which this process runs, has granted to itself. `None` when the
/// device does not exist or has no more pages: copies work without them.
pub fn own_pages(own: DomId, len: usize) -> Option<OwnPages> {
    let count = len.div_ceil(PAGE);
    let device = open_device("/dev/xen/gntalloc").ok()?;
    let allocated = gntalloc::alloc(device.as_fd(), own, count, true).ok()?;
    let len = count * PAGE;
    // The device takes the pages back when it is closed.
    let keeper = Arc::new(device);
    let memory = mapped::map(keeper.as_fd(), allocated.index, len, Arc::clone(&keeper)).ok()?;
    Some(OwnPages { memory, len, references: allocated.references })
}
