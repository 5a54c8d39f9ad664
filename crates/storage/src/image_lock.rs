//! Locks on images against a second opener.
//!
//! The locks belong to open file descriptions, as QEMU's do. An image that is closed has no request
//! in flight, and is unlocked. When this process is killed, the kernel releases its locks together
//! with the last references to their descriptions, and requests in flight hold some. In both cases
//! the next owner of the lock can rely on no older write being in flight.

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

/// Bytes that QEMU locks: one range for its own operations, and one for operations that it denies
/// to others. In each, the first, second and fourth byte stand for reading consistent data, writing
/// and resizing.
const QEMU_DOES: i64 = 100;
const QEMU_FORBIDS: i64 = 200;
const READS: i64 = 0;
const WRITES: i64 = 1;
const RESIZES: i64 = 3;

/// Locks a file against writers, this program and QEMU included, while both may read it. False: the
/// file has a writer.
pub(crate) fn try_lock_backing(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd();
    for byte in [QEMU_DOES + READS, QEMU_FORBIDS + WRITES, QEMU_FORBIDS + RESIZES] {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(libc::F_RDLCK, byte, 1))) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    for byte in [QEMU_FORBIDS + READS, QEMU_DOES + WRITES, QEMU_DOES + RESIZES] {
        let mut lock = lock_of(libc::F_WRLCK, byte, 1);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        // Readers of this program lock all bytes, for reading.
        let is_qemu = (1..MIDDLE).contains(&lock.l_len);
        if i32::from(lock.l_type) != libc::F_UNLCK && is_qemu {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock_of(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Locks a part of the file exclusively, or, if `shared`, against writers. False: another
/// description has locked it.
pub(crate) fn try_lock(file: impl AsFd, part: Part, shared: bool) -> io::Result<bool> {
    let (start, len) = match part {
        Part::First => (0, MIDDLE),
        // A length of 0 reaches to the end of the file, even if that grows.
        Part::Second => (MIDDLE, 0),
    };
    let kind = if shared { libc::F_RDLCK } else { libc::F_WRLCK };
    let lock = lock_of(kind, start, len);
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Unlocks all that this description has locked of the file.
pub(crate) fn unlock(file: impl AsFd) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(libc::F_UNLCK, 0, 0)))?;
    Ok(())
}
