//! Locks on images against a second opener.
//!
//! The locks belong to open file descriptions, as QEMU's do. The kernel releases such a lock when
//! the last reference to the description is gone, and requests in flight hold one. So after this
//! process was killed, its lock stays until the last of its requests has ended: whoever has got the
//! lock knows that nothing older will be written any more.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// Where the second range begins. QEMU's locks are on bytes 100 to 300.
const MIDDLE: i64 = 1 << 62;

/// The part of a file that a description locks: each of the two that an image may have has one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The first.
    First,
    /// The second.
    Second,
}

/// Locks a part of the file, for nobody else (or, `shared`, for nobody who writes). False: somebody
/// else has locked it.
pub(crate) fn try_lock(file: impl AsFd, part: Part, shared: bool) -> io::Result<bool> {
    let (start, len) = match part {
        Part::First => (0, MIDDLE),
        // Up to the end, wherever that will be.
        Part::Second => (MIDDLE, 0),
    };
    let kind = if shared { libc::F_RDLCK } else { libc::F_WRLCK };
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
