//! A `[[disk]]` table as it is written, and the description that it makes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use network::poll::PollingPolicy;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use storage::image::Direct;
use toml::Spanned;

use super::access::{SocketGroup, SocketMode, SocketOwner, permissions};
use super::disk::{DIRECT_WORDS, DISK_QUEUES, DiskSpec};
use super::error::ConfigErrors;
use super::port_reader::Place;
use super::port_table::{Name, Queues, Socket};
use super::source::{Problems, Source, VALUE};
use super::value::{FromText, Number, Table, TableName, Text};

/// A `[[disk]]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::config) struct DiskTable {
    name: Option<Spanned<Text<Name>>>,
    kind: Option<Spanned<Text<VhostUser>>>,
    socket: Option<Spanned<Text<Socket>>>,
    socket_mode: Option<Text<SocketMode>>,
    socket_owner: Option<Text<SocketOwner>>,
    socket_group: Option<Text<SocketGroup>>,
    image: Option<Spanned<Text<ImagePath>>>,
    format: Option<Text<Raw>>,
    queues: Option<Number<Queues>>,
    read_only: Option<bool>,
    direct: Option<Text<Direct>>,
    serial: Option<Text<Serial>>,
    polling: Option<Text<PollingPolicy>>,
}

impl TableName for DiskTable {
    const EXPECTED: &'static str = "a list of tables; write [[disk]]";
}

/// The one kind of disk.
#[derive(Clone, Copy, Debug)]
struct VhostUser;

impl FromText for VhostUser {
    fn right() -> String {
        r#""vhost-user""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = (text.replace('_', "-") == "vhost-user").then_some(VhostUser);
        known.ok_or_else(|| format!("{VALUE} is not a kind of disk; give {}", Self::right()))
    }
}

/// The one format of images.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl FromText for Raw {
    fn right() -> String {
        r#""raw""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = (text == "raw").then_some(Raw);
        known.ok_or_else(|| format!("{VALUE} is not a format of images; give {}", Self::right()))
    }
}

/// The path of an image.
#[derive(Clone, Debug)]
struct ImagePath(PathBuf);

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

/// A serial number.
#[derive(Clone, Debug)]
struct Serial(String);

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
}

/// Makes a description of `table`. All that is wrong with it is added to the problems.
pub(super) fn read(
    table: DiskTable,
    place: &Place<'_>,
    taken: &Taken<'_>,
    problems: &mut Problems<'_>,
) -> Option<DiskSpec> {
    let mut reader = Reader { place, problems };
    let name = reader.required("name", table.name);
    let kind = reader.required("kind", table.kind);
    let socket = reader.required("socket", table.socket);
    let image = reader.required("image", table.image);
    if let Some((Name(name), span)) = &name
        && taken.names.contains(&name.as_str())
    {
        reader.add("name", span, format_args!("{VALUE} is another disk's name; give another"));
    }
    if let Some((Socket(socket), span)) = &socket
        && let Some((_, owner)) = taken.sockets.iter().find(|(path, _)| *path == socket)
    {
        reader.add(
            "socket",
            span,
            format_args!("{VALUE} belongs to {owner} already; give another path"),
        );
    }
    let (Name(name), _) = name?;
    kind?;
    Some(DiskSpec {
        serial: table
            .serial
            .map_or_else(|| name.chars().take(20).collect(), |Text(serial)| serial.0),
        name,
        socket: socket?.0.0,
        permissions: permissions(
            table.socket_mode.map(|Text(mode)| mode),
            table.socket_owner.map(|Text(owner)| owner),
            table.socket_group.map(|Text(group)| group),
        ),
        image: image?.0.0,
        queues: table.queues.map_or(DISK_QUEUES, |queues| queues.0),
        read_only: table.read_only.unwrap_or(false),
        direct: table.direct.map_or(Direct::Auto, |Text(direct)| direct),
        policy: table.polling.map(|Text(policy)| policy),
    })
}

struct Reader<'a, 'b> {
    place: &'a Place<'a>,
    problems: &'a mut Problems<'b>,
}

impl Reader<'_, '_> {
    fn add(&mut self, key: &str, span: &Range<usize>, problem: impl ToString) {
        self.problems.add(self.place.path, key, span, problem);
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

impl DiskSpec {
    /// Reads the flags of `ringmain disk add`, by long names without dashes.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub fn from_flags(flags: &Map<String, Json>) -> Result<DiskSpec, ConfigErrors> {
        let nothing = Taken { names: Vec::new(), sockets: Vec::new() };
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
        read_source(&Source::request(object), &Taken { names, sockets })
    }
}

fn read_source(source: &Source, taken: &Taken<'_>) -> Result<DiskSpec, ConfigErrors> {
    let (Table(table), mut problems) = source.read::<Table<DiskTable>>();
    let disk = read(table, &Place { path: "", at: 0 }, taken, &mut problems);
    problems.finish(disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Host};

    const DISK: &str =
        "[[disk]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/run/a\"\nimage = \"/i\"\n";

    fn parse(text: &str) -> Result<Vec<DiskSpec>, String> {
        let config = Config::parse("f", text, &Host { cpus: vec![0] });
        config.map(|config| config.disks).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_disk_has_defaults() {
        let disk = parse(DISK).unwrap().remove(0);
        assert_eq!((disk.queues, disk.read_only, disk.direct), (16, false, Direct::Auto));
        assert_eq!((disk.serial.as_str(), disk.policy), ("a", None));
        let all = "queues = 4\nread-only = true\ndirect = \"off\"\nserial = \"x y\"\n\
                   socket-mode = \"660\"\npolling = \"eco\"\nformat = \"raw\"\n";
        let disk = parse(&format!("{DISK}{all}")).unwrap().remove(0);
        assert_eq!((disk.queues, disk.read_only, disk.direct), (4, true, Direct::Never));
        let again = DiskSpec::from_request(&disk.to_request(), &[], Vec::new()).unwrap();
        assert_eq!(again, disk);
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("serial = \"123456789012345678901\"", "cannot be a serial number"),
            ("format = \"qcow2\"", "is not a format of images"),
            ("direct = \"maybe\"", "give \"auto\", \"on\" or \"off\""),
            ("queues = 0", "out of range"),
            ("read-only = 1", "is not a boolean"),
            ("imgae = \"x\"", "did you mean \"image\"?"),
        ];
        for (line, want) in cases {
            let error = parse(&format!("{DISK}{line}\n")).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let error = parse("[[disk]]\n").unwrap_err();
        assert_eq!(error.lines().count(), 4, "{error}");
    }

    #[test]
    fn names_and_sockets_are_a_disks_own() {
        let error = parse(&format!("{DISK}{DISK}")).unwrap_err();
        assert!(error.contains("another disk's name"), "{error}");
        assert!(error.contains("belongs to disk[0] already"), "{error}");
        let port = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"/run/a\"\n";
        let error = parse(&format!("{port}{DISK}")).unwrap_err();
        assert!(error.contains("belongs to port \"a\" already"), "{error}");
    }
}
