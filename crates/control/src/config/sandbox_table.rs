//! The `[sandbox]` table: the permissions that the daemon keeps.

use std::path::PathBuf;

use sandbox::{Layer, User};
use serde::Deserialize;

use super::access::RunAs;
use super::source::VALUE;
use super::value::{FromText, TableName, Text};

/// The configuration of the sandbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SandboxSettings {
    /// Whether there is a sandbox at all.
    pub enabled: bool,
    /// The user that the daemon runs as; `None`: the system's user for it.
    pub user: Option<User>,
    /// More folders for sockets and images of ports and disks that are added later.
    pub folders: Vec<PathBuf>,
    /// Permissions that ports which are added later may need beyond those of the configured ports.
    pub live: Vec<LiveNeed>,
    /// Layers that are left out.
    pub without: Vec<Layer>,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        let (folders, live, without) = (Vec::new(), Vec::new(), Vec::new());
        SandboxSettings { enabled: true, user: None, folders, live, without }
    }
}

/// A permission that ports of a kind need, and that the sandbox removes otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveNeed {
    /// Interfaces that the daemon creates.
    Tap,
    /// Sockets of other users.
    Client,
    /// Xen's devices.
    Xen,
    /// Receive queues of network cards.
    DeviceQueue,
    /// Disks.
    Disk,
    /// Overlays.
    Overlay,
}

impl LiveNeed {
    const ALL: [(LiveNeed, &str); 6] = [
        (LiveNeed::Tap, "tap"),
        (LiveNeed::Client, "client"),
        (LiveNeed::Xen, "xen"),
        (LiveNeed::DeviceQueue, "device-queue"),
        (LiveNeed::Disk, "disk"),
        (LiveNeed::Overlay, "overlay"),
    ];
}

impl FromText for LiveNeed {
    fn right() -> String {
        r#""tap", "client", "xen", "device-queue", "disk" or "overlay""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|(_, word)| *word == text);
        let known = known.map(|(need, _)| need);
        known.ok_or_else(|| format!("{VALUE} is not known; give {}", Self::right()))
    }
}

impl FromText for Layer {
    fn right() -> String {
        let names = Layer::ALL.map(Layer::name);
        format!("a layer: {}", names.join(", "))
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let known = Layer::ALL.into_iter().find(|layer| layer.name() == text);
        known.ok_or_else(|| format!("{VALUE} is not a layer; give {}", Self::right()))
    }
}

/// A folder of sockets.
#[derive(Clone, PartialEq, Debug)]
struct Folder(PathBuf);

impl FromText for Folder {
    fn right() -> String {
        r#"an absolute path, like "/run/vms""#.to_owned()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        if !path.is_absolute() || path.parent().is_none() {
            return Err(format!("{VALUE} is not a folder; give {}", Self::right()));
        }
        Ok(Folder(path))
    }
}

/// The table as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SandboxTable {
    enabled: Option<bool>,
    user: Option<Text<RunAs>>,
    folders: Option<Vec<Text<Folder>>>,
    live: Option<Vec<Text<LiveNeed>>>,
    without: Option<Vec<Text<Layer>>>,
}

impl TableName for SandboxTable {
    const EXPECTED: &'static str = "a table; write [sandbox]";
}

/// Reads the table.
pub(super) fn read(table: SandboxTable) -> SandboxSettings {
    let SandboxTable { enabled, user, folders, live, without } = table;
    let all = |list: Option<Vec<Text<Folder>>>| list.unwrap_or_default().into_iter();
    SandboxSettings {
        enabled: enabled.unwrap_or(true),
        user: user.map(|Text(RunAs(user))| user),
        folders: all(folders).map(|Text(Folder(path))| path).collect(),
        live: live.unwrap_or_default().into_iter().map(|Text(need)| need).collect(),
        without: without.unwrap_or_default().into_iter().map(|Text(layer)| layer).collect(),
    }
}
