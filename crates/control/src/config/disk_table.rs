//! A `[[disk]]` table as it is written, and the description that it makes.

use std::ops::{Range, RangeInclusive};
use std::path::{Component, Path, PathBuf};

use network::poll::PollingPolicy;
use serde_json::{Map, Value as Json};
use storage::image::{Direct, Format};
use toml::Spanned;

use super::access::{SocketGroup, SocketMode, SocketOwner, permissions};
use super::amount::BurstBytes;
use super::disk::{DIRECT_WORDS, DISK_QUEUES, DiskKind, DiskSpec};
use super::disk_amount::{ByteRate, Requests};
use super::disk_settings::DiskSettings;
use super::error::ConfigErrors;
use super::key_table::{KeyTable, key_table};
use super::memory_size::MemorySize;
use super::port_reader::Place;
use super::port_table::{Name, Queues, Socket};
use super::setting_keys::{apply, disk_keys};
use super::source::{Problems, Source, VALUE};
use super::value::{Amount, FromText, Limits, Number, Table, TableName, Text};
use super::xen_disks::XenDisksSpec;

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
pub(in crate::config) struct ImageFolder(PathBuf);

impl FromText for ImageFolder {
    fn right() -> String {
        r#"a list of absolute paths, like ["/var/lib/xen/images"]"#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        // Everything below the root is no restriction.
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
pub(in crate::config) struct ImagePath(PathBuf);

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
    /// Those that guests know.
    const ALL: [u16; 2] = [512, 4096];
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
pub(in crate::config) struct Serial(String);

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

/// Names and sockets that a new disk must not take.
pub(super) struct Taken<'a> {
    /// Names of other disks.
    pub names: Vec<&'a str>,
    /// Sockets, each with what errors call its owner.
    pub sockets: Vec<(&'a Path, String)>,
    /// The disks of Xen guests are described already.
    pub xen: bool,
}

/// What a table describes.
pub(super) enum Described {
    /// One disk.
    Disk(DiskSpec),
    /// The disks of Xen guests.
    Xen(XenDisksSpec),
}

/// Makes a description of `table`. All that is wrong with it is added to the problems.
pub(super) fn read(
    mut table: DiskTable,
    place: &Place<'_>,
    taken: &Taken<'_>,
    problems: &mut Problems<'_>,
) -> Option<Described> {
    let mut reader = Reader { place, problems };
    let name = reader.required("name", table.name.take());
    let kind = reader.required("kind", table.kind.take());
    if let Some((Name(name), span)) = &name
        && taken.names.contains(&name.as_str())
    {
        reader.add("name", span, format_args!("{VALUE} is another disk's name; give another"));
    }
    match kind {
        Some((DiskKind::Xen, span)) => {
            if taken.xen {
                let problem = "there is one of kind \"xen\" already, which serves all vbds";
                reader.add("kind", &span, problem);
            }
            reader.xen(name, table).map(Described::Xen)
        }
        Some((DiskKind::VhostUser, _)) => reader.disk(name, table, taken).map(Described::Disk),
        // What else is missing depends on the kind; most are of this one.
        None => reader.disk(name, table, taken).and(None),
    }
}

struct Reader<'a, 'b> {
    place: &'a Place<'a>,
    problems: &'a mut Problems<'b>,
}

impl Reader<'_, '_> {
    fn add(&mut self, key: &str, span: &Range<usize>, problem: impl ToString) {
        self.problems.add(self.place.path, key, span, problem);
    }

    /// One disk over vhost-user.
    fn disk(
        &mut self,
        name: Option<(Name, Range<usize>)>,
        mut table: DiskTable,
        taken: &Taken<'_>,
    ) -> Option<DiskSpec> {
        let mut settings = DiskSettings::default();
        let path = self.place.path;
        apply(&disk_keys(), (&mut table, path), &mut settings, None, self.problems);
        if let Some(images) = &table.images {
            let problem = "a disk of kind \"vhost-user\" has one image; give image instead";
            self.add("images", &images.span(), problem);
        }
        let socket = self.required("socket", table.socket);
        let image = self.required("image", table.image);
        if let Some((Socket(socket), span)) = &socket
            && let Some((_, owner)) = taken.sockets.iter().find(|(path, _)| *path == socket)
        {
            self.add(
                "socket",
                span,
                format_args!("{VALUE} belongs to {owner} already; give another path"),
            );
        }
        let sector_size = table.sector_size.map(|size| (size.span(), size.into_inner().0));
        let odd = sector_size.as_ref().filter(|(_, size)| !SectorSize::ALL.contains(size));
        if let Some((span, _)) = odd {
            let right = SectorSize::right();
            self.add("sector-size", span, format_args!("{VALUE} is out of range; give {right}"));
        }
        let (Name(name), _) = name?;
        Some(DiskSpec {
            serial: inner(table.serial).map_or_else(|| name.chars().take(20).collect(), |it| it.0),
            name,
            socket: socket?.0.0,
            permissions: permissions(
                inner(table.socket_mode),
                inner(table.socket_owner),
                inner(table.socket_group),
            ),
            image: image?.0.0,
            format: inner(table.format).unwrap_or_default(),
            queues: table.queues.map_or(DISK_QUEUES, |queues| queues.into_inner().0),
            read_only: table.read_only.is_some_and(Spanned::into_inner),
            direct: inner(table.direct).unwrap_or_default(),
            sector_size: sector_size.map(|(_, size)| size),
            policy: inner(table.polling),
            settings,
        })
    }

    /// The disks of Xen guests, for which the toolstack says the rest.
    fn xen(
        &mut self,
        name: Option<(Name, Range<usize>)>,
        mut table: DiskTable,
    ) -> Option<XenDisksSpec> {
        let misplaced = [
            ("socket", table.socket.is_some()),
            ("socket-mode", table.socket_mode.is_some()),
            ("socket-owner", table.socket_owner.is_some()),
            ("socket-group", table.socket_group.is_some()),
            ("image", table.image.is_some()),
            ("format", table.format.is_some()),
            ("read-only", table.read_only.is_some()),
            ("sector-size", table.sector_size.is_some()),
            ("serial", table.serial.is_some()),
        ];
        for (key, _) in misplaced.into_iter().filter(|(_, given)| *given) {
            let problem = "the toolstack says that of each disk of kind \"xen\"; leave it out";
            self.add(key, &(self.place.at..self.place.at), problem);
        }
        for (key, span) in table.given() {
            if let Some(problem) = DiskKind::Xen.misplaced(key) {
                self.add(key, &span, format_args!("{problem}; leave it out"));
            }
        }
        let mut settings = DiskSettings::default();
        let path = self.place.path;
        apply(&disk_keys(), (&mut table, path), &mut settings, None, self.problems);
        let Some(images) = table.images else {
            self.problems.add_missing(
                self.place.path,
                "images",
                self.place.at,
                &ImageFolder::right(),
            );
            return None;
        };
        let span = images.span();
        let folders: Vec<PathBuf> =
            images.into_inner().into_iter().map(|Text(ImageFolder(path))| path).collect();
        if folders.is_empty() {
            self.add(
                "images",
                &span,
                format_args!("no image can be used; give {}", ImageFolder::right()),
            );
        }
        let (Name(name), _) = name?;
        Some(XenDisksSpec {
            name,
            folders,
            queues: table.queues.map(|queues| queues.into_inner().0),
            direct: inner(table.direct).unwrap_or_default(),
            policy: inner(table.polling),
            settings,
        })
    }

    /// A value that must be there, and where it stands.
    fn required<T: FromText>(
        &mut self,
        key: &str,
        given: Option<Spanned<Text<T>>>,
    ) -> Option<(T, Range<usize>)> {
        let Some(given) = given else {
            self.problems.add_missing(self.place.path, key, self.place.at, &T::right());
            return None;
        };
        let span = given.span();
        Some((given.into_inner().0, span))
    }
}

/// What was given, without its place.
fn inner<T>(given: Option<Spanned<Text<T>>>) -> Option<T> {
    given.map(|given| given.into_inner().0)
}

impl DiskSpec {
    /// Reads the flags of `ringmain disk add`, by long names without dashes.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub fn from_flags(flags: &Map<String, Json>) -> Result<DiskSpec, ConfigErrors> {
        let nothing = Taken { names: Vec::new(), sockets: Vec::new(), xen: false };
        read_source(&Source::flags(flags), &nothing)
    }

    /// Reads the object of a `disk.add` request: the keys and values of a `[[disk]]` table, in
    /// snake case. The disk must get along with those that are `there`, and with the `sockets` of
    /// others, each with what errors call its owner.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn from_request<'a>(
        object: &Map<String, Json>,
        there: &[&'a DiskSpec],
        mut sockets: Vec<(&'a Path, String)>,
    ) -> Result<DiskSpec, ConfigErrors> {
        let own = |disk: &&'a DiskSpec| (disk.socket.as_path(), format!("disk {:?}", disk.name));
        sockets.extend(there.iter().map(own));
        let names = there.iter().map(|disk| disk.name.as_str()).collect();
        read_source(&Source::request(object), &Taken { names, sockets, xen: false })
    }
}

fn read_source(source: &Source, taken: &Taken<'_>) -> Result<DiskSpec, ConfigErrors> {
    let (Table(table), mut problems) = source.read::<Table<DiskTable>>();
    let span = table.kind.as_ref().map_or(0..0, Spanned::span);
    let disk = match read(table, &Place { path: "", at: 0 }, taken, &mut problems) {
        Some(Described::Disk(disk)) => Some(disk),
        Some(Described::Xen(_)) => {
            let problem = "disks of kind \"xen\" come from the configuration file only";
            problems.add("", "kind", &span, problem);
            None
        }
        None => None,
    };
    problems.finish(disk)
}

#[cfg(test)]
mod tests;
