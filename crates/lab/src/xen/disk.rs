//! A disk that a guest gets while it runs, and the program that sends requests to it.

use super::dom0::{Dom0, TIMEOUT};
use super::domain::{Domain, number};
use crate::guest::{GuestError, Shell};
use std::path::Path;
use std::time::Duration;

/// The device file of the disk, in the guest.
pub const DISK: &str = "/dev/xvdb";
/// The disk's number in the store: that of a device file (202 << 8 | 16).
pub const DISK_NUMBER: u32 = 51728;

impl Dom0 {
    /// Makes a ramdisk of the usual one and of an archive with fio, for guests with enough memory.
    ///
    /// # Errors
    /// When the archive cannot be read, or dom0 has no room for it.
    pub fn ramdisk_with_fio(&self, archive: &Path) -> Result<String, GuestError> {
        const RAMDISK: &str = "/guest/fio.cpio";
        // The kernel unpacks both archives, and files of the second replace those of the first.
        self.copy(archive, RAMDISK)?;
        self.must(&format!("cat /guest/guest.cpio.gz >>{RAMDISK}"), TIMEOUT)?;
        Ok(RAMDISK.into())
    }
}

impl Domain {
    /// Attaches [`DISK`] with this many queues at most, and returns how many it has. The module of
    /// the frontend, which has the number as a parameter, is loaded anew, so the guest may have no
    /// disk yet. `words` say what is behind the disk, as `script=block-ringmain,target=/a.raw`
    /// does.
    ///
    /// # Errors
    /// When the toolstack fails, or the guest has no disk after `limit`.
    pub fn attach_disk(
        &self,
        words: &str,
        queues: u16,
        limit: Duration,
    ) -> Result<u16, GuestError> {
        // The module is busy for a moment after a disk has left.
        let load = format!(
            "module=$(grep blkfront /modules/order) && \
             while [ -d /sys/module/xen_blkfront ] && ! rmmod xen_blkfront; do usleep 50000; done && \
             insmod /modules/$module max_queues={queues}"
        );
        self.must(&load, limit)?;
        let disk = format!("format=raw,vdev=xvdb,access=rw,{words}");
        self.dom0().must(&format!("xl block-attach {} '{disk}'", self.id()), limit)?;
        let count =
            format!("until [ -b {DISK} ]; do usleep 50000; done; ls /sys/block/xvdb/mq | wc -l");
        number(&self.must(&count, limit)?, &count)
    }

    /// Detaches [`DISK`], and waits until it is gone.
    ///
    /// # Errors
    /// When the toolstack fails, or the guest has the disk after `limit`.
    pub fn detach_disk(&self, limit: Duration) -> Result<(), GuestError> {
        self.dom0().must(&format!("xl block-detach {} xvdb", self.id()), limit)?;
        self.must(&format!("until ! [ -b {DISK} ]; do usleep 50000; done"), limit).map(drop)
    }
}
