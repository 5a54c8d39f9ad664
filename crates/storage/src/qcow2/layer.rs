//! An image and its backing files: a read goes down the layers until one of them has the data.
//!
//! Backing files are opened together with the image, read-only, before the daemon drops its
//! privileges. Formats are never guessed: a hostile guest that had a raw image could have written a
//! qcow2 header into it, which names any file of the host as its backing file. So a header must
//! give the format of its backing file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, FileType, fadvise};

use super::header::{Backing, Header};
use super::table::{Found, Tables};
use crate::image::handles::Handles;
use crate::image::options::{Direct, Format, ImageError, ImageOptions};
use crate::image_lock::try_lock_backing;

/// Most files of an image: the image itself, and backing files.
const MOST_LAYERS: usize = 16;

/// Bytes of a page of the page cache.
const PAGE: u64 = 4096;

/// One file of an image.
#[derive(Debug)]
pub(super) struct Layer {
    pub path: PathBuf,
    pub handles: Handles,
    /// The tables; `None`: a raw file.
    pub tables: Option<Tables>,
    /// Length of the layer's disk in bytes, which may grow for the image itself.
    pub bytes: AtomicU64,
    /// Length of the file. Bytes behind it read as zeros.
    pub end: AtomicU64,
}

/// The source of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In the file of this layer, at this position.
    File(usize, u64),
    Zeros,
    /// To be found by the image's thread: in this layer, at this byte of it.
    Elsewhere(usize, u64),
}

pub(super) fn refuse(path: &Path, reason: impl ToString) -> ImageError {
    ImageError::Qcow2 { path: path.to_owned(), reason: reason.to_string() }
}

/// Opens an image, its backing file, and so on.
///
/// # Errors
/// The reason why one of them cannot be used.
pub(super) fn open(options: &ImageOptions) -> Result<(Vec<Layer>, Header), ImageError> {
    let (mut handles, kind, _) = Handles::open(options, false)?;
    if kind != FileType::RegularFile {
        return Err(refuse(&options.path, "a qcow2 image has to be a file, not a device"));
    }
    let header = Header::read(&handles.buffered).map_err(|reason| refuse(&options.path, reason))?;
    if let Some(reason) = header.refusal_to_write().filter(|_| !options.read_only) {
        return Err(refuse(&options.path, reason));
    }
    keep_apart(options, &mut handles, &header)?;
    let mut next = next_of(&options.path, header.backing.as_ref())?;
    let mut layers = vec![Layer::new(&options.path, handles, kind, Some(&header))?];
    while let Some((path, format)) = next.take() {
        if layers.len() == MOST_LAYERS {
            let reason = format!("it has more than {} backing files", MOST_LAYERS - 1);
            return Err(refuse(&options.path, reason));
        }
        let allowed = options.folders.as_ref();
        let inside = |folders: &Vec<PathBuf>| {
            let real = std::fs::canonicalize(&path).ok();
            real.is_some_and(|real| folders.iter().any(|folder| real.starts_with(folder)))
        };
        if !allowed.is_none_or(inside) {
            let reason = format!("its backing file {} is in no folder of images", path.display());
            return Err(refuse(&options.path, reason));
        }
        let file = ImageOptions {
            path: path.clone(),
            read_only: true,
            direct: options.direct,
            ..options.clone()
        };
        let (handles, kind, _) = Handles::open(&file, false)?;
        let header = match format {
            Format::Raw => None,
            Format::Qcow2 => {
                Some(Header::read(&handles.buffered).map_err(|reason| refuse(&path, reason))?)
            }
        };
        next = next_of(&path, header.as_ref().and_then(|header| header.backing.as_ref()))?;
        layers.push(Layer::new(&path, handles, kind, header.as_ref())?);
    }
    Ok((layers, header))
}

/// Keeps direct requests apart from those through the page cache. The kernel reports an error
/// (`EIO`, by the next `fdatasync`) if both meet in one page at the same time, and file systems
/// pass parts of pages through the page cache where there was a hole, as in any new cluster. So a
/// disk whose guest may send parts of pages uses direct requests only if the options require them.
/// A guest with overlapping requests in flight may get errors then.
fn keep_apart(
    options: &ImageOptions,
    handles: &mut Handles,
    header: &Header,
) -> Result<(), ImageError> {
    if handles.direct.is_some() && header.cluster() < PAGE {
        if options.direct == Direct::Always {
            let reason = format!(
                "its clusters of {} bytes are too small for direct I/O; give direct = \"auto\"",
                header.cluster()
            );
            return Err(refuse(&options.path, reason));
        }
        handles.direct = None;
    }
    let whole_pages = options.sector_size.is_some_and(|bytes| u64::from(bytes) >= PAGE);
    if options.direct == Direct::Auto && !whole_pages {
        handles.direct = None;
    }
    if let Some((_, alignment)) = &mut handles.direct {
        alignment.offset = alignment.offset.max(PAGE as u32);
        // Disables read-ahead beyond the requested table.
        let advised = fadvise(&handles.buffered, 0, None, Advice::Random);
        let system = |error: rustix::io::Errno| ImageError::System {
            path: options.path.clone(),
            error: error.into(),
        };
        advised.map_err(system)?;
    }
    Ok(())
}

