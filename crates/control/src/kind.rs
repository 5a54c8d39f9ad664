//! The kinds of ports, their names, and their keys of the configuration.
//!
//! `docs/newcomers.md` lists what else a kind consists of.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of attachment of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A guest, over a vhost-user socket.
    #[default]
    VhostUser,
    /// The host, over a TAP interface.
    Tap,
    /// The vifs of this Xen domain.
    Xen,
    /// Processes as guests, of a hypervisor in the daemon.
    Embedded,
    /// Other hosts, over tunnels. No `[[port]]` table has this kind: an `[[overlay]]` creates such
    /// ports.
    Overlay,
}

impl Kind {
    /// All kinds of `[[port]]` tables.
    pub const ALL: [Kind; 4] = [Kind::VhostUser, Kind::Tap, Kind::Xen, Kind::Embedded];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Kind::VhostUser => "vhost-user",
            Kind::Tap => "tap",
            Kind::Xen => "xen",
            Kind::Embedded => "embedded",
            Kind::Overlay => "overlay",
        }
    }

    /// The keys of a `[[port]]` table that this kind has and that not every kind has.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::VhostUser => &[
                "socket",
                "socket-mode",
                "socket-owner",
                "socket-group",
                "mode",
                "mac",
                "vlan",
                "trunk",
                "mtu",
                "interrupt-frames",
                "interrupt-microseconds",
                "memory",
            ],
            Kind::Tap => &["device", "mac", "vlan", "trunk", "mtu"],
            Kind::Xen => &["interrupt-frames", "interrupt-microseconds", "cache", "align"],
            Kind::Embedded => &[
                "socket",
                "socket-mode",
                "socket-owner",
                "socket-group",
                "mac",
                "vlan",
                "trunk",
                "mtu",
                "interrupt-frames",
                "interrupt-microseconds",
                "cache",
                "align",
                "device-queue",
                "copy",
                "grants",
            ],
            Kind::Overlay => &[],
        }
    }

    /// Whether ports of this kind have a key of the `[[port]]` table. A key that is listed for no
    /// kind is one of every kind.
    pub fn has_key(self, key: &str) -> bool {
        let lists = |kind: Kind| kind.keys().contains(&key);
        lists(self) || !Kind::ALL.into_iter().any(lists)
    }

    /// Whether a port of this kind can be a mirror. A port that stands for others cannot.
    pub fn can_mirror(self) -> bool {
        match self {
            Kind::VhostUser | Kind::Tap => true,
            Kind::Xen | Kind::Embedded | Kind::Overlay => false,
        }
    }

    /// Whether frames are copied by grants there.
    pub fn has_grants(self) -> bool {
        self.has_key("cache")
    }

    /// Pages of a guest that stay mapped by default. `ringmain guest` names 768 for each of its
    /// queues, and guests of Xen name none.
    pub fn default_cache(self) -> u16 {
        match self {
            Kind::Embedded => 8192,
            Kind::VhostUser | Kind::Tap | Kind::Xen | Kind::Overlay => 0,
        }
    }

    /// The names of some kinds, as one quotes a choice: `"tap" or "xen"`.
    pub fn choice(kinds: impl Iterator<Item = Kind>) -> String {
        let mut names: Vec<String> = kinds.map(|kind| format!("{:?}", kind.name())).collect();
        match names.pop() {
            Some(last) if !names.is_empty() => format!("{} or {last}", names.join(", ")),
            last => last.unwrap_or_default(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
