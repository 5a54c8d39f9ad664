//! The images that both back-ends serve.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Args;
use super::point::Image;
use crate::disk_load::make_image;

/// Files full of data, in memory and on a drive, which go with this value.
pub(super) struct Images {
    memory: TempDir,
    drive: Option<TempDir>,
    /// Bytes of each.
    pub(super) length: u64,
}

impl Images {
    /// Makes them; the one on a drive only where it is needed.
    pub(super) fn make(args: &Args, needs_drive: bool) -> io::Result<Images> {
        let length = u64::from(args.size) << 20;
        let mut folder = tempfile::Builder::new();
        folder.prefix("ringmain-bench-disk-");
        let memory = folder.tempdir_in(&args.memory)?;
        make_image(&file(memory.path()), length)?;
        let drive = match (needs_drive, &args.drive) {
            (false, _) => None,
            (true, Some(drive)) => Some(folder.tempdir_in(drive)?),
            (true, None) => Some(folder.tempdir()?),
        };
        if let Some(drive) = &drive {
            make_image(&file(drive.path()), length)?;
        }
        Ok(Images { memory, drive, length })
    }

    /// The path of an image.
    pub(super) fn path(&self, image: Image) -> PathBuf {
        match (image, &self.drive) {
            (Image::Drive, Some(drive)) => file(drive.path()),
            _ => file(self.memory.path()),
        }
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("disk.raw")
}
