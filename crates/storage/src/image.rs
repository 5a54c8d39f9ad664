//! Images: raw files and block devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, SeekFrom, StatxFlags, fallocate, fcntl_getfl,
    fcntl_setfl, fstat, ftruncate, seek, statx,
};

use crate::command::SECTOR;
use crate::image_lock::{Part, try_lock};

/// How long an image's lock is waited for: as long as requests of a process that was killed take.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

/// Alignment of requests where the kernel does not tell one: a page, the most that it asks for.
const PAGE: u32 = 4096;

/// Whether the page cache of the host is passed by (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the kernel says which requests the file takes then.
    #[default]
    Auto,
    /// Always; an image that cannot be opened so is not served.
    Always,
    /// Never.
    Never,
}

/// Which image, and how it is used.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// A file or a block device.
    pub path: PathBuf,
    /// Nothing may change.
    pub read_only: bool,
    /// Whether the page cache is passed by.
    pub direct: Direct,
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image cannot be opened.
    #[error("cannot open {}: {error}", .path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The image is neither a file nor a block device.
    #[error("{} is neither a file nor a block device", .0.display())]
    Kind(PathBuf),
    /// The file system does not pass the page cache by.
    #[error("{} does not take direct I/O: {error}; give direct = \"auto\"", .path.display())]
    Direct {
        /// The image.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The image has no whole sector.
    #[error("{} is empty; give it a size first (truncate -s 10G)", .0.display())]
    Empty(PathBuf),
    /// Somebody else uses it.
    #[error("{} is locked: another process uses it", .0.display())]
    Locked(PathBuf),
    /// The system refuses something.
    #[error("{}: {error}", .path.display())]
    System {
        /// The image.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A new size that the image cannot have.
    #[error("{0}")]
    Size(String),
}

/// The alignment that the kernel requires of requests that bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of addresses in memory, in bytes.
    pub memory: u32,
    /// Alignment of offsets and lengths, in bytes.
    pub offset: u32,
}

/// An image that is open. Locked by [`lock`](Self::lock).
///
/// An image that passes the page cache by is open twice: requests that the kernel does not take
/// directly, because they are not aligned, go through the page cache. The kernel keeps both ways
/// coherent.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    buffered: File,
    direct: Option<(File, Alignment)>,
    read_only: bool,
    is_device: bool,
    discards: bool,
    block: u32,
    bytes: AtomicU64,
}

impl Image {
    /// Opens an image.
    ///
    /// # Errors
    /// When there is none that can be used so.
    pub fn open(options: &ImageOptions) -> Result<Image, ImageError> {
        let path = &options.path;
        let (buffered, kind) = open(options, OFlags::empty())?;
        let direct = match options.direct {
            Direct::Never => None,
            Direct::Auto => open_direct(options).ok().flatten(),
            Direct::Always => Some(always_direct(options)?),
        };
        let system = |error: rustix::io::Errno| ImageError::System {
            path: path.clone(),
            error: error.into(),
        };
        let bytes = size(&buffered, kind).map_err(system)?;
        if bytes == 0 {
            return Err(ImageError::Empty(path.clone()));
        }
        let is_device = kind == FileType::BlockDevice;
        let block = direct.as_ref().map_or(SECTOR as u32, |(_, align)| align.offset);
        Ok(Image {
            path: path.clone(),
            discards: !options.read_only && (is_device || punches_holes(&buffered, bytes)),
            buffered,
            direct,
            read_only: options.read_only,
            is_device,
            block: block.clamp(SECTOR as u32, PAGE),
            bytes: AtomicU64::new(bytes),
        })
    }

