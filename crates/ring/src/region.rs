//! The peer's memory, mapped.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use thiserror::Error;

use crate::violation::Violation;

/// One region of a peer's memory, as vhost-user's memory table describes it.
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address of the region.
    pub guest_addr: u64,
    /// Where the peer itself (QEMU) has it mapped: the addresses of rings come in these terms.
    pub user_addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file.
    pub fd: OwnedFd,
}

/// Why a memory table could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// More regions than are allowed.
    #[error("{0} memory regions, at most {MAX_REGIONS} are allowed")]
    TooMany(usize),
    /// A region without a byte in it.
    #[error("memory region at {0:#x} is empty")]
    Empty(u64),
    /// A region whose end, in guest, user or file terms, is beyond 2^64.
    #[error("memory region at {0:#x} wraps around")]
    Wraps(u64),
    /// Two regions share guest addresses or user addresses.
    #[error("memory regions overlap at {0:#x}")]
    Overlap(u64),
    /// The file ends before the region does.
    #[error("memory region at {addr:#x} needs a file of {needed} bytes, it has {size}")]
    ShortFile {
        /// Guest address of the region.
        addr: u64,
        /// Bytes that the file must have.
        needed: u64,
        /// Bytes that it has.
        size: u64,
    },
    /// The kernel refused.
    #[error("mapping memory: {0}")]
    Os(#[from] io::Error),
    /// This process has mapped as much peer memory as it can watch over.
    #[error("too many memory regions are mapped in this process")]
    Exhausted,
}

/// Most regions of one memory: what QEMU's and Linux' vhost allow at most.
pub const MAX_REGIONS: usize = 509;

/// A peer's memory: shared with it, mapped as long as this lives.
#[derive(Debug)]
pub struct Memory {}

impl Memory {
    /// Maps a memory table.
    ///
    /// # Errors
    /// Regions that overlap, wrap around, are empty or reach beyond their file; whatever the kernel says.
    pub fn map(regions: Vec<RegionSpec>) -> Result<Memory, MapError> {
        let _ = regions;
        todo!()
    }

    /// Private buffers of `len` bytes at guest address 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn anonymous(len: usize) -> Result<Memory, MapError> {
        let _ = len;
        todo!()
    }

    /// Memory to share with somebody else, `len` bytes at guest (and user) address 0: a memfd that cannot shrink.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn shared(len: usize) -> Result<(Memory, OwnedFd), MapError> {
        let _ = len;
        todo!()
    }

    /// The guest address of what the peer has mapped at `user_addr`.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        let _ = user_addr;
        todo!()
    }

    /// Copies from guest address `addr` into `buf`.
    ///
    /// # Errors
    /// [`Violation::Outside`]; then nothing was copied.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), Violation> {
        let _ = (addr, buf);
        todo!()
    }

    /// Copies `buf` to guest address `addr`.
    ///
    /// # Errors
    /// [`Violation::Outside`]; then nothing was copied.
    pub fn write(&self, addr: u64, buf: &[u8]) -> Result<(), Violation> {
        let _ = (addr, buf);
        todo!()
    }

    /// One `read(2)` from `fd` straight to guest address `addr`, at most `len` bytes; returns how many came.
    ///
    /// # Errors
    /// What `read(2)` says; `InvalidInput` when the bytes do not lie within one region.
    pub fn read_from_fd(&self, fd: BorrowedFd<'_>, addr: u64, len: usize) -> io::Result<usize> {
        let _ = (fd, addr, len);
        todo!()
    }

    /// Whether the peer has truncated the file under us. All of the region then reads as zeros; what was in it is
    /// lost, and the port should be stopped.
    pub fn is_faulted(&self) -> bool {
        todo!()
    }

    /// The host address of `len` bytes at guest address `addr`, that must lie within one region and be aligned to
    /// `align`, in guest and in host terms.
    pub(crate) fn host(&self, addr: u64, len: u64, align: u64) -> Result<NonNull<u8>, Violation> {
        let _ = (addr, len, align);
        todo!()
    }
}
