//! The kinds of ports.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a port attaches to.
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
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::VhostUser, Kind::Tap, Kind::Xen, Kind::Embedded];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Kind::VhostUser => "vhost-user",
            Kind::Tap => "tap",
            Kind::Xen => "xen",
            Kind::Embedded => "embedded",
        }
    }

    /// Whether frames are copied by grants there.
    pub fn has_grants(self) -> bool {
        matches!(self, Kind::Xen | Kind::Embedded)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
