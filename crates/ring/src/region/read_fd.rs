//! Reads from files straight into a memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Memory;
use crate::violation::Violation;

impl Memory {
    /// One `read(2)` from `fd` straight to guest address `addr`, at most `len` bytes; returns how
    /// many were read.
    ///
    /// # Errors
    /// The error of `read(2)`; `InvalidInput` when the bytes do not lie within one region.
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
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        self.log(addr, got as u64);
        Ok(got)
    }

    /// One `readv(2)` from `fd`: first into `prefix`, and then straight to guest address `addr`, at
    /// most `len` bytes. Returns how many bytes were read in all.
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
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        self.log(addr, got.saturating_sub(prefix.len()) as u64);
        Ok(got)
    }
}
