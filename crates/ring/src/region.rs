//! The peer's memory, mapped.
//!
//! A region comes from a peer as numbers and a file. The numbers are checked here, once, so that
//! everything above can translate guest addresses without further thought: an address either lies
//! within a mapping, with so many bytes left in it, or nowhere. The file may still change its
//! length under us; `fault` sees to that.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::fs::{self, FileType};
use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;

use crate::copy::copy;
use crate::fault::{self, Watch, WatchError};
use crate::violation::Violation;

/// One region of a peer's memory, as vhost-user's memory table describes it.
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address of the region.
    pub guest_addr: u64,
    /// Where the peer itself (QEMU) has it mapped: the addresses of rings come in these terms.
    pub user_addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file.
    pub fd: OwnedFd,
}

/// Why a memory table could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// More regions than are allowed.
    #[error("{0} memory regions, at most {MAX_REGIONS} are allowed")]
    TooMany(usize),
    /// A region without a byte in it.
    #[error("memory region at {0:#x} is empty")]
    Empty(u64),
    /// A region whose end, in guest, user or file terms, is beyond 2^64.
    #[error("memory region at {0:#x} wraps around")]
    Wraps(u64),
    /// Two regions share guest addresses or user addresses.
    #[error("memory regions overlap at {0:#x}")]
    Overlap(u64),
    /// The file ends before the region does.
    #[error("memory region at {addr:#x} needs a file of {needed} bytes, it has {size}")]
    ShortFile {
        /// Guest address of the region.
        addr: u64,
        /// Bytes that the file must have.
        needed: u64,
        /// Bytes that it has.
        size: u64,
    },
    /// All regions together are more than one peer may have.
    #[error("memory regions of {0:#x} bytes in all, at most {MAX_BYTES:#x} are allowed")]
    TooBig(u64),
    /// The file's pages may come from somewhere that keeps us waiting.
    #[error(
        "memory region at {0:#x} is in no memory file: only memfd, tmpfs and hugetlbfs files are mapped"
    )]
    NotMemory(u64),
    /// The kernel refused.
    #[error("mapping memory: {0}")]
    Os(#[from] io::Error),
    /// This process has mapped as much peer memory as it can watch over.
    #[error("too many memory regions are mapped in this process")]
    Exhausted,
}

impl From<WatchError> for MapError {
    fn from(error: WatchError) -> Self {
        match error {
            WatchError::Exhausted => Self::Exhausted,
            WatchError::Os(error) => Self::Os(error),
        }
    }
}

/// Most regions of one memory: what QEMU's and Linux' vhost allow at most.
pub const MAX_REGIONS: usize = 509;

/// Most bytes of one memory, 1 TiB. A sparse file costs its owner nothing whatever its length, but
/// there are only 128 TiB of addresses in this process, for all peers.
pub const MAX_BYTES: u64 = 1 << 40;

/// Pages mapped into this process, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Present where a peer can truncate the file.
    watch: Option<Watch>,
    /// Whether somebody else mapped the pages, and unmaps them.
    adopted: bool,
}

/// Something that has to live as long as a memory: it is dropped when nothing of the memory is used
/// any more.
pub trait MappingOwner: std::fmt::Debug + Send + Sync {}

