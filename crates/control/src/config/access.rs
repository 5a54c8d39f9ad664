//! The users that may use a socket: mode, owner and group of its file; and users by name.

use rustix::fs::Mode;
use sandbox::{Group, Owner, User};
use unix_socket::Permissions;

use super::source::VALUE;
use super::value::FromText;

/// The mode of a socket's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketMode(pub Mode);

impl FromText for SocketMode {
    fn right() -> String {
        r#"three octal digits, like "660""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let mode = Some(digits).filter(|digits| digits.len() == 3);
        let mode = mode.and_then(|digits| u32::from_str_radix(digits, 8).ok());
        let mode = mode.map(|mode| SocketMode(Mode::from_bits_truncate(mode)));
        mode.ok_or_else(|| format!("{VALUE} is not a mode; give {}", Self::right()))
    }
}

/// The owner of a socket's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketOwner(pub Owner);

impl FromText for SocketOwner {
    fn right() -> String {
        "the name or number of a user".to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        Owner::find(text).map(SocketOwner).map_err(|error| error.to_string())
    }
}

/// The group of a socket's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketGroup(pub Group);

impl FromText for SocketGroup {
    fn right() -> String {
        "the name or number of a group".to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        Group::find(text).map(SocketGroup).map_err(|error| error.to_string())
    }
}

/// The users that may use a socket, as far as a table says.
pub(super) fn permissions(
    mode: Option<SocketMode>,
    owner: Option<SocketOwner>,
    group: Option<SocketGroup>,
) -> Permissions {
    Permissions {
        mode: mode.map(|SocketMode(mode)| mode),
        owner: owner.map(|SocketOwner(owner)| owner.0),
        group: group.map(|SocketGroup(group)| group.0),
    }
}

/// The user that the daemon runs as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RunAs(pub User);

impl FromText for RunAs {
    fn right() -> String {
        SocketOwner::right()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        User::find(text).map(RunAs).map_err(|error| error.to_string())
    }
}
