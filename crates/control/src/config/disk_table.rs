//! A `[[disk]]` table as written.

use std::ops::RangeInclusive;
use std::path::{Component, PathBuf};

use network::poll::PollingPolicy;
use storage::image::{Direct, Format};

use super::access::{SocketGroup, SocketMode, SocketOwner};
use super::amount::BurstBytes;
use super::disk::{DIRECT_WORDS, DiskKind};
use super::disk_amount::{ByteRate, Requests};
use super::key_table::key_table;
use super::memory_size::MemorySize;
use super::port_table::{Name, Queues, Socket};
use super::source::VALUE;
use super::value::{Amount, FromText, Limits, Number, TableName, Text};

key_table! {
    /// A `[[disk]]` table.
    DiskTable {
        "name" name: Text<Name>,
        "kind" kind: Text<DiskKind>,
        "socket" socket: Text<Socket>,
        "socket-mode" socket_mode: Text<SocketMode>,
        "socket-owner" socket_owner: Text<SocketOwner>,
        "socket-group" socket_group: Text<SocketGroup>,
        "image" image: Text<ImagePath>,
        "format" format: Text<Format>,
        "queues" queues: Number<Queues>,
        "read-only" read_only: bool,
        "direct" direct: Text<Direct>,
        "sector-size" sector_size: Number<SectorSize>,
        "serial" serial: Text<Serial>,
        "polling" polling: Text<PollingPolicy>,
        "images" images: Vec<Text<ImageFolder>>,
        "iops" iops: Amount<Requests>,
        "iops-burst" iops_burst: Amount<Requests>,
        "bandwidth" bandwidth: Amount<ByteRate>,
        "bandwidth-burst" bandwidth_burst: Amount<BurstBytes>,
        "memory" memory: Text<MemorySize>,
    }
}

impl TableName for DiskTable {
    const EXPECTED: &'static str = "a list of tables; write [[disk]]";
}

impl FromText for DiskKind {
    fn right() -> String {
        r#""vhost-user" or "xen""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = DiskKind::ALL.into_iter().find(|kind| kind.name() == text.replace('_', "-"));
        known.ok_or_else(|| format!("{VALUE} is not a kind of disk; give {}", Self::right()))
    }
}

/// A folder of images.
#[derive(Clone, Debug)]
pub(in crate::config) struct ImageFolder(pub(super) PathBuf);

impl FromText for ImageFolder {
    fn right() -> String {
        r#"a list of absolute paths, like ["/var/lib/xen/images"]"#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        // The root folder would be no restriction.
        match path.is_absolute() && path.parent().is_some() && path.components().all(plain) {
            true => Ok(ImageFolder(path)),
            false => Err(format!("{VALUE} is not a folder of images; give {}", Self::right())),
        }
    }
}

impl FromText for Format {
    fn right() -> String {
        r#""raw" or "qcow2""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = Format::ALL.into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| format!("{VALUE} is not a format of images; give {}", Self::right()))
    }
}

/// The path of an image.
#[derive(Clone, Debug)]
pub(in crate::config) struct ImagePath(pub(super) PathBuf);

impl FromText for ImagePath {
    fn right() -> String {
        r#"the path of a file or a block device, like "/var/lib/images/vm.raw""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        match text.is_empty() || text.contains('\0') || text.ends_with('/') {
            true => Err(format!("{VALUE} is not an image; give {}", Self::right())),
            false => Ok(ImagePath(text.into())),
        }
    }
}

impl FromText for Direct {
    fn right() -> String {
        r#""auto", "on" or "off""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = DIRECT_WORDS.into_iter().find(|(word, _)| *word == text);
        known
            .map(|(_, direct)| direct)
            .ok_or_else(|| format!("{VALUE} is not known; give {}", Self::right()))
    }
}

/// Bytes of a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::config) struct SectorSize;

impl SectorSize {
    /// The sizes that guests know.
    pub(super) const ALL: [u16; 2] = [512, 4096];
}

impl Limits for SectorSize {
    const RANGE: RangeInclusive<u16> = 512..=4096;

    fn right() -> String {
        let [small, large] = Self::ALL;
        format!("{small} or {large}")
    }
}

/// A serial number.
#[derive(Clone, Debug)]
pub(in crate::config) struct Serial(pub(super) String);

impl FromText for Serial {
    fn right() -> String {
        "1 to 20 printable ASCII characters".to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        match plain && (1..=20).contains(&text.len()) {
            true => Ok(Serial(text.to_owned())),
            false => Err(format!("{VALUE} cannot be a serial number; give {}", Self::right())),
        }
    }
}
