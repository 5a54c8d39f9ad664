//! Hints to the processor.

use super::Memory;
use crate::copy::{CACHE_LINE, prefetch};

impl Memory {
    /// Prefetches the `len` bytes at guest address `addr` for reading, as far as they are in one
    /// region.
    #[inline]
    pub fn prefetch(&self, addr: u64, len: usize) {
        let Some((at, run)) = self.run(addr, &mut 0) else { return };
        for offset in (0..run.min(len as u64) as usize).step_by(CACHE_LINE) {
            prefetch(at.as_ptr().wrapping_add(offset));
        }
    }
}