    /// Locks the image until it is closed and its last request has ended. Waits a second for a
    /// process that was killed.
    ///
    /// # Errors
    /// When somebody else has locked it.
    pub fn lock(&self) -> Result<(), ImageError> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match self.lock_now() {
                Err(ImageError::Locked(_)) if Instant::now() < until => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                outcome => return outcome,
            }
        }
    }

    /// Locks the image without waiting.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub fn lock_now(&self) -> Result<(), ImageError> {
        match self.try_lock() {
            Ok(true) => Ok(()),
            Ok(false) => Err(ImageError::Locked(self.path.clone())),
            Err(error) => Err(ImageError::System { path: self.path.clone(), error }),
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        let shared = self.read_only;
        let first = try_lock(&self.buffered, Part::First, shared)?;
        match &self.direct {
            Some((file, _)) if first => try_lock(file, Part::Second, shared),
            _ => Ok(first),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes, a whole number of sectors.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing may change.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the page cache is passed by, and what the kernel asks of requests then.
    pub fn alignment(&self) -> Option<Alignment> {
        self.direct.as_ref().map(|(_, alignment)| *alignment)
    }

    /// Bytes of a block: requests of whole blocks are carried out without the page cache, where it
    /// is passed by at all.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Whether discards free space.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// The file for a request of `pieces` from byte `offset` on, and whether that passes the page
    /// cache by.
    pub(crate) fn file(&self, offset: u64, pieces: &[libc::iovec]) -> (BorrowedFd<'_>, bool) {
        match &self.direct {
            Some((file, align)) if is_aligned(*align, offset, pieces) => (file.as_fd(), true),
            _ => (self.buffered.as_fd(), false),
        }
    }

    /// The file for requests without data.
    pub(crate) fn whole(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// Makes all completed writes stable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> io::Result<()> {
        self.buffered.sync_data()
    }

    /// Whether the file or the device has become longer than the disk.
    pub fn has_grown(&self) -> bool {
        size(&self.buffered, self.kind()).is_ok_and(|bytes| bytes > self.bytes())
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
        if let Some(bytes) = bytes {
            self.check_size(bytes)?;
            ftruncate(&self.buffered, bytes).map_err(system)?;
        }
        let bytes = size(&self.buffered, self.kind()).map_err(system)?;
        if bytes == 0 {
            return Err(ImageError::Empty(self.path.clone()));
        }
        self.bytes.store(bytes, Ordering::Relaxed);
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
        if !bytes.is_multiple_of(u64::from(self.block)) {
            return refuse(format!(
                "{bytes} bytes are no whole number of blocks of {}",
                self.block
            ));
        }
        Ok(())
    }
}

/// Whether the kernel takes a request directly.
fn is_aligned(align: Alignment, offset: u64, pieces: &[libc::iovec]) -> bool {
    let (memory, unit) = (align.memory as usize, align.offset as usize);
    let fits = |piece: &libc::iovec| {
        piece.iov_base.addr().is_multiple_of(memory) && piece.iov_len.is_multiple_of(unit)
    };
    offset.is_multiple_of(unit as u64) && pieces.iter().all(fits)
}

/// Opens the image, and says what it is. Nothing that blocks is opened.
fn open(options: &ImageOptions, flags: OFlags) -> Result<(File, FileType), ImageError> {
    let path = &options.path;
    let failed = |error: io::Error| ImageError::Open { path: path.clone(), error };
    let flags = (flags | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(flags as i32)
        .open(path)
        .map_err(failed)?;
    let kind = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let kind = kind.map_err(|error| failed(error.into()))?;
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(ImageError::Kind(path.clone()));
    }
    // Requests would fail where they would have to wait.
    let unblocked =
        fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
    unblocked.map_err(|error| failed(error.into()))?;
    Ok((file, kind))
}

/// Opens the image past the page cache. `None`: the kernel does not say what it takes then.
fn open_direct(options: &ImageOptions) -> Result<Option<(File, Alignment)>, ImageError> {
    let (file, _) = open(options, OFlags::DIRECT)?;
    let asked = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let stat = asked.ok().filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let align = stat.map(|stat| Alignment {
        memory: stat.stx_dio_mem_align,
        offset: stat.stx_dio_offset_align,
    });
    Ok(align.filter(|align| align.memory > 0 && align.offset > 0).map(|align| (file, align)))
}

fn always_direct(options: &ImageOptions) -> Result<(File, Alignment), ImageError> {
    let refused = |error| ImageError::Direct { path: options.path.clone(), error };
    match open_direct(options) {
        Ok(Some(direct)) => Ok(direct),
        Ok(None) => {
            let (file, _) = open(options, OFlags::DIRECT)?;
            Ok((file, Alignment { memory: PAGE, offset: PAGE }))
        }
        Err(ImageError::Open { error, .. }) => Err(refused(error)),
        Err(error) => Err(error),
    }
}

/// Bytes of the whole sectors.
fn size(file: &File, kind: FileType) -> rustix::io::Result<u64> {
    let bytes = match kind {
        FileType::BlockDevice => seek(file, SeekFrom::End(0))?,
        _ => fstat(file)?.st_size as u64,
    };
    Ok(bytes - bytes % SECTOR)
}

/// Whether the file system gives back the space of a range. Asked of a range behind the end.
fn punches_holes(file: &File, bytes: u64) -> bool {
    let at = bytes.next_multiple_of(PAGE.into());
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, mode, at, PAGE.into()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(path: &Path) -> ImageOptions {
        ImageOptions { path: path.to_owned(), read_only: false, direct: Direct::Auto }
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
    fn a_second_opener_is_refused() {
        let (file, first) = image(1 << 20);
        first.lock().unwrap();
        let second = Image::open(&options(file.path())).unwrap();
        assert!(matches!(second.lock(), Err(ImageError::Locked(_))));
        let read_only = ImageOptions { read_only: true, ..options(file.path()) };
        let reader = Image::open(&read_only).unwrap();
        assert!(matches!(reader.lock(), Err(ImageError::Locked(_))));
        drop(first);
        reader.lock().unwrap();
        Image::open(&read_only).unwrap().lock().unwrap();
        assert!(matches!(second.lock(), Err(ImageError::Locked(_))));
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

    #[test]
    fn alignment_is_of_addresses_offsets_and_lengths() {
        let align = Alignment { memory: 4, offset: 512 };
        let piece = |at: usize, len| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(at),
            iov_len: len,
        };
        assert!(is_aligned(align, 1024, &[piece(4, 512), piece(8, 1024)]));
        assert!(!is_aligned(align, 100, &[piece(4, 512)]));
        assert!(!is_aligned(align, 0, &[piece(2, 512)]));
        assert!(!is_aligned(align, 0, &[piece(4, 512), piece(8, 511)]));
    }
}
