//! The log of pages that the back-end writes.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use ring::Memory;

use crate::error::DriverError;
use crate::guest::PAGE;

/// A bitmap in shared memory: bit `n` stands for the 4096 bytes at guest address `4096 * n`.
pub struct WriteLog {
    memory: Memory,
    file: OwnedFd,
    len: u64,
}

impl WriteLog {
    /// An empty log of a guest with `size` bytes of memory.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(size: u64) -> Result<WriteLog, DriverError> {
        let len = size.div_ceil(8 * PAGE).next_multiple_of(8);
        let (memory, file) = Memory::shared(len as usize)?;
        Ok(WriteLog { memory, file, len })
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Its file.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Takes all marks: the numbers of the pages, in order.
    ///
    /// # Errors
    /// None that is known: the log is as long as it was made.
    pub fn take(&self) -> Result<Vec<u64>, DriverError> {
        let mut pages = Vec::new();
        for at in (0..self.len).step_by(8) {
            let word = self.memory.atomic_u64(at)?.swap(0, Ordering::AcqRel);
            pages.extend((0..64).filter(|bit| word >> bit & 1 != 0).map(|bit| 8 * at + bit));
        }
        Ok(pages)
    }
}
