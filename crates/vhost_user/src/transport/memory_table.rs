//! The memory regions that a front-end shares.
//!
//! A front-end sends the whole table at once (`SET_MEM_TABLE`), or adds and removes regions one by
//! one (`ADD_MEM_REG`, `REM_MEM_REG`). The descriptors are kept, because each change maps all
//! regions anew: what was mapped before stays mapped as long as frames in flight point into it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::{MapError, Memory, MemoryAccount, RegionSpec};

use super::message::Region;

/// Most regions that the memory of one guest may have. Each keeps a descriptor open.
pub const MAX_REGIONS: usize = 32;

/// A region, and the file that backs it.
struct Entry {
    region: Region,
    file: OwnedFd,
}

/// The regions as the front-end described them last.
#[derive(Default)]
pub(super) struct MemoryTable {
    entries: Vec<Entry>,
}

impl MemoryTable {
    /// Replaces all regions; one file for each.
    pub(super) fn replace(&mut self, regions: Vec<Region>, files: Vec<OwnedFd>) {
        let entry = |(region, file)| Entry { region, file };
        self.entries = regions.into_iter().zip(files).map(entry).collect();
    }

    /// Whether the same part of the same file is in the table already.
    pub(super) fn has(&self, region: &Region, file: &OwnedFd) -> bool {
        self.entries.iter().any(|entry| entry.region == *region && is_same_file(&entry.file, file))
    }

    /// Adds a region. False: there are [`MAX_REGIONS`] already.
    pub(super) fn add(&mut self, region: Region, file: OwnedFd) -> bool {
        let room = self.entries.len() < MAX_REGIONS;
        if room {
            self.entries.push(Entry { region, file });
        }
        room
    }

    /// Removes the region at these addresses. False: there is none.
    pub(super) fn remove(&mut self, region: &Region) -> bool {
        let place = |region: &Region| (region.guest_addr, region.user_addr, region.len);
        let at = self.entries.iter().position(|entry| place(&entry.region) == place(region));
        if let Some(at) = at {
            self.entries.remove(at);
        }
        at.is_some()
    }

    /// Maps all regions. Pages of them that this process allocates are charged to `account`.
    ///
    /// # Errors
    /// When they cannot be a guest's memory, or the kernel refuses.
    pub(super) fn map(&self, account: &Arc<MemoryAccount>) -> Result<Arc<Memory>, MapError> {
        let spec = |Entry { region, file }: &Entry| {
            Ok(RegionSpec {
                guest_addr: region.guest_addr,
                user_addr: region.user_addr,
                len: region.len,
                offset: region.offset,
                fd: file.try_clone().map_err(MapError::Os)?,
            })
        };
        let specs = self.entries.iter().map(spec).collect::<Result<_, MapError>>()?;
        Ok(Arc::new(Memory::map_charged(specs, Arc::clone(account))?))
    }

    /// Number of regions.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

fn is_same_file(a: &OwnedFd, b: &OwnedFd) -> bool {
    let file = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    file(a).is_ok_and(|a| file(b).is_ok_and(|b| a == b))
}
