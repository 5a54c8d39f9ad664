//! The peer's memory, mapped.
//!
//! A region comes from a peer as numbers and a file. The numbers are checked here, once, so that
//! all callers can translate guest addresses without further checks: an address either lies within
//! a mapping, with a known number of bytes left in it, or nowhere. The peer may still change the
//! length of the file, which `fault` handles.

mod account;
mod file_watch;
mod mapping;
mod memory_faults;
mod prefetch;
mod read_fd;
mod table;
mod write_log;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use rustix::fs;

use crate::copy::copy;

use crate::grant::PAGE;
use crate::violation::Violation;

use account::Charged;
use mapping::{Mapping, Region};
use memory_faults::ExpectedFaults;
use table::check;

pub use account::MemoryAccount;
pub use table::{MAX_BYTES, MAX_REGIONS, MapError, RegionSpec};
pub use write_log::{LOG_PAGE, MAX_LOG, WriteLog};

/// A value that has to live as long as a memory, and is dropped when the memory is no longer used.
pub trait MappingOwner: std::fmt::Debug + Send + Sync {}

/// A peer's memory: shared with it, mapped as long as this lives.
#[derive(Debug)]
pub struct Memory {
    /// In the order of guest addresses. Shared with the same memory under another log.
    regions: Arc<[Region]>,
    /// Dropped after the regions.
    owner: Option<Arc<dyn MappingOwner>>,
    /// Page faults that first use of its pages explains, and that have not been seen yet.
    expected: Arc<ExpectedFaults>,
    /// The account that is charged for pages that this process allocates in it. Dropped after the
    /// regions.
    charged: Option<Arc<Charged>>,
    /// The log in which pages that this process writes are marked.
    log: Option<Arc<WriteLog>>,
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
    /// Regions that overlap, wrap around, are empty or reach beyond their file; any error
    /// of the kernel.
    pub fn map(regions: Vec<RegionSpec>) -> Result<Memory, MapError> {
        check(&regions)?;
        let mut regions = regions.iter().map(Region::map).collect::<Result<Vec<_>, _>>()?;
        regions.sort_unstable_by_key(|region| region.guest);
        Ok(Memory::of(regions.into(), None))
    }

    /// Maps a memory table, and charges `account` for the pages of it that this process allocates.
    ///
    /// # Errors
    /// As for [`map`](Self::map); when the peer has exceeded the limit of its account, or has too
    /// many regions mapped; when no descriptor is left.
    pub fn map_charged(
        regions: Vec<RegionSpec>,
        account: Arc<MemoryAccount>,
    ) -> Result<Memory, MapError> {
        let mut charged = account.reserve(regions.len())?;
        let mut fds = Vec::with_capacity(regions.len());
        for region in &regions {
            fds.push(region.fd.try_clone()?);
        }
        let mut memory = Memory::map(regions)?;
        charged.charge(fds.into_iter())?;
        memory.charged = Some(Arc::new(charged));
        Ok(memory)
    }

