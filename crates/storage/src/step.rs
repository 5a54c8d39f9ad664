//! One step of a request, as the kernel takes it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::Errno;

use crate::operation::Operation;

/// One step of a request.
pub struct Step<'a> {
    /// The image.
    pub file: BorrowedFd<'a>,
    /// The operation.
    pub operation: Operation,
    /// The buffers of a read or write.
    pub pieces: &'a [libc::iovec],
    /// The first byte.
    pub offset: u64,
    /// The length in bytes of an operation on a range.
    pub len: u64,
}

/// `preadv2` or `pwritev2`.
type Move = unsafe extern "C" fn(
    libc::c_int,
    *const libc::iovec,
    libc::c_int,
    libc::off_t,
    libc::c_int,
) -> libc::ssize_t;

impl Step<'_> {
    /// Carries out the step on this thread. Returns the bytes that were moved.
    ///
    /// # Errors
    /// The error number of the system.
    pub(crate) fn carry_out(&self) -> Result<u32, i32> {
        let done = match self.operation {
            Operation::Read => return self.move_bytes(libc::preadv2, 0),
            Operation::Write { stable: true } => {
                return self.move_bytes(libc::pwritev2, libc::RWF_DSYNC);
            }
            Operation::Write { stable: false } | Operation::WriteZeros => {
                return self.move_bytes(libc::pwritev2, 0);
            }
            Operation::Sync => fdatasync(self.file),
            Operation::PunchHole | Operation::ZeroRange => {
                let mode = FallocateFlags::from_bits_retain(self.fallocate_mode() as u32);
                fallocate(self.file, mode, self.offset, self.len)
            }
        };
        done.map(|()| 0).map_err(Errno::raw_os_error)
    }

    fn move_bytes(&self, call: Move, flags: libc::c_int) -> Result<u32, i32> {
        let (pieces, count) = (self.pieces.as_ptr(), self.pieces.len() as libc::c_int);
        let offset = self.offset as libc::off_t;
        // SAFETY: the pieces are those of a request, which is held by the caller and keeps its
        // memory mapped, or static; static pieces are never written to.
        let moved = unsafe { call(self.file.as_raw_fd(), pieces, count, offset, flags) };
        u32::try_from(moved)
            .map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The mode of `fallocate` for an operation on a range.
    pub(crate) fn fallocate_mode(&self) -> i32 {
        let mode = match self.operation {
            Operation::ZeroRange => FallocateFlags::ZERO_RANGE,
            _ => FallocateFlags::PUNCH_HOLE,
        };
        (mode | FallocateFlags::KEEP_SIZE).bits() as i32
    }
}
