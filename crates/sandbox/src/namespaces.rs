//! Namespaces that need no file system of their own.

use std::io;

use rustix::thread::UnshareFlags;

/// Moves the calling thread into new namespaces.
pub fn enter(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: a system call that takes a number. The flags are those of namespaces only; memory,
    // descriptors and signal handlers stay shared with all threads of the process.
    unsafe { rustix::thread::unshare_unsafe(namespaces)? };
    Ok(())
}
