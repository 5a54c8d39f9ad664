//! Images: raw files, block devices, and qcow2 files.

mod device;
pub(crate) mod handles;
mod locking;
mod opening;
pub(crate) mod options;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{FileType, ftruncate};

use crate::command::SECTOR;
use crate::qcow2::Qcow2;
use handles::Handles;
use locking::{LOCK_INTERVAL, LOCK_WAIT};
use opening::{is_in_memory, punches_holes, size};
pub use options::{Alignment, Direct, Format, ImageError, ImageOptions};

/// An image that is open. [`lock`](Self::lock) locks it.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    data: Data,
    read_only: bool,
    is_device: bool,
    discards: bool,
    sector: u32,
    physical: u32,
    bytes: AtomicU64,
    /// How many times it is locked here.
    locked: Mutex<u32>,
    /// Its bytes are in memory, and stay there.
    in_memory: bool,
}

/// The place of a disk's bytes.
#[derive(Debug)]
enum Data {
    /// In a file, one after the other.
    Raw(Handles),
    /// Where the tables of a qcow2 image place them.
    Qcow2(Arc<Qcow2>),
}

impl Image {
    /// Opens an image. A writable block device is then exclusive to this process, and cannot be
    /// mounted.
    ///
    /// # Errors
    /// When the image cannot be used with these options.
    pub fn open(options: &ImageOptions) -> Result<Image, ImageError> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match Image::open_once(options, true) {
                // A killed process keeps the device until its requests have ended.
                Err(ImageError::Busy(_)) if Instant::now() < until => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                other => return other,
            }
        }
    }

    /// Checks whether an image could be opened, without taking it from other users.
    ///
    /// # Errors
    /// The reason why it could not.
    pub fn check(options: &ImageOptions) -> Result<(), ImageError> {
        Image::open_once(options, false).map(drop)
    }

    fn open_once(options: &ImageOptions, exclusive: bool) -> Result<Image, ImageError> {
        if options.format == Format::Qcow2 {
            return Image::open_qcow2(options);
        }
        let path = &options.path;
        let (handles, kind, geometry) = Handles::open(options, exclusive)?;
        let is_device = kind == FileType::BlockDevice;
        let logical = geometry.map_or(SECTOR as u32, |geometry| geometry.logical);
        let sector = options.sector_size.unwrap_or(logical);
        let unit = handles.direct.as_ref().map_or(sector, |(_, align)| align.offset);
        let physical = geometry.map_or(unit, |geometry| geometry.physical).max(sector);
        let system = |error: rustix::io::Errno| ImageError::System {
            path: path.clone(),
            error: error.into(),
        };
        let bytes = size(&handles.buffered, kind, sector).map_err(system)?;
        if bytes == 0 {
            return Err(ImageError::Empty(path.clone()));
        }
        let deallocates = geometry
            .map_or_else(|| punches_holes(&handles.buffered, bytes), |geometry| geometry.discards);
        Ok(Image {
            path: path.clone(),
            in_memory: is_in_memory(&handles.buffered, kind),
            data: Data::Raw(handles),
            read_only: options.read_only,
            is_device,
            discards: !options.read_only && deallocates,
            sector,
            physical,
            bytes: AtomicU64::new(bytes),
            locked: Mutex::default(),
        })
    }

    fn open_qcow2(options: &ImageOptions) -> Result<Image, ImageError> {
        let qcow2 = Qcow2::open(options)?;
        let sector = options.sector_size.unwrap_or(SECTOR as u32);
        let top = qcow2.top();
        let unit = top.direct.as_ref().map_or(sector, |(_, align)| align.offset);
        let bytes = qcow2.bytes() - qcow2.bytes() % u64::from(sector);
        if bytes == 0 {
            return Err(ImageError::Empty(options.path.clone()));
        }
        let discards =
            !options.read_only && qcow2.can_unmap() && punches_holes(&top.buffered, qcow2.end());
        Ok(Image {
            path: options.path.clone(),
            read_only: options.read_only,
            is_device: false,
            in_memory: false,
            discards,
            sector,
            physical: unit.max(sector),
            bytes: AtomicU64::new(bytes),
            locked: Mutex::default(),
            data: Data::Qcow2(Arc::new(qcow2)),
        })
    }

    /// The file that is locked, and that has the tables of a qcow2 image.
    fn handles(&self) -> &Handles {
        match &self.data {
            Data::Raw(handles) => handles,
            Data::Qcow2(qcow2) => qcow2.top(),
        }
    }

    /// The image as a qcow2 image, if it is one.
    pub(crate) fn qcow2(&self) -> Option<&Arc<Qcow2>> {
        match &self.data {
            Data::Raw(_) => None,
            Data::Qcow2(qcow2) => Some(qcow2),
        }
    }

    /// The format.
    pub fn format(&self) -> Format {
        if self.qcow2().is_some() { Format::Qcow2 } else { Format::Raw }
    }

    /// The path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes, a whole number of blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Whether the image is read-only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The kernel's requirements for direct requests; `None`: the page cache is used.
    pub fn alignment(&self) -> Option<Alignment> {
        self.handles().direct.as_ref().map(|(_, alignment)| *alignment)
    }

    /// Whether its bytes are in memory, and stay there, as in a raw file of a tmpfs. Copies from
    /// and to such an image do not wait.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Bytes of a block, to which requests are aligned.
    pub fn block(&self) -> u32 {
        self.sector
    }

    /// The best unit of writes in bytes, a multiple of a block. A smaller write may need a read
    /// first, or pass through the page cache.
    pub fn physical_block(&self) -> u32 {
        self.physical
    }

    /// Whether discards free space.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// The file for a request of `pieces` from byte `offset` on, and whether the request bypasses
    /// the page cache. For a qcow2 image, this is the file with its tables, in which each byte of
    /// the disk keeps its alignment.
    pub(crate) fn file(&self, offset: u64, pieces: &[libc::iovec]) -> (BorrowedFd<'_>, bool) {
        self.handles().file(offset, pieces)
    }

    /// The file for requests without data.
    pub(crate) fn whole(&self) -> BorrowedFd<'_> {
        self.handles().buffered.as_fd()
    }

    /// Makes all completed writes stable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> io::Result<()> {
        self.handles().buffered.sync_data()
    }

    /// Whether the file or the device has become longer than the disk.
    pub fn has_grown(&self) -> bool {
        let Data::Raw(handles) = &self.data else { return false };
        size(&handles.buffered, self.kind(), self.sector).is_ok_and(|bytes| bytes > self.bytes())
    }

    fn kind(&self) -> FileType {
        if self.is_device { FileType::BlockDevice } else { FileType::RegularFile }
    }

    /// Gives the image a new length, or, without one, takes note of the length that it has now.
    /// Returns its length in bytes.
    ///
    /// # Errors
    /// When the image cannot have that length.
    pub fn resize(&self, bytes: Option<u64>) -> Result<u64, ImageError> {
        let system = |error: rustix::io::Errno| ImageError::System {
            path: self.path.clone(),
            error: error.into(),
        };
        let Data::Raw(handles) = &self.data else { return self.resize_qcow2(bytes) };
        if let Some(bytes) = bytes {
            self.check_size(bytes)?;
            ftruncate(&handles.buffered, bytes).map_err(system)?;
        }
        let bytes = size(&handles.buffered, self.kind(), self.sector).map_err(system)?;
        if bytes == 0 {
            return Err(ImageError::Empty(self.path.clone()));
        }
        self.bytes.store(bytes, Ordering::Release);
        Ok(bytes)
    }

    fn resize_qcow2(&self, bytes: Option<u64>) -> Result<u64, ImageError> {
        let (Some(bytes), Some(qcow2)) = (bytes, self.qcow2()) else { return Ok(self.bytes()) };
        self.check_size(bytes)?;
        if bytes > qcow2.most_bytes() {
            return Err(ImageError::Size(format!(
                "{} has clusters for {} bytes at most",
                self.path.display(),
                qcow2.most_bytes()
            )));
        }
        let system = |error| ImageError::System { path: self.path.clone(), error };
        qcow2.resize(bytes).map_err(system)?;
        self.bytes.store(bytes, Ordering::Release);
        Ok(bytes)
    }

    fn check_size(&self, bytes: u64) -> Result<(), ImageError> {
        let path = self.path.display();
        let refuse = |reason: String| Err(ImageError::Size(reason));
        if self.is_device {
            return refuse(format!("{path} is a device: change its size, and give none here"));
        }
        if self.read_only {
            return refuse(format!("{path} is read-only"));
        }
        if bytes < self.bytes() {
            return refuse(format!(
                "{path} has {} bytes already: a disk that shrinks loses data",
                self.bytes()
            ));
        }
        if !bytes.is_multiple_of(u64::from(self.sector)) {
            return refuse(format!(
                "{bytes} bytes are no whole number of blocks of {}",
                self.sector
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(path: &Path) -> ImageOptions {
        ImageOptions::new(path.to_owned())
    }

    fn image(bytes: u64) -> (tempfile::NamedTempFile, Image) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let image = Image::open(&options(file.path())).unwrap();
        (file, image)
    }

    #[test]
    fn an_image_has_whole_sectors() {
        let (_file, image) = image(10_000);
        assert_eq!(image.bytes(), 19 * 512);
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(Image::open(&options(empty.path())), Err(ImageError::Empty(_))));
        assert!(matches!(Image::open(&options(Path::new("/dev/null"))), Err(ImageError::Kind(_))));
    }

    #[test]
    fn a_block_has_512_bytes_unless_the_options_say_otherwise() {
        let (file, image) = image(10_000);
        assert_eq!(image.block(), 512);
        assert!(image.physical_block().is_multiple_of(512));
        let options = ImageOptions { sector_size: Some(4096), ..options(file.path()) };
        let image = Image::open(&options).unwrap();
        assert_eq!((image.block(), image.bytes()), (4096, 8192));
        assert!(image.physical_block().is_multiple_of(4096));
        assert!(matches!(image.resize(Some(12_800)), Err(ImageError::Size(_))));
    }

    #[test]
    fn an_image_grows_and_does_not_shrink() {
        let (file, image) = image(1 << 20);
        assert_eq!(image.resize(Some(2 << 20)).unwrap(), 2 << 20);
        assert!(matches!(image.resize(Some(1 << 20)), Err(ImageError::Size(_))));
        assert!(matches!(image.resize(Some((2 << 20) + 100)), Err(ImageError::Size(_))));
        assert!(!image.has_grown());
        file.as_file().set_len(3 << 20).unwrap();
        assert!(image.has_grown());
        assert_eq!((image.resize(None).unwrap(), image.bytes()), (3 << 20, 3 << 20));
    }
}
