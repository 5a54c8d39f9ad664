//! The three parts of a packed virtqueue in mapped memory (virtio 1.2, 2.8).
//!
//! Fields are little endian. Both sides write the descriptor ring; the driver owns the driver event
//! suppression structure, the device the other. Either side may change any byte at any time, so
//! each is read through an atomic or a volatile load, once.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::{DESC_ALIGN, DESC_SIZE, Desc, EVENT_ALIGN, EVENT_SIZE, desc_len};
use crate::device::RingConfig;
use crate::region::Memory;
use crate::violation::Violation;

/// Where the three parts of the ring are mapped. Each part lies wholly in one mapping, whose memory
/// the owner keeps.
#[derive(Debug)]
pub(super) struct Areas {
    desc: NonNull<u8>,
    driver: NonNull<u8>,
    device: NonNull<u8>,
    size: u16,
}

impl Areas {
    pub(super) fn find(mem: &Memory, config: &RingConfig) -> Result<Self, Violation> {
        Ok(Self {
            desc: mem.host(config.desc, desc_len(config.size), DESC_ALIGN)?,
            driver: mem.host(config.driver, EVENT_SIZE, EVENT_ALIGN)?,
            device: mem.host(config.device, EVENT_SIZE, EVENT_ALIGN)?,
            size: config.size,
        })
    }

    /// How the driver wants to be interrupted.
    #[inline]
    pub(super) fn driver_event(&self) -> &AtomicU32 {
        // SAFETY: four bytes are mapped, and aligned.
        unsafe { AtomicU32::from_ptr(self.driver.as_ptr().cast()) }
    }

    /// How the device wants to be kicked.
    #[inline]
    pub(super) fn device_event(&self) -> &AtomicU32 {
        // SAFETY: four bytes are mapped, and aligned.
        unsafe { AtomicU32::from_ptr(self.device.as_ptr().cast()) }
    }

    /// Address of descriptor `index`, which is below the size.
    #[inline(always)]
    pub(super) fn desc_at(&self, index: u16) -> *mut u8 {
        debug_assert!(index < self.size);
        // SAFETY: within the area.
        unsafe { self.desc.as_ptr().add(DESC_SIZE as usize * usize::from(index)) }
    }

    /// The flags of descriptor `index`, which is below the size: its last two bytes.
    #[inline(always)]
    pub(super) fn flags(&self, index: u16) -> &AtomicU16 {
        // SAFETY: within the descriptor, and even.
        unsafe { AtomicU16::from_ptr(self.desc_at(index).add(14).cast()) }
    }

    /// Copies descriptor `index`, except its `flags`, which must have been read before by an
    /// acquiring load so that the rest belongs to them.
    #[inline(always)]
    pub(super) fn desc(&self, index: u16, flags: u16) -> Desc {
        let at = self.desc_at(index);
        // SAFETY: the first 14 bytes of a descriptor within the area, which is aligned to 16.
        unsafe {
            Desc {
                addr: at.cast::<u64>().read_volatile(),
                len: at.add(8).cast::<u32>().read_volatile(),
                id: at.add(12).cast::<u16>().read_volatile(),
                flags,
            }
        }
    }

    /// Writes the flags of descriptor `index`, which is below the size, after all stores before.
    #[inline(always)]
    pub(super) fn store_flags(&self, index: u16, flags: u16) {
        #[cfg(test)]
        if !crate::kill::survives() {
            return;
        }
        self.flags(index).store(flags, Ordering::Release);
    }

    /// Writes length, buffer id and flags of descriptor `index`, which is below the size, after all
    /// stores before: its last eight bytes, see [`used_word`](super::used_word).
    #[inline(always)]
    pub(super) fn store_word(&self, index: u16, word: u64) {
        #[cfg(test)]
        if !crate::kill::survives() {
            return;
        }
        // SAFETY: within the descriptor, which is aligned to 16.
        let at = unsafe { AtomicU64::from_ptr(self.desc_at(index).add(8).cast()) };
        at.store(word, Ordering::Release);
    }
}
