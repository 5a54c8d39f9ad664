//! A daemon with three disks, of one, two and four queues.

use std::path::{Path, PathBuf};
use std::time::Duration;

use control::api::DiskCounts;
use tempfile::TempDir;

use super::{Args, DiskDemoError};
use crate::daemon::{Daemon, DaemonError};
use crate::disk_load::make_image;
use load::cpu;

/// Queues of the disks.
pub(super) const QUEUES: [u16; 3] = [1, 2, 4];

/// The daemon, and the images of its disks.
pub(super) struct Site {
    // The order of drops matters: the daemon ends before the images are removed.
    daemon: Daemon,
    length: u64,
    _images: TempDir,
}

/// The requests that the daemon has served, and the CPU time that it has used.
#[derive(Clone, Debug)]
pub(super) struct Used {
    /// Requests of one disk.
    pub(super) requests: u64,
    /// Requests that failed.
    pub(super) failed: u64,
    /// Interrupts for them.
    pub(super) interrupts: u64,
    /// CPU time of the daemon.
    pub(super) cpu: Duration,
}

impl Used {
    /// The counters of a disk, and the CPU time of its daemon.
    pub(super) fn new(total: &DiskCounts, cpu: Duration) -> Used {
        let (requests, failed) = (requests(total), total.failed());
        Used { requests, failed, interrupts: total.interrupts, cpu }
    }
}

impl Site {
    pub(super) fn start(args: &Args) -> Result<Site, DiskDemoError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| DiskDemoError::File { what, source }
        };
        let binary = args.program.find().map_err(failed("cannot find ringmain"))?;
        let mut folder = tempfile::Builder::new();
        folder.prefix("ringmain-disks-");
        let images = match &args.images {
            Some(images) => folder.tempdir_in(images),
            None => folder.tempdir(),
        };
        let images = images.map_err(failed("cannot make a folder for images"))?;
        let length = u64::from(args.size) << 20;
        for queues in QUEUES {
            make_image(&image(images.path(), queues), length)
                .map_err(failed("cannot make an image"))?;
        }
        let daemon = Daemon::start(&binary, |dir| config(dir, images.path()), None)?;
        Ok(Site { daemon, length, _images: images })
    }

    /// The socket of the disk with this number of queues.
    pub(super) fn socket(&self, queues: u16) -> PathBuf {
        socket(self.daemon.dir(), queues)
    }

    /// Length of each disk in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The daemon's process.
    pub(super) fn id(&self) -> u32 {
        self.daemon.id()
    }

    /// The work of the daemon so far for the disk with this number of queues.
    pub(super) fn used(&self, queues: u16) -> Result<Used, DaemonError> {
        let stats = self.daemon.stats()?;
        let disk = stats.disks.iter().find(|disk| disk.name == name(queues));
        let total = disk.map(|disk| disk.total.clone()).unwrap_or_default();
        Ok(Used::new(&total, cpu::used(self.daemon.id())))
    }
}

/// The name and serial number of the disk with this number of queues.
pub(super) fn name(queues: u16) -> String {
    format!("disk-{queues}")
}

fn socket(dir: &Path, queues: u16) -> PathBuf {
    dir.join(name(queues)).with_extension("sock")
}

fn image(dir: &Path, queues: u16) -> PathBuf {
    dir.join(name(queues)).with_extension("raw")
}

fn config(dir: &Path, images: &Path) -> String {
    let disk = |queues: u16| {
        format!(
            "[[disk]]\nname = \"{}\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nimage = \"{}\"\nqueues = {queues}\n",
            name(queues),
            socket(dir, queues).display(),
            image(images, queues).display()
        )
    };
    QUEUES.map(disk).concat()
}

fn requests(counts: &DiskCounts) -> u64 {
    counts.reads + counts.writes + counts.flushes + counts.discards + counts.zeroes + counts.others
}
