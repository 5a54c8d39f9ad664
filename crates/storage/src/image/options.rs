//! The options of an image, and the errors of opening it.

use std::io;
use std::path::PathBuf;

/// Whether requests bypass the host's page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// If the kernel reports the required alignment.
    #[default]
    Auto,
    /// Always; an image that cannot be opened directly is not served.
    Always,
    /// Never.
    Never,
}

/// The format of an image. The format is always given, and never guessed, because a hostile guest
/// with a raw image can write the header of any other format into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The bytes of the disk, one after the other.
    #[default]
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 2] = [Format::Raw, Format::Qcow2];

    /// The name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        }
    }
}

/// The path of an image, and how it is used.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// A file or a block device.
    pub path: PathBuf,
    /// The format of the file.
    pub format: Format,
    /// Folders that may have backing files; `None`: any folder.
    pub folders: Option<Vec<PathBuf>>,
    /// The image is opened read-only.
    pub read_only: bool,
    /// Whether requests bypass the page cache.
    pub direct: Direct,
    /// Bytes of a block, to which requests are aligned: a power of two, 512 or more. `None`: the
    /// block size of a device, or 512 for a file.
    pub sector_size: Option<u32>,
}

impl ImageOptions {
    /// Default options for an image.
    pub fn new(path: PathBuf) -> ImageOptions {
        ImageOptions {
            path,
            format: Format::Raw,
            folders: None,
            read_only: false,
            direct: Direct::Auto,
            sector_size: None,
        }
    }
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
    /// The file system does not support direct requests.
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
    /// The image is locked by another user.
    #[error("{} is locked: another process uses it", .0.display())]
    Locked(PathBuf),
    /// A block device that another user has opened exclusively.
    #[error("{} is in use: it is mounted, or another process has it", .0.display())]
    Busy(PathBuf),
    /// The system refuses something.
    #[error("{}: {error}", .path.display())]
    System {
        /// The image.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The image is not a qcow2 image that can be served.
    #[error("{}: {reason}", .path.display())]
    Qcow2 {
        /// The image, or one of its backing files.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// A new size that the image cannot have.
    #[error("{0}")]
    Size(String),
}

/// The alignment that the kernel requires of requests that bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of addresses in memory, in bytes: a power of two.
    pub(crate) memory: u32,
    /// Alignment of offsets and lengths, in bytes: a power of two.
    pub(crate) offset: u32,
}

impl Alignment {
    /// Alignments of addresses in memory, and of offsets and lengths, in bytes. `None`: they are
    /// not powers of two.
    pub fn new(memory: u32, offset: u32) -> Option<Alignment> {
        let are_powers = memory.is_power_of_two() && offset.is_power_of_two();
        are_powers.then_some(Alignment { memory, offset })
    }

    /// Alignment of offsets and lengths, in bytes.
    pub fn of_offsets(&self) -> u32 {
        self.offset
    }
}
