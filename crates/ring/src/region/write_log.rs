//! A log of the pages of a peer's memory that this process writes.
//!
//! A front-end that migrates its guest shares a bitmap with the back-end: bit `n` stands for the
//! 4096 bytes at guest address `4096 * n`. The back-end sets the bit of each page that it has
//! written; the front-end takes bits away at any time, and sends those pages again. A bit is
//! therefore set after the bytes are written, never before: otherwise a front-end that takes the
//! bit in between would send the page without them.
//!
//! The bitmap is memory of a possibly hostile peer: its contents are never used here, and a
//! truncated file makes the memory faulty ([`Memory::violation`]). Pages beyond the end of the
//! bitmap are not marked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs;

use super::{MapError, Memory, RegionSpec};

/// Bytes that one bit stands for (vhost-user: `VHOST_LOG_PAGE`).
pub const LOG_PAGE: u64 = 4096;

/// Most bytes of a log that are mapped, 64 MiB: guest addresses below 2 TiB.
pub const MAX_LOG: u64 = 64 << 20;

/// A peer's bitmap of written pages, mapped.
#[derive(Debug)]
pub struct WriteLog {
    memory: Memory,
    len: u64,
    place: Place,
}

/// The file of a log, by device and number, and the first byte of the log in it.
type Place = (u64, u64, u64);

fn place_of(file: BorrowedFd<'_>, offset: u64) -> Result<Place, MapError> {
    let stat = fs::fstat(file).map_err(std::io::Error::from)?;
    Ok((stat.st_dev, stat.st_ino, offset))
}

impl WriteLog {
    /// Maps the log of `len` bytes, at most [`MAX_LOG`], that begins at byte `offset` of `file`.
    ///
    /// # Errors
    /// As for [`Memory::map`].
    pub fn map(file: OwnedFd, offset: u64, len: u64) -> Result<WriteLog, MapError> {
        if len > MAX_LOG {
            return Err(MapError::TooBig(len));
        }
        let place = place_of(file.as_fd(), offset)?;
        let spec = RegionSpec { guest_addr: 0, user_addr: 0, len, offset, fd: file };
        Ok(WriteLog { memory: Memory::map(vec![spec])?, len, place })
    }

    /// Whether this is the log of `len` bytes at byte `offset` of `file`.
    pub fn is_at(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
        self.len == len && place_of(file, offset).is_ok_and(|place| place == self.place)
    }

    /// The first guest address that has no bit.
    pub fn end(&self) -> u64 {
        self.len * 8 * LOG_PAGE
    }

    /// Whether the peer has truncated the file.
    #[inline]
    pub(super) fn is_faulted(&self) -> bool {
        self.memory.is_faulted()
    }

    /// Marks the pages of the `len` bytes at guest address `addr`, which have been written.
    pub(super) fn mark(&self, addr: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|more| addr.checked_add(more)) else { return };
        let (first, last) = (addr / LOG_PAGE, last / LOG_PAGE);
        for byte in first / 8..=last / 8 {
            let mut bits = u8::MAX;
            if byte == first / 8 {
                bits &= u8::MAX << (first % 8);
            }
            if byte == last / 8 {
                bits &= u8::MAX >> (7 - last % 8);
            }
            let Ok(marks) = self.memory.atomic_u8(byte) else { return };
            // A front-end that takes the bit sees the bytes that were written before.
            marks.fetch_or(bits, Ordering::Release);
        }
    }
}

impl Memory {
    /// The same memory with another log, or none. Writes through the returned memory are marked in
    /// `log`; writes through `self` are logged as before.
    #[must_use]
    pub fn with_log(&self, log: Option<Arc<WriteLog>>) -> Memory {
        Memory {
            regions: Arc::clone(&self.regions),
            owner: self.owner.clone(),
            expected: Arc::clone(&self.expected),
            charged: self.charged.clone(),
            log,
        }
    }

    /// The first guest address behind all regions.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, |region| region.guest.saturating_add(region.len))
    }

    /// Whether writes are logged. A writer that does not log at once must check this first.
    #[inline(always)]
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Logs that `len` bytes at guest address `addr` have been written.
    #[inline]
    pub(crate) fn log(&self, addr: u64, len: u64) {
        if let Some(log) = &self.log {
            log.mark(addr, len);
        }
    }

    /// Logs that `len` bytes at host address `at`, in one region, have been written.
    #[inline]
    pub(crate) fn log_host(&self, at: *const u8, len: usize) {
        if self.is_logged()
            && let Some(addr) = self.guest_of(at)
        {
            self.log(addr, len as u64);
        }
    }

    /// The guest address of host address `at`.
    pub(crate) fn guest_of(&self, at: *const u8) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = (at as u64).wrapping_sub(region.host.as_ptr() as u64);
            (offset < region.len).then(|| region.guest + offset)
        })
    }
}

#[cfg(test)]
mod tests;
