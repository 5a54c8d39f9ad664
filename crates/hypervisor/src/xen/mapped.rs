//! Pages that are mapped from one of Xen's devices.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use ring::region::MappingOwner;
use ring::{Memory, Page};
use rustix::mm::{MapFlags, ProtFlags};

use crate::PAGE;

/// Pages that are mapped.
#[derive(Debug)]
struct Mapped<K> {
    base: NonNull<u8>,
    len: usize,
    /// Dropped after they are unmapped.
    #[expect(dead_code, reason = "kept to be dropped")]
    source: K,
}

// SAFETY: the mapping belongs to the process, not to a thread; the pointer is used for nothing but
// to unmap it.
unsafe impl<K: Send> Send for Mapped<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for Mapped<K> {}

impl<K: Send + Sync + std::fmt::Debug> MappingOwner for Mapped<K> {}

impl<K> Drop for Mapped<K> {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and the memory that used it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping");
    }
}

/// Maps the `len` bytes that `device` has ready at `index`, for reading and writing. `source` keeps
/// the pages available in the device. It is dropped once the memory is no longer used and the pages
/// are unmapped.
///
/// # Errors
/// The kernel's error.
pub fn map<K>(
    device: BorrowedFd<'_>,
    index: u64,
    len: usize,
    source: K,
) -> rustix::io::Result<Memory>
where
    K: Send + Sync + std::fmt::Debug + 'static,
{
    let base = place(device, index, len, true)?;
    let keeper = Box::new(Mapped { base, len, source });
    // SAFETY: `len` bytes were just mapped there for reading and writing, and are until `keeper`
    // unmaps them. No other code knows them. They belong to no file that could be truncated: they
    // are the kernel's own, or another domain's, and Xen keeps the pages of a destroyed domain
    // until they are unmapped.
    Ok(unsafe { Memory::adopt(base, len, keeper) })
}

/// Maps one page as [`map`] does, for reading or, if `write`, also for writing. The grant device
/// asks Xen for no more.
///
/// # Errors
/// The kernel's error.
pub fn map_page<K>(
    device: BorrowedFd<'_>,
    index: u64,
    write: bool,
    source: K,
) -> rustix::io::Result<Page>
where
    K: Send + Sync + std::fmt::Debug + 'static,
{
    let base = place(device, index, PAGE, write)?;
    let keeper = Box::new(Mapped { base, len: PAGE, source });
    // SAFETY: as above, writable only if `write` is set.
    Ok(unsafe { Page::adopt(base, write, keeper) })
}

fn place(
    device: BorrowedFd<'_>,
    index: u64,
    len: usize,
    write: bool,
) -> rustix::io::Result<NonNull<u8>> {
    let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
    let base =
        unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, device, index) }?;
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}
