//! Messages between the two processes.
//!
//! A change of anything here, or of the state of ports, that an earlier daemon would misunderstand
//! is another [`FORMAT`].

use serde::{Deserialize, Serialize};
use vhost_user::transport::saved::{FileNumber, Positions, SavedListener, SavedServer};

use crate::api::Counts;

/// The format of the state.
pub(crate) const FORMAT: u32 = 1;

/// What the taker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FromTaker {
    /// The list is right, and workers run: the state may come.
    Prepare,
    /// All state is in place: positions may come.
    Ready,
    /// The rings belong to this process.
    Taken,
}

/// What the giver says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum FromGiver {
    /// The daemon's own listening sockets.
    Sockets {
        /// The control socket.
        control: SavedListener,
        /// The listener of metrics; its file is zero for a TCP address.
        metrics: Option<SavedListener>,
    },
    /// One port.
    Port {
        /// Its name.
        name: String,
        /// Its state.
        state: Box<SavedPort>,
    },
    /// The addresses that were learned. No more comes for now.
    Addresses(Vec<SavedAddress>),
    /// Where the rings of all ports stand, by the ports' names.
    Positions {
        /// The positions.
        ports: Vec<(String, PausedPort)>,
        /// The monotonic clock when the first queue stopped, in nanoseconds.
        since: u64,
    },
    /// The giver goes on, for this reason.
    Refused(String),
}

/// The state of a port.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SavedPort {
    VhostUser(Box<SavedServer>),
    Tap {
        /// The descriptors of the queues, in their order.
        queues: Vec<FileNumber>,
    },
}

/// What changes in a port until its queues stop.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PausedPort {
    /// Positions of vrings.
    pub positions: Positions,
    /// What was counted on the queues.
    pub counts: Vec<Counts>,
    /// Lengths of frames that queues of the host have read and not delivered, by queue.
    pub frames: Vec<Vec<u32>>,
    /// The bytes of these frames. They travel beside the message, those of all ports in their order.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl PausedPort {
    /// Bytes of the frames.
    pub fn len(&self) -> usize {
        self.frames.iter().flatten().map(|len| *len as usize).sum()
    }
}

/// An address that was learned.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedAddress {
    pub vlan: Option<u16>,
    pub mac: [u8; 6],
    pub port: String,
}
