//! An open file or block device.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;

use super::device::Geometry;
use super::opening::{is_aligned, open, open_direct, size};
use super::options::{Alignment, ImageError, ImageOptions};
use crate::image_lock::unlock;

/// An open file or block device.
///
/// A file that bypasses the page cache is open twice: requests that are not aligned, and that the
/// kernel therefore does not take directly, go through the page cache. The kernel keeps both paths
/// coherent.
#[derive(Debug)]
pub(crate) struct Handles {
    pub buffered: File,
    pub direct: Option<(File, Alignment)>,
}

impl Handles {
    /// Opens what the options name. `exclusive`: a writable block device must have no other user.
    /// Also returns the type of the file, and the geometry of a block device.
    pub fn open(
        options: &ImageOptions,
        exclusive: bool,
    ) -> Result<(Handles, FileType, Option<Geometry>), ImageError> {
        let (buffered, kind) = open(options, exclusive)?;
        let geometry = (kind == FileType::BlockDevice).then(|| Geometry::of(&buffered));
        let direct = open_direct(options, geometry.map(|geometry| geometry.logical))?;
        Ok((Handles { buffered, direct }, kind, geometry))
    }

    /// The file for a request of `pieces` from byte `offset` on, and whether the request bypasses
    /// the page cache.
    pub fn file(&self, offset: u64, pieces: &[libc::iovec]) -> (BorrowedFd<'_>, bool) {
        match &self.direct {
            Some((file, align)) if is_aligned(*align, offset, pieces) => (file.as_fd(), true),
            _ => (self.buffered.as_fd(), false),
        }
    }

    /// Length in bytes.
    pub fn size(&self, kind: FileType) -> io::Result<u64> {
        Ok(size(&self.buffered, kind, 1)?)
    }

    /// Releases the locks on the file.
    pub fn unlock(&self) -> io::Result<()> {
        unlock(&self.buffered)?;
        self.direct.as_ref().map_or(Ok(()), |(file, _)| unlock(file))
    }
}

impl Drop for Handles {
    /// Unlocks the file before its descriptors are closed. No request is in flight, since each
    /// holds its image. But others may hold a reference to the open file for a moment longer: the
    /// kernel for requests that have completed, and a process that was just forked. Their
    /// references must not keep the image locked.
    fn drop(&mut self) {
        // What the system does not unlock here is unlocked with the last reference.
        let _ = self.unlock();
    }
}