impl Mapping {
    fn anonymous(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place that the kernel chooses touches nothing that exists.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, PROT, flags)? };
        Ok(Self { base: not_null(base)?, len, watch: None, adopted: false })
    }

    fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, MapError> {
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

const PROT: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn not_null(base: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First the watch: once the pages are gone, others may take the addresses.
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

/// A range of guest addresses, and where it is mapped.
#[derive(Debug)]
struct Region {
    guest: u64,
    len: u64,
    user: u64,
    /// Host address of the first byte; `len` bytes are mapped from there.
    host: NonNull<u8>,
    mapping: Mapping,
}

impl Region {
    fn map(spec: &RegionSpec) -> Result<Self, MapError> {
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
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
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

/// Refuses what cannot be a memory table, before anything is mapped.
fn check(regions: &[RegionSpec]) -> Result<(), MapError> {
    if regions.len() > MAX_REGIONS {
        return Err(MapError::TooMany(regions.len()));
    }
    for region in regions {
        if region.len == 0 {
            return Err(MapError::Empty(region.guest_addr));
        }
        if [region.guest_addr, region.user_addr, region.offset]
            .iter()
            .any(|at| at.checked_add(region.len).is_none())
        {
            return Err(MapError::Wraps(region.guest_addr));
        }
    }
    let bytes = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.len));
    if bytes > MAX_BYTES {
        return Err(MapError::TooBig(bytes));
    }
    let mut ranges: Vec<(u64, u64)> = regions.iter().map(|r| (r.guest_addr, r.len)).collect();
    no_overlap(&mut ranges)?;
    ranges = regions.iter().map(|r| (r.user_addr, r.len)).collect();
    no_overlap(&mut ranges)
}

fn no_overlap(ranges: &mut [(u64, u64)]) -> Result<(), MapError> {
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| matches!(pair, [(a, len), (b, _)] if a + len > *b)) {
        Some(pair) => Err(MapError::Overlap(pair.last().map_or(0, |(addr, _)| *addr))),
        None => Ok(()),
    }
}

/// A peer's memory: shared with it, mapped as long as this lives.
#[derive(Debug)]
pub struct Memory {
    /// In the order of guest addresses.
    regions: Box<[Region]>,
    /// Dropped after the regions.
    owner: Option<Box<dyn MappingOwner>>,
}

// SAFETY: the mappings belong to the process, not to a thread. The bytes in them are reached
// through raw copies and atomics only, and are expected to change at any time anyway: whoever else
// changes them, the peer or another thread of ours, makes no difference.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps a memory table.
    ///
    /// # Errors
    /// Regions that overlap, wrap around, are empty or reach beyond their file; whatever the kernel
    /// says.
    pub fn map(regions: Vec<RegionSpec>) -> Result<Memory, MapError> {
        check(&regions)?;
        let mut regions = regions.iter().map(Region::map).collect::<Result<Vec<_>, _>>()?;
        regions.sort_unstable_by_key(|region| region.guest);
        Ok(Memory { regions: regions.into(), owner: None })
    }

    /// Private buffers of `len` bytes at guest address 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn anonymous(len: usize) -> Result<Memory, MapError> {
        let mapping = Mapping::anonymous(len)?;
        let region = Region { guest: 0, len: len as u64, user: 0, host: mapping.base, mapping };
        Ok(Memory { regions: Box::new([region]), owner: None })
    }

    /// Memory to share with somebody else, `len` bytes at guest (and user) address 0: a memfd that
    /// cannot shrink.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn shared(len: usize) -> Result<(Memory, OwnedFd), MapError> {
        use fs::{MemfdFlags, SealFlags};
        let make = || {
            let fd =
                fs::memfd_create(c"ringmain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            fs::ftruncate(&fd, len as u64)?;
            fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL)?;
            Ok::<_, rustix::io::Errno>((fd.try_clone(), fd))
        };
        let (copy, fd) = make().map_err(io::Error::from)?;
        let memory = Self::map(vec![RegionSpec {
            guest_addr: 0,
            user_addr: 0,
            len: len as u64,
            offset: 0,
            fd: copy?,
        }])?;
        Ok((memory, fd))
    }

    /// What the kernel shares through a descriptor of its own, such as the rings of a socket: `len`
    /// bytes from `offset` on, at guest address 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn of_kernel(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Memory, MapError> {
        let mapping = Mapping::shared(fd, offset, len)?;
        let region = Region { guest: 0, len: len as u64, user: 0, host: mapping.base, mapping };
        Ok(Memory { regions: Box::new([region]), owner: None })
    }

    /// Pages that somebody else mapped, `len` bytes at guest address 0. `owner` is dropped with
    /// the memory, and only then.
    ///
    /// # Safety
    /// `len` bytes at `base` must be mapped readable and writable until `owner` is dropped, must
    /// be used by nobody in this process but through this memory, and touching them must raise
    /// no signal.
    pub unsafe fn adopt(base: NonNull<u8>, len: usize, owner: Box<dyn MappingOwner>) -> Memory {
        let mapping = Mapping { base, len, watch: None, adopted: true };
        let region = Region { guest: 0, len: len as u64, user: 0, host: base, mapping };
        Memory { regions: Box::new([region]), owner: Some(owner) }
    }

    /// This memory with something that has to live as long as it does: pages of another domain,
    /// say, are in use until then.
    #[must_use]
    pub fn owned_by(mut self, owner: Box<dyn MappingOwner>) -> Memory {
        self.owner = Some(owner);
        self
    }

    /// Whether `len` bytes at host address `at` are mapped in one region of this memory, and can be
    /// handed to the kernel as a buffer. What another domain granted can't.
    pub(crate) fn holds(&self, at: NonNull<u8>, len: u64) -> bool {
        self.owner.is_none() && self.covers(at, len)
    }

    /// Whether `len` bytes at host address `at` are mapped in one region of this memory.
    pub(crate) fn covers(&self, at: NonNull<u8>, len: u64) -> bool {
        let at = at.as_ptr() as u64;
        self.regions.iter().any(|region| {
            let offset = at.wrapping_sub(region.host.as_ptr() as u64);
            offset < region.len && len <= region.len - offset
        })
    }

    /// The guest address of what the peer has mapped at `user_addr`.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user)?;
            (offset < region.len).then_some(region.guest + offset)
        })
    }

    /// Copies from guest address `addr` into `buf`.
    ///
    /// # Errors
    /// [`Violation::Outside`]; then nothing was copied.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Violation> {
        self.runs(addr, buf.len() as u64, |_, _| ())?;
        let mut to = buf;
        self.runs(addr, to.len() as u64, |from, len| {
            let (now, grant_copies) = std::mem::take(&mut to).split_at_mut(len as usize);
            // SAFETY: `len` bytes are mapped at `from`, and `now` is as long.
            unsafe { copy(from.as_ptr(), now.as_mut_ptr(), now.len()) };
            to = grant_copies;
        })
    }

    /// Copies `buf` to guest address `addr`.
    ///
    /// # Errors
    /// [`Violation::Outside`]; then nothing was copied.
    pub fn write(&self, addr: u64, buf: &[u8]) -> Result<(), Violation> {
        self.runs(addr, buf.len() as u64, |_, _| ())?;
        let mut from = buf;
        self.runs(addr, from.len() as u64, |to, len| {
            let (now, grant_copies) = from.split_at(len as usize);
            // SAFETY: `len` bytes are mapped at `to`, and `now` is as long.
            unsafe { copy(now.as_ptr(), to.as_ptr(), now.len()) };
            from = grant_copies;
        })
    }

    /// The two bytes at guest address `addr` as a number that both sides change at any time.
    ///
    /// # Errors
    /// [`Violation::RingOutside`] and [`Violation::Misaligned`], here and below.
    #[inline]
    pub fn atomic_u16(&self, addr: u64) -> Result<&AtomicU16, Violation> {
        let at = self.host(addr, 2, 2)?;
        // SAFETY: two aligned bytes are mapped there as long as `self` lives, and are reached
        // through atomics, raw copies and by the peer only.
        Ok(unsafe { AtomicU16::from_ptr(at.as_ptr().cast()) })
    }

    /// The four bytes at guest address `addr`.
    #[inline]
    pub fn atomic_u32(&self, addr: u64) -> Result<&AtomicU32, Violation> {
        let at = self.host(addr, 4, 4)?;
        // SAFETY: as above, with four bytes.
        Ok(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }

    /// The eight bytes at guest address `addr`.
    #[inline]
    pub fn atomic_u64(&self, addr: u64) -> Result<&AtomicU64, Violation> {
        let at = self.host(addr, 8, 8)?;
        // SAFETY: as above, with eight bytes.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// One `read(2)` from `fd` straight to guest address `addr`, at most `len` bytes; returns how
    /// many came.
    ///
    /// # Errors
    /// What `read(2)` says; `InvalidInput` when the bytes do not lie within one region.
    pub fn read_from_fd(&self, fd: BorrowedFd<'_>, addr: u64, len: usize) -> io::Result<usize> {
        let Some((to, left)) = self.run(addr, &mut 0).filter(|(_, left)| *left >= len as u64)
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                Violation::Outside { addr, len: len as u64 },
            ));
        };
        debug_assert!(left >= len as u64);
        // SAFETY: `len` bytes are mapped writable at `to`, for as long as `self` is borrowed.
        let got = unsafe { libc::read(fd.as_raw_fd(), to.as_ptr().cast(), len) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// One `readv(2)` from `fd`: first into `prefix`, and then straight to guest address `addr`, at
    /// most `len` bytes. Returns how many came in all.
    ///
    /// # Errors
    /// As for [`read_from_fd`](Self::read_from_fd).
    pub fn readv_from_fd(
        &self,
        fd: BorrowedFd<'_>,
        prefix: &mut [u8],
        addr: u64,
        len: usize,
    ) -> io::Result<usize> {
        let Some((to, _)) = self.run(addr, &mut 0).filter(|(_, left)| *left >= len as u64) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                Violation::Outside { addr, len: len as u64 },
            ));
        };
        let parts = [
            libc::iovec { iov_base: prefix.as_mut_ptr().cast(), iov_len: prefix.len() },
            libc::iovec { iov_base: to.as_ptr().cast(), iov_len: len },
        ];
        // SAFETY: both parts are writable for as many bytes as they say, as long as `self` and
        // `prefix` are borrowed.
        let got =
            unsafe { libc::readv(fd.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Whether the peer has truncated the file under us. All of the region then reads as zeros;
    /// what was in it is lost, and the port should be stopped. Cheap enough to be asked once a
    /// burst.
    #[inline]
    pub fn is_faulted(&self) -> bool {
        fault::any()
            && self
                .regions
                .iter()
                .filter_map(|region| region.mapping.watch.as_ref())
                .any(Watch::is_faulted)
    }

    /// What to say about a violation: after a truncation, rings read as zeros, and what they seem
    /// to say is not what went wrong.
    #[cold]
    pub(crate) fn root_cause(&self, violation: Violation) -> Violation {
        if self.is_faulted() { Violation::MemoryTruncated } else { violation }
    }

    /// The host address of `len` bytes at guest address `addr`, that must lie within one region and
    /// be aligned to `align`, in guest and in host terms.
    pub(crate) fn host(&self, addr: u64, len: u64, align: u64) -> Result<NonNull<u8>, Violation> {
        let outside = Violation::RingOutside { addr, len };
        let (host, left) = self.run(addr, &mut 0).ok_or(outside)?;
        if left < len {
            return Err(outside);
        }
        if !addr.is_multiple_of(align) || !(host.as_ptr() as u64).is_multiple_of(align) {
            return Err(Violation::Misaligned { addr, align });
        }
        Ok(host)
    }

    /// Where guest address `addr` is mapped, and how many bytes follow there. `hint` is the number
    /// of the region to try first, and then the one where it was.
    #[inline(always)]
    pub(crate) fn run(&self, addr: u64, hint: &mut usize) -> Option<(NonNull<u8>, u64)> {
        if let Some(region) = self.regions.get(*hint) {
            let offset = addr.wrapping_sub(region.guest);
            if offset < region.len {
                // SAFETY: less than the region's length.
                return Some((unsafe { region.host.add(offset as usize) }, region.len - offset));
            }
        }
        self.find(addr, hint)
    }

    #[cold]
    fn find(&self, addr: u64, hint: &mut usize) -> Option<(NonNull<u8>, u64)> {
        let index = self.regions.partition_point(|region| region.guest <= addr).checked_sub(1)?;
        let region = self.regions.get(index)?;
        let offset = addr - region.guest;
        if offset >= region.len {
            return None;
        }
        *hint = index;
        // SAFETY: less than the region's length.
        Some((unsafe { region.host.add(offset as usize) }, region.len - offset))
    }

    /// Calls `each` for every piece of host memory that `len` bytes at guest address `addr` lie in.
    fn runs(
        &self,
        addr: u64,
        len: u64,
        mut each: impl FnMut(NonNull<u8>, u64),
    ) -> Result<(), Violation> {
        let (mut hint, mut done) = (0, 0);
        while done < len {
            let at = addr.checked_add(done).and_then(|at| self.run(at, &mut hint));
            let (host, left) = at.ok_or(Violation::Outside { addr, len })?;
            let now = left.min(len - done);
            each(host, now);
            done += now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
