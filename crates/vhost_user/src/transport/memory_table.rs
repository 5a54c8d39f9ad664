//! The memory regions that a front-end shares.
//!
//! A front-end sends the whole table at once (`SET_MEM_TABLE`), or adds and removes regions one by
//! one (`ADD_MEM_REG`, `REM_MEM_REG`). The descriptors are kept, because each change maps all
//! regions again. The former mapping stays as long as frames in flight point into it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::{MapError, Memory, MemoryAccount, RegionSpec};

use super::message::Region;
use super::saved::{Files, HandOverError, SavedRegion};

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
    /// When they are not a valid memory table, or the kernel refuses.
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

    /// The regions, for another process.
    pub(super) fn save(&self, files: &mut Files) -> io::Result<Vec<SavedRegion>> {
        let save = |Entry { region, file }: &Entry| {
            let &Region { guest_addr, len, user_addr, offset } = region;
            Ok(SavedRegion { guest_addr, len, user_addr, offset, file: files.add(file)? })
        };
        self.entries.iter().map(save).collect()
    }

    /// The regions that another process had.
    pub(super) fn restore(
        saved: &[SavedRegion],
        files: &mut Files,
    ) -> Result<MemoryTable, HandOverError> {
        if saved.len() > MAX_REGIONS {
            return Err(HandOverError::Unusable(format!("{} regions", saved.len())));
        }
        let restore = |saved: &SavedRegion| {
            let &SavedRegion { guest_addr, len, user_addr, offset, file } = saved;
            let region = Region { guest_addr, len, user_addr, offset };
            Ok(Entry { region, file: files.take(file)? })
        };
        let entries = saved.iter().map(restore).collect::<Result<_, HandOverError>>()?;
        Ok(MemoryTable { entries })
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
