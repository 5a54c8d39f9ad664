//! One mapped region.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{self, FileType};
use rustix::mm::{MapFlags, ProtFlags};

use super::table::{MapError, RegionSpec};
use crate::fault::Watch;

/// Pages mapped into this process, unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// Present where a peer can truncate the file.
    pub(super) watch: Option<Watch>,
    /// Whether the pages were mapped elsewhere, and are unmapped there.
    pub(super) adopted: bool,
}

impl Mapping {
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, PROT, flags)? };
        Ok(Self { base: not_null(base)?, len, watch: None, adopted: false })
    }

    pub(super) fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, MapError> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: as above. That the file's bytes change at any time is what the whole crate is
        // prepared for.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, PROT, flags, fd, offset)
                .map_err(io::Error::from)?
        };
        let mut mapping = Self { base: not_null(base)?, len, watch: None, adopted: false };
        mapping.watch = Some(Watch::new(base as usize, len)?);
        Ok(mapping)
    }
}

pub(super) const PROT: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn not_null(base: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The watch ends first: once the pages are unmapped, another mapping may take the
        // addresses.
        self.watch = None;
        if self.adopted {
            return;
        }
        // SAFETY: exactly the pages that were mapped, and nobody uses them: a `Memory` owns its
        // mappings, and all pointers into it are held beside an `Arc` of it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping");
    }
}

/// A range of guest addresses, and its mapping.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) guest: u64,
    pub(super) len: u64,
    pub(super) user: u64,
    /// Host address of the first byte; `len` bytes are mapped from there.
    pub(super) host: NonNull<u8>,
    pub(super) mapping: Mapping,
}

impl Region {
    pub(super) fn map(spec: &RegionSpec) -> Result<Self, MapError> {
        let page = page_size(spec.fd.as_fd())?.ok_or(MapError::NotMemory(spec.guest_addr))?;
        let needed = spec.offset.saturating_add(spec.len);
        let size = fs::fstat(&spec.fd).map_err(io::Error::from)?.st_size as u64;
        if size < needed {
            return Err(MapError::ShortFile { addr: spec.guest_addr, needed, size });
        }
        // Offsets of mappings are multiples of the page, and so must lengths be for huge pages.
        let lead = spec.offset % page;
        let len = (lead + spec.len)
            .checked_next_multiple_of(page)
            .and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or(MapError::Wraps(spec.guest_addr))?;
        let mapping = Mapping::shared(spec.fd.as_fd(), spec.offset - lead, len)?;
        // SAFETY: `lead` is less than the mapping's length.
        let host = unsafe { mapping.base.add(lead as usize) };
        Ok(Self { guest: spec.guest_addr, len: spec.len, user: spec.user_addr, host, mapping })
    }
}

/// The page size of the file behind `fd`, if its pages are the kernel's own. Those of any other
/// file come from a disk, a network or, with FUSE, from a process that may be the peer itself:
/// touching one could take for ever.
fn page_size(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    const TMPFS_MAGIC: u64 = libc::TMPFS_MAGIC as u64;
    const HUGETLBFS_MAGIC: u64 = libc::HUGETLBFS_MAGIC as u64;
    // Devices lie in a tmpfs, too.
    if FileType::from_raw_mode(fs::fstat(fd)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let stat = fs::fstatfs(fd)?;
    Ok(match stat.f_type as u64 & 0xffff_ffff {
        TMPFS_MAGIC => Some(rustix::param::page_size() as u64),
        HUGETLBFS_MAGIC => Some(stat.f_bsize as u64),
        _ => None,
    })
}