    /// Private buffers of `len` bytes at guest address 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn anonymous(len: usize) -> Result<Memory, MapError> {
        let mapping = Mapping::anonymous(len)?;
        let region = Region { guest: 0, len: len as u64, user: 0, host: mapping.base, mapping };
        Ok(Memory::of(Box::new([region]), None))
    }

    /// Memory to share with another process, `len` bytes at guest (and user) address 0: a memfd
    /// that cannot shrink.
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

    /// Memory that the kernel shares through a descriptor of its own, such as the rings of a
    /// socket: `len` bytes from `offset` on, at guest address 0.
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
        Ok(Memory::of(Box::new([region]), None))
    }

    /// Pages that were mapped elsewhere, `len` bytes at guest address 0. `owner` is dropped with
    /// the memory, and not before.
    ///
    /// # Safety
    /// `len` bytes at `base` must be mapped readable and writable until `owner` is dropped, must
    /// be used by nobody in this process but through this memory, and touching them must raise
    /// no signal.
    pub unsafe fn adopt(base: NonNull<u8>, len: usize, owner: Box<dyn MappingOwner>) -> Memory {
        let mapping = Mapping { base, len, watch: None, adopted: true };
        let region = Region { guest: 0, len: len as u64, user: 0, host: base, mapping };
        Memory::of(Box::new([region]), Some(owner))
    }

    /// This memory with a value that has to live as long as it does, such as pages of another
    /// domain.
    #[must_use]
    pub fn owned_by(mut self, owner: Box<dyn MappingOwner>) -> Memory {
        self.owner = Some(owner.into());
        self
    }

    /// Whether `len` bytes at host address `at` are mapped in one region of this memory, and can be
    /// handed to the kernel as a buffer. Pages that another domain granted cannot.
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

    /// The guest address of the byte that the peer has mapped at `user_addr`.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user)?;
            (offset < region.len).then(|| region.guest + offset)
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
            let (now, rest) = std::mem::take(&mut to).split_at_mut(len as usize);
            // SAFETY: `len` bytes are mapped at `from`, and `now` is as long.
            unsafe { copy(from.as_ptr(), now.as_mut_ptr(), now.len()) };
            to = rest;
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
            let (now, rest) = from.split_at(len as usize);
            // SAFETY: `len` bytes are mapped at `to`, and `now` is as long.
            unsafe { copy(now.as_ptr(), to.as_ptr(), now.len()) };
            from = rest;
        })?;
        self.log(addr, buf.len() as u64);
        Ok(())
    }

    /// Copies `len` bytes from guest address `addr` to address `to` of another memory. The bytes
    /// must lie in one region of each.
    ///
    /// # Errors
    /// [`Violation::Outside`]; then nothing was copied.
    pub fn copy_to(&self, addr: u64, other: &Memory, to: u64, len: u32) -> Result<(), Violation> {
        let place = |memory: &Memory, addr: u64| {
            let found = memory.run(addr, &mut 0).filter(|(_, run)| *run >= len.into());
            found.map(|(at, _)| at).ok_or(Violation::Outside { addr, len: len.into() })
        };
        let (source, target) = (place(self, addr)?, place(other, to)?);
        // SAFETY: `len` bytes are mapped at both places.
        unsafe { copy(source.as_ptr(), target.as_ptr(), len as usize) };
        other.log(to, len.into());
        Ok(())
    }

    /// The byte at guest address `addr`. Stores through the reference, here and below, are not
    /// logged.
    ///
    /// # Errors
    /// [`Violation::RingOutside`].
    #[inline]
    pub fn atomic_u8(&self, addr: u64) -> Result<&AtomicU8, Violation> {
        let at = self.host(addr, 1, 1)?;
        // SAFETY: a byte is mapped there as long as `self` lives, and is reached through atomics,
        // raw copies and by the peer only.
        Ok(unsafe { AtomicU8::from_ptr(at.as_ptr()) })
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

    /// A memory of these regions.
    fn of(regions: Box<[Region]>, owner: Option<Box<dyn MappingOwner>>) -> Memory {
        let pages: u64 = regions.iter().map(|region| region.len.div_ceil(PAGE as u64)).sum();
        Memory {
            regions: regions.into(),
            owner: owner.map(Into::into),
            expected: Arc::new(ExpectedFaults::of(pages)),
            charged: None,
            log: None,
        }
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

    /// The window of region number `hint`, which [`run`](Self::run) has set; empty if there is
    /// none.
    #[inline]
    pub(crate) fn window(&self, hint: usize) -> Window {
        self.regions.get(hint).map_or(Window::EMPTY, |region| Window {
            guest: region.guest,
            len: region.len,
            host: region.host,
        })
    }

    /// The host address of guest address `addr`, and how many bytes follow there. `hint` is the
    /// number of the region to try first, and is set to the one where the address was found.
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

/// One region of a memory, which a loop over many addresses keeps in registers, since nearly all of
/// them lie in the same region. Valid as long as the memory is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    guest: u64,
    len: u64,
    host: NonNull<u8>,
}

impl Window {
    const EMPTY: Window = Window { guest: 0, len: 0, host: NonNull::dangling() };

    /// Calls `found` with the place of the `len` bytes at guest address `addr`, if all of them lie
    /// in the region; returns whether they do and `found` returned true.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        addr: u64,
        len: u32,
        found: impl FnOnce(NonNull<u8>) -> bool,
    ) -> bool {
        let offset = addr.wrapping_sub(self.guest);
        // SAFETY: less than the region's length, as checked first.
        offset < self.len
            && self.len - offset >= u64::from(len)
            && found(unsafe { self.host.add(offset as usize) })
    }
}

#[cfg(test)]
mod tests;
