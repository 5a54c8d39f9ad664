//! The three parts of a split virtqueue in mapped memory (virtio 1.2, 2.7).
//!
//! Fields are little endian and lie at fixed offsets. The driver owns the descriptor table and the
//! available ring, the device owns the used ring; either side may change any byte at any time, so
//! each is read through an atomic or a volatile load, once.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU16;

use super::{
    AVAIL_ALIGN, AVAIL_ENTRY, DESC_ALIGN, DESC_SIZE, Desc, RING_ENTRIES, RING_INDEX, USED_ALIGN,
    USED_ENTRY, avail_len, desc_len, used_len,
};
use crate::copy::load16;
use crate::device::RingConfig;
use crate::region::Memory;
use crate::violation::Violation;

/// Where the three parts of the ring are mapped. Each part lies wholly in one mapping, whose memory
/// the owner keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Areas {
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    size: u16,
}

impl Areas {
    pub(super) fn find(mem: &Memory, config: &RingConfig) -> Result<Self, Violation> {
        let size = config.size;
        Ok(Self {
            desc: mem.host(config.desc, desc_len(size), DESC_ALIGN)?,
            avail: mem.host(config.driver, avail_len(size), AVAIL_ALIGN)?,
            used: mem.host(config.device, used_len(size), USED_ALIGN)?,
            size,
        })
    }

    #[inline]
    pub(super) fn avail_flags(&self) -> &AtomicU16 {
        // SAFETY: the first two bytes of the area, which is mapped and aligned to 2.
        unsafe { AtomicU16::from_ptr(self.avail.as_ptr().cast()) }
    }

    #[inline]
    pub(super) fn avail_index(&self) -> &AtomicU16 {
        // SAFETY: as above, two bytes on.
        unsafe { AtomicU16::from_ptr(self.avail.as_ptr().add(RING_INDEX as usize).cast()) }
    }

    /// The used event: the last two bytes of the available ring.
    #[inline]
    pub(super) fn used_event(&self) -> &AtomicU16 {
        // SAFETY: `avail_len` bytes are mapped; an even offset.
        unsafe {
            AtomicU16::from_ptr(self.avail.as_ptr().add(avail_len(self.size) as usize - 2).cast())
        }
    }

    #[inline]
    pub(super) fn used_flags(&self) -> &AtomicU16 {
        // SAFETY: the first two bytes of the area, which is mapped and aligned to 4.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().cast()) }
    }

    #[inline]
    pub(super) fn used_index(&self) -> &AtomicU16 {
        // SAFETY: as above, two bytes on.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().add(RING_INDEX as usize).cast()) }
    }

    /// The available event: the last two bytes of the used ring.
    #[inline]
    pub(super) fn avail_event(&self) -> &AtomicU16 {
        // SAFETY: `used_len` bytes are mapped; an even offset.
        unsafe {
            AtomicU16::from_ptr(self.used.as_ptr().add(used_len(self.size) as usize - 2).cast())
        }
    }

    /// The bits of a number below the size, which is a power of two.
    #[inline(always)]
    pub(super) fn mask(&self) -> u16 {
        self.size - 1
    }

    /// The slot of position `at`, in the available and the used ring.
    #[inline(always)]
    pub(super) fn slot(&self, at: u16) -> usize {
        usize::from(at & self.mask())
    }

    /// Head index in slot `slot` of the available ring, as the driver wrote it, unchecked.
    #[inline(always)]
    pub(super) fn head(&self, slot: usize) -> u16 {
        debug_assert!(slot < usize::from(self.size));
        let offset = RING_ENTRIES as usize + AVAIL_ENTRY as usize * slot;
        // SAFETY: `slot` is below the size, since it was masked with it; so within the area, and
        // even.
        unsafe { self.avail.as_ptr().add(offset).cast::<u16>().read_volatile() }
    }

    /// Address of descriptor `index`, which is below the size.
    #[inline(always)]
    pub(super) fn desc_at(&self, index: u16) -> *const u8 {
        debug_assert!(index < self.size);
        // SAFETY: within the area.
        unsafe { self.desc.as_ptr().add(DESC_SIZE as usize * usize::from(index)) }
    }

    /// Copies descriptor `index`, which is below the size, out of the table.
    #[inline(always)]
    pub(super) fn desc(&self, index: u16) -> Desc {
        // SAFETY: a descriptor within the area.
        desc_of(unsafe { load16(self.desc_at(index)) })
    }

    /// Writes the used element in slot `slot`, below the size: chain `head`, `len` bytes written
    /// (virtio 1.2, 2.7.8: le32 id, le32 len).
    #[inline(always)]
    pub(super) fn write_used(&self, slot: usize, head: u16, len: u32) {
        debug_assert!(slot < usize::from(self.size));
        let element = u64::from(head) | u64::from(len) << 32;
        let offset = RING_ENTRIES as usize + USED_ENTRY as usize * slot;
        // SAFETY: the slot is below the size, since it was masked with it; so within the area. The
        // driver does not read it before the index is published.
        unsafe { self.used.as_ptr().add(offset).cast::<u64>().write_unaligned(element) }
    }

    /// Address of the used element in slot `slot`.
    #[inline(always)]
    pub(super) fn used_at(&self, slot: usize) -> *const u8 {
        self.used.as_ptr().wrapping_add(RING_ENTRIES as usize + USED_ENTRY as usize * slot)
    }
}

/// A descriptor, from the two words that it was copied as.
#[inline(always)]
pub(super) fn desc_of([addr, rest]: [u64; 2]) -> Desc {
    Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
}
