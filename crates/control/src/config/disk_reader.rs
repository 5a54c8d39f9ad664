//! The description in a `[[disk]]` table.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use toml::Spanned;

use super::access::permissions;
use super::disk::{DISK_QUEUES, DiskKind, DiskSpec};
use super::disk_settings::DiskSettings;
use super::disk_table::{DiskTable, ImageFolder, SectorSize};
use super::error::ConfigErrors;
use super::key_table::KeyTable;
use super::port_table::{Name, Socket};
use super::setting_keys::{Known, apply, disk_keys};
use super::source::{Place, Problems, Source, VALUE};
use super::value::{FromText, Limits, Table, Text};
use super::xen_disks::XenDisksSpec;

/// Names and sockets that a new disk must not take.
pub(super) struct Taken<'a> {
    /// Names of other disks.
    pub names: Vec<&'a str>,
    /// Sockets, each with what errors call its owner.
    pub sockets: Vec<(&'a Path, String)>,
    /// Whether the disks of Xen guests are described already.
    pub xen: bool,
}

/// The object that a table describes.
pub(super) enum Described {
    /// One disk.
    Disk(DiskSpec),
    /// The disks of Xen guests.
    Xen(XenDisksSpec),
}

/// Makes a description of `table`. All mistakes are added to the problems.
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
        // The other required keys depend on the kind, and most disks are of this one.
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
        apply(&disk_keys(), (&mut table, path), &mut settings, Known::default(), self.problems);
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

    /// The disks of Xen guests, for which the toolstack gives the rest.
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
        apply(&disk_keys(), (&mut table, path), &mut settings, Known::default(), self.problems);
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

    /// A required value, and its place.
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

/// The given value, without its place.
fn inner<T>(given: Option<Spanned<Text<T>>>) -> Option<T> {
    given.map(|given| given.into_inner().0)
}

impl DiskSpec {
    /// Reads the flags of `ringmain disk add`, by long names without dashes.
    ///
    /// # Errors
    /// All problems of the flags.
    pub fn from_flags(flags: &Map<String, Json>) -> Result<DiskSpec, ConfigErrors> {
        let nothing = Taken { names: Vec::new(), sockets: Vec::new(), xen: false };
        read_source(&Source::flags(flags), &nothing)
    }

    /// Reads the object of a `disk.add` request: the keys and values of a `[[disk]]` table, in
    /// snake case. The disk must not conflict with the disks in `there`, nor with the `sockets` of
    /// others, each with its owner's name in errors.
    ///
    /// # Errors
    /// All problems of the request.
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
