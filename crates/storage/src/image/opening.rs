//! Opening images, and the kernel's properties of an open one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, SeekFrom, StatxFlags, fallocate, fcntl_getfl,
    fcntl_setfl, fstat, fstatfs, seek, statx,
};

use super::options::{Alignment, Direct, ImageError, ImageOptions};

/// The alignment of requests if the kernel does not report one: a page, the most that it requires.
const PAGE: u32 = 4096;

/// Whether the kernel takes a request directly. Alignments are powers of two, so no division is
/// needed.
pub(super) fn is_aligned(align: Alignment, offset: u64, pieces: &[libc::iovec]) -> bool {
    let (memory, unit) = (align.memory as usize - 1, align.offset as usize - 1);
    let fits = |piece: &libc::iovec| (piece.iov_base.addr() & memory) | (piece.iov_len & unit) == 0;
    offset & unit as u64 == 0 && pieces.iter().all(fits)
}

/// Opens the image through the page cache. Returns its file and type. `exclusive`: a writable block
/// device cannot be opened exclusively or mounted by others then.
pub(super) fn open(
    options: &ImageOptions,
    exclusive: bool,
) -> Result<(File, FileType), ImageError> {
    let is_device =
        std::fs::metadata(&options.path).is_ok_and(|found| found.file_type().is_block_device());
    let flags = match exclusive && !options.read_only && is_device {
        true => OFlags::EXCL,
        false => OFlags::empty(),
    };
    open_with(options, flags)
}

/// Opens the image. Files that could block are not opened.
fn open_with(options: &ImageOptions, flags: OFlags) -> Result<(File, FileType), ImageError> {
    let path = &options.path;
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::EBUSY) => ImageError::Busy(path.clone()),
        _ => ImageError::Open { path: path.clone(), error },
    };
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
    // With the non-blocking flag, requests would fail instead of waiting.
    let unblocked =
        fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
    unblocked.map_err(|error| failed(error.into()))?;
    Ok((file, kind))
}

/// Opens the image for direct requests, according to the options. `logical`: bytes of a device's
/// logical block.
pub(super) fn open_direct(
    options: &ImageOptions,
    logical: Option<u32>,
) -> Result<Option<(File, Alignment)>, ImageError> {
    let opened = match options.direct {
        Direct::Never => return Ok(None),
        Direct::Auto | Direct::Always => open_with(options, OFlags::DIRECT),
    };
    // Before STATX_DIOALIGN, the logical block was the only known requirement of a device.
    let of_device = logical.and_then(|logical| Alignment::new(logical, logical));
    let aligned = opened.map(|(file, _)| {
        let align = alignment(&file).or(of_device);
        (file, align)
    });
    match (options.direct, aligned) {
        (Direct::Always, Ok((file, align))) => {
            let align = align.or_else(|| Alignment::new(PAGE, PAGE));
            Ok(align.map(|align| (file, align)))
        }
        (Direct::Always, Err(ImageError::Open { error, .. })) => {
            Err(ImageError::Direct { path: options.path.clone(), error })
        }
        (Direct::Always, Err(error)) => Err(error),
        (_, aligned) => Ok(aligned.ok().and_then(|(file, align)| align.map(|align| (file, align)))),
    }
}

/// The kernel's requirements for direct requests to this file; `None`: they are unknown.
fn alignment(file: &File) -> Option<Alignment> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let said = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    Alignment::new(stat.stx_dio_mem_align, stat.stx_dio_offset_align).filter(|_| said)
}

/// Bytes of the whole blocks.
pub(super) fn size(file: &File, kind: FileType, block: u32) -> rustix::io::Result<u64> {
    let bytes = match kind {
        // This gives the same number as BLKGETSIZE64, which the sandbox does not allow for all
        // devices.
        FileType::BlockDevice => seek(file, SeekFrom::End(0))?,
        _ => fstat(file)?.st_size as u64,
    };
    Ok(bytes - bytes % u64::from(block.max(1)))
}

/// Whether the file stays in memory: its file system has no drive, and the host has no swap. The
/// contents of a device are not in memory, although its node may be in such a file system (`/dev`).
pub(super) fn is_in_memory(file: &File, kind: FileType) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    let is_tmpfs = || fstatfs(file).is_ok_and(|found| found.f_type as u32 == TMPFS);
    kind == FileType::RegularFile && is_tmpfs() && rustix::system::sysinfo().totalswap == 0
}

/// Whether the file system can free the space of a range. Tested with a range behind the end.
pub(super) fn punches_holes(file: &File, bytes: u64) -> bool {
    let at = bytes.next_multiple_of(PAGE.into());
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, mode, at, PAGE.into()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_of_addresses_offsets_and_lengths() {
        let align = Alignment::new(4, 512).unwrap();
        let piece = |at: usize, len| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(at),
            iov_len: len,
        };
        assert!(is_aligned(align, 1024, &[piece(4, 512), piece(8, 1024)]));
        assert!(!is_aligned(align, 100, &[piece(4, 512)]));
        assert!(!is_aligned(align, 0, &[piece(2, 512)]));
        assert!(!is_aligned(align, 0, &[piece(4, 512), piece(8, 511)]));
    }

    #[test]
    fn a_device_is_not_in_memory_though_its_name_is() {
        let kind = |file: &File| FileType::from_raw_mode(fstat(file).unwrap().st_mode);
        let device = File::open("/dev/null").unwrap();
        assert!(!is_in_memory(&device, kind(&device)));
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = File::create(folder.path().join("image")).unwrap();
        let no_swap = rustix::system::sysinfo().totalswap == 0;
        assert_eq!(is_in_memory(&file, kind(&file)), no_swap);
    }
}
