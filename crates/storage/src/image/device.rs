//! The properties that a block device reports.

use std::fs::File;
use std::io;

use rustix::fs::{fstat, ioctl_blkpbszget, ioctl_blksszget, major, minor};

use crate::command::SECTOR;

/// The queries to a block device.
pub(super) trait Probe {
    /// Bytes of a logical block (`BLKSSZGET`).
    fn logical(&self) -> io::Result<u32>;

    /// Bytes of a physical block (`BLKPBSZGET`).
    fn physical(&self) -> io::Result<u32>;

    /// A limit of the device's queue; `None`: sysfs cannot be read.
    fn queue_limit(&self, name: &str) -> Option<u64>;
}

impl Probe for File {
    fn logical(&self) -> io::Result<u32> {
        Ok(ioctl_blksszget(self)?)
    }

    fn physical(&self) -> io::Result<u32> {
        Ok(ioctl_blkpbszget(self)?)
    }

    fn queue_limit(&self, name: &str) -> Option<u64> {
        let device = fstat(self).ok()?.st_rdev;
        let folder = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        // A partition has no queue of its own; its folder lies in that of its device.
        let places = [format!("{folder}/queue/{name}"), format!("{folder}/../queue/{name}")];
        let text = places.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
        text.trim().parse().ok()
    }
}

/// A block device's requirements for requests, and its abilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of the smallest unit that can be addressed.
    pub logical: u32,
    /// Bytes of the smallest unit that is written without being read before.
    pub physical: u32,
    /// Discards deallocate: `fallocate(FALLOC_FL_PUNCH_HOLE)` makes a device write zeros by itself,
    /// and deallocate where it can, and fails where it cannot.
    pub discards: bool,
}

impl Geometry {
    /// Queries the device. Unknown values are assumed to be the usual ones, because the sandbox may
    /// forbid the query.
    pub(super) fn of(device: &impl Probe) -> Geometry {
        let plausible = |bytes: io::Result<u32>| {
            bytes.ok().filter(|bytes| bytes.is_power_of_two() && u64::from(*bytes) >= SECTOR)
        };
        let logical = plausible(device.logical()).unwrap_or(SECTOR as u32);
        let physical = plausible(device.physical()).unwrap_or(logical).max(logical);
        let most = device.queue_limit("write_zeroes_max_bytes");
        Geometry { logical, physical, discards: most.is_none_or(|most| most > 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with the answers of the test.
    struct Says {
        logical: Option<u32>,
        physical: Option<u32>,
        write_zeroes: Option<u64>,
    }

    fn answer(bytes: Option<u32>) -> io::Result<u32> {
        bytes.ok_or_else(|| io::Error::from_raw_os_error(libc::EACCES))
    }

    impl Probe for Says {
        fn logical(&self) -> io::Result<u32> {
            answer(self.logical)
        }

        fn physical(&self) -> io::Result<u32> {
            answer(self.physical)
        }

        fn queue_limit(&self, name: &str) -> Option<u64> {
            assert_eq!(name, "write_zeroes_max_bytes");
            self.write_zeroes
        }
    }

    fn geometry(
        logical: Option<u32>,
        physical: Option<u32>,
        write_zeroes: Option<u64>,
    ) -> Geometry {
        Geometry::of(&Says { logical, physical, write_zeroes })
    }

    #[test]
    fn blocks_are_as_the_device_says() {
        let cases = [
            ((Some(512), Some(4096)), (512, 4096)),
            ((Some(4096), Some(4096)), (4096, 4096)),
            ((Some(4096), Some(512)), (4096, 4096)),
            ((Some(4096), None), (4096, 4096)),
            ((None, None), (512, 512)),
            ((Some(0), Some(3000)), (512, 512)),
        ];
        for ((logical, physical), want) in cases {
            let said = geometry(logical, physical, None);
            assert_eq!((said.logical, said.physical), want, "{logical:?} {physical:?}");
        }
    }

    #[test]
    fn discards_are_offered_where_the_device_deallocates() {
        let discards = |most| geometry(Some(512), Some(512), most).discards;
        assert!(discards(Some(1 << 30)) && discards(None));
        assert!(!discards(Some(0)));
    }
}
