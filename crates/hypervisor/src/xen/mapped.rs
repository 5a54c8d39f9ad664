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

/// Maps the `len` bytes that `device` has ready at `index`, for reading and writing. `source` is
/// what the device has them ready by: it is dropped when nobody uses the memory any more, and after
/// the pages are unmapped.
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
    // unmaps them. Nobody else knows of them. They are no file's, which somebody could cut off:
    // they are the kernel's own, or another domain's, and Xen keeps the pages of a domain that
    // is gone until they are unmapped.
    Ok(unsafe { Memory::adopt(base, len, keeper) })
}

/// Maps one page as [`map`] does, to be read or, if `write`, to be written, too: a device of grants
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
    // SAFETY: as above, for writing only if it says so.
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
