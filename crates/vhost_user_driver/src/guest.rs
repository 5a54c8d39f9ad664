//! The memory of a guest.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ring::Memory;
use vhost::VhostUserMemoryRegionInfo;

use crate::error::DriverError;

/// The front-end's address of the guest's memory, as given to the back-end. The address is
/// deliberately neither the real nor the guest address: a back-end that confuses its address spaces
/// fails at once.
pub(crate) const USER_BASE: u64 = 0x5000_0000_0000;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// The memory of a guest: one shared file, mapped here and shown to the back-end as one or more
/// regions.
pub struct Guest {
    memory: Arc<Memory>,
    file: OwnedFd,
    len: u64,
    regions: u64,
    next: u64,
}

impl Guest {
    /// A guest with `len` bytes of zeroed memory from guest address 0 on, shown as `regions`
    /// regions (1..=8, adjacent).
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(len: u64, regions: u64) -> Result<Self, DriverError> {
        let regions = regions.clamp(1, 8);
        let len = len.next_multiple_of(PAGE * regions);
        let (memory, file) = Memory::shared(len as usize)?;
        Ok(Self { memory: Arc::new(memory), file, len, regions, next: PAGE })
    }

    /// All of it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The file that holds it.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Sets `len` bytes aside; returns their guest address, a multiple of `align`, a power of two.
    /// They may straddle regions. Nothing is ever given back.
    ///
    /// # Errors
    /// When memory has run out.
    pub fn alloc(&mut self, len: u64, align: u64) -> Result<u64, DriverError> {
        let at = self.next.next_multiple_of(align);
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        self.next =
            end.ok_or(DriverError::Full { wanted: len, left: self.len.saturating_sub(at) })?;
        Ok(at)
    }

    /// As [`alloc`](Self::alloc), within one region: parts of a ring must not straddle.
    ///
    /// # Errors
    /// When memory has run out.
    pub fn alloc_in_region(&mut self, len: u64, align: u64) -> Result<u64, DriverError> {
        let each = self.len / self.regions;
        let at = self.next.next_multiple_of(align);
        if at / each != (at + len.max(1) - 1) / each {
            self.next = (at / each + 1) * each;
        }
        self.alloc(len, align)
    }

    /// The regions as given to the back-end.
    pub fn table(&self) -> Vec<VhostUserMemoryRegionInfo> {
        let each = self.len / self.regions;
        let region = |i| VhostUserMemoryRegionInfo {
            guest_phys_addr: i * each,
            memory_size: each,
            userspace_addr: USER_BASE + i * each,
            mmap_offset: i * each,
            mmap_handle: self.file.as_raw_fd(),
        };
        (0..self.regions).map(region).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_set_aside_once_and_within_regions_where_asked() {
        let mut guest = Guest::new(16 * PAGE, 4).unwrap();
        let region = |addr: u64| addr / (4 * PAGE);
        let first = guest.alloc(3 * PAGE - 100, 64).unwrap();
        assert!(first >= PAGE, "address 0 is never a buffer");
        let whole = guest.alloc_in_region(2 * PAGE, 64).unwrap();
        assert_eq!(region(whole), region(whole + 2 * PAGE - 1));
        assert!(whole >= first + 3 * PAGE - 100);
        let across = guest.alloc(5 * PAGE, 64).unwrap();
        assert_ne!(region(across), region(across + 5 * PAGE - 1));
        assert!(matches!(guest.alloc(16 * PAGE, 1), Err(DriverError::Full { .. })));
        assert!(guest.alloc(1, 1).is_ok(), "a refusal takes nothing");
    }

    #[test]
    fn the_table_covers_memory_once_and_nowhere_at_its_own_address() {
        let guest = Guest::new(10 * PAGE, 3).unwrap();
        let table = guest.table();
        assert_eq!(table.len(), 3);
        let mut next = 0;
        for region in &table {
            assert_eq!((region.guest_phys_addr, region.mmap_offset), (next, next));
            assert_eq!(region.userspace_addr, USER_BASE + next);
            next += region.memory_size;
        }
        assert_eq!(next, guest.size());
    }
}
