//! A memory table, and the checks before anything is mapped.
//!
//! A hostile peer can send regions that overlap, wrap around, are empty, reach beyond their file,
//! or lie in a file whose pages come from somewhere slow.

use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error;

use crate::fault::WatchError;
use crate::violation::Violation;

/// One region of a peer's memory, as vhost-user's memory table describes it.
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address of the region.
    pub guest_addr: u64,
    /// The address at which the peer itself (QEMU) has it mapped. Addresses of rings are given in
    /// these terms.
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
    /// All regions together are more than one peer may have.
    #[error("memory regions of {0:#x} bytes in all, at most {MAX_BYTES:#x} are allowed")]
    TooBig(u64),
    /// The file's pages may come from a source that makes this process wait.
    #[error(
        "memory region at {0:#x} is in no memory file: only memfd, tmpfs and hugetlbfs files are mapped"
    )]
    NotMemory(u64),
    /// Too much of the peer's memory was allocated.
    #[error(transparent)]
    Limit(Violation),
    /// Regions that the peer has replaced are still in use, and there are too many of them.
    #[error("more than {MAX_MAPPED} memory regions are mapped at a time")]
    TooManyMapped,
    /// The kernel refused.
    #[error("mapping memory: {0}")]
    Os(#[from] io::Error),
    /// This process has mapped as much peer memory as it can watch over.
    #[error("too many memory regions are mapped in this process")]
    Exhausted,
}

impl From<WatchError> for MapError {
    fn from(error: WatchError) -> Self {
        match error {
            WatchError::Exhausted => Self::Exhausted,
            WatchError::Os(error) => Self::Os(error),
        }
    }
}

/// Most regions that are mapped for a peer at a time: eight tables of 32 regions. Tables that were
/// replaced stay mapped as long as frames in flight point into them, and all peers share the
/// mappings that this process can watch.
pub(super) const MAX_MAPPED: usize = 256;

/// Most regions of one memory: what QEMU's and Linux' vhost allow at most.
pub const MAX_REGIONS: usize = 509;

/// Most bytes of one memory, 1 TiB. A sparse file costs its owner nothing whatever its length, but
/// there are only 128 TiB of addresses in this process, for all peers.
pub const MAX_BYTES: u64 = 1 << 40;

/// Checks a memory table before anything is mapped.
pub(super) fn check(regions: &[RegionSpec]) -> Result<(), MapError> {
    if regions.len() > MAX_REGIONS {
        return Err(MapError::TooMany(regions.len()));
    }
    for region in regions {
        if region.len == 0 {
            return Err(MapError::Empty(region.guest_addr));
        }
        if [region.guest_addr, region.user_addr, region.offset]
            .iter()
            .any(|at| at.checked_add(region.len).is_none())
        {
            return Err(MapError::Wraps(region.guest_addr));
        }
    }
    let bytes = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.len));
    if bytes > MAX_BYTES {
        return Err(MapError::TooBig(bytes));
    }
    let mut ranges: Vec<(u64, u64)> = regions.iter().map(|r| (r.guest_addr, r.len)).collect();
    no_overlap(&mut ranges)?;
    ranges = regions.iter().map(|r| (r.user_addr, r.len)).collect();
    no_overlap(&mut ranges)
}

fn no_overlap(ranges: &mut [(u64, u64)]) -> Result<(), MapError> {
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| matches!(pair, [(a, len), (b, _)] if a + len > *b)) {
        Some(pair) => Err(MapError::Overlap(pair.last().map_or(0, |(addr, _)| *addr))),
        None => Ok(()),
    }
}