/// The path and the format of the backing file that the image at `path` names, as QEMU finds it:
/// relative to the folder of that image.
fn next_of(
    path: &Path,
    backing: Option<&Backing>,
) -> Result<Option<(PathBuf, Format)>, ImageError> {
    let Some(Backing { name, format }) = backing else { return Ok(None) };
    let name = name.strip_prefix("file:").unwrap_or(name);
    let is_file = name.find(':').is_none_or(|at| name[..at].contains('/'));
    if !is_file || name.is_empty() || name.contains('\0') {
        return Err(refuse(path, format!("its backing file {name:?} is not a file")));
    }
    let format = match format.as_deref() {
        Some("raw" | "file" | "host_device") => Format::Raw,
        Some("qcow2") => Format::Qcow2,
        Some(other) => {
            let reason = format!("its backing file has format {other:?}, which is not supported");
            return Err(refuse(path, reason));
        }
        None => {
            let reason = format!(
                "it does not say which format its backing file has; run \
                 qemu-img rebase -u -F raw -b {name} {0}, or with -F qcow2",
                path.display()
            );
            return Err(refuse(path, reason));
        }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(Some((folder.join(name), format)))
}

impl Layer {
    fn new(
        path: &Path,
        handles: Handles,
        kind: FileType,
        header: Option<&Header>,
    ) -> Result<Layer, ImageError> {
        let system = |error: io::Error| ImageError::System { path: path.to_owned(), error };
        let end = handles.size(kind).map_err(system)?;
        Ok(Layer {
            path: path.to_owned(),
            handles,
            tables: header.map(Tables::new),
            bytes: AtomicU64::new(header.map_or(end, |header| header.bytes)),
            end: AtomicU64::new(end),
        })
    }

    /// The file, through the page cache.
    pub fn file(&self) -> &File {
        &self.handles.buffered
    }

    /// Locks a backing file against writers, but not against other readers.
    ///
    /// # Errors
    /// When the file has a writer.
    pub fn lock_backing(&self) -> Result<(), ImageError> {
        match try_lock_backing(self.file()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ImageError::Locked(self.path.clone())),
            Err(error) => Err(ImageError::System { path: self.path.clone(), error }),
        }
    }

    /// Reads the L1 table.
    ///
    /// # Errors
    /// When it cannot be read, or has an invalid entry.
    pub fn load_l1(&self, header: &Header) -> Result<(), ImageError> {
        let Some(tables) = &self.tables else { return Ok(()) };
        let system = |error| ImageError::System { path: self.path.clone(), error };
        let (at, entries) = header.l1;
        let mut bytes = vec![0; entries as usize * 8];
        self.file().read_exact_at(&mut bytes, at).map_err(system)?;
        for (index, entry) in words(&bytes).enumerate() {
            let place = entry & super::table::PLACE;
            if !place.is_multiple_of(header.cluster()) {
                return Err(refuse(&self.path, "its L1 table is damaged; run qemu-img check"));
            }
            tables.set_l2_place(index, place);
        }
        Ok(())
    }
}

/// The big-endian words of a table.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes))
}

/// The source of up to `most` bytes from `offset` on, for layer `first` and those below it, and how
/// many bytes are there, at least one.
pub(super) fn source(layers: &[Layer], first: usize, offset: u64, most: u64) -> (Source, u64) {
    let mut most = most;
    for (number, layer) in layers.iter().enumerate().skip(first) {
        let left = layer.bytes.load(Ordering::Acquire).saturating_sub(offset);
        if left == 0 {
            break;
        }
        most = most.min(left);
        let (place, len) = match layer.tables.as_ref().map(|tables| tables.find(offset, most)) {
            None => (offset, most),
            Some((Found::Data(place, _), len)) => (place, len),
            Some((Found::Zeros, len)) => return (Source::Zeros, len),
            Some((Found::Elsewhere, len)) => return (Source::Elsewhere(number, offset), len),
            Some((Found::Unallocated, len)) => {
                most = len;
                continue;
            }
        };
        return match layer.end.load(Ordering::Relaxed).saturating_sub(place) {
            0 => (Source::Zeros, len),
            end => (Source::File(number, place), len.min(end)),
        };
    }
    (Source::Zeros, most)
}
