//! Messages between the two processes.
//!
//! A change here, or in the state of ports, that an earlier daemon would misunderstand requires
//! another [`FORMAT`].

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use vhost_user::transport::saved::{FileNumber, Positions, SavedListener, SavedServer};

use crate::api::Counts;

/// The format of the state.
pub(crate) const FORMAT: u32 = 2;

/// A message of the taker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FromTaker {
    /// The list fits, and workers run: the giver may send the state.
    Prepare,
    /// All state is in place: the giver may send the positions.
    Ready,
    /// The rings belong to this process.
    Taken,
}

/// A message of the giver.
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
    /// What was learned of stations. The message ends the state.
    Stations {
        /// The learned stations.
        learned: Vec<SavedStation>,
        /// The IP addresses that stations were heard to have.
        addresses: Vec<SavedAddresses>,
    },
    /// The positions of the rings of all ports, by the ports' names.
    Positions {
        /// The positions.
        ports: Vec<(String, PausedPort)>,
        /// The monotonic clock when the first queue stopped, in nanoseconds.
        since: u64,
    },
    /// The giver refuses and continues, for this reason.
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

/// The state of a port that changes until its queues stop.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PausedPort {
    /// Positions of vrings.
    pub positions: Positions,
    /// The counts of the queues.
    pub counts: Vec<Counts>,
    /// Lengths of frames that queues of the host have read and not delivered, by queue.
    pub frames: Vec<Vec<u32>>,
    /// The bytes of these frames. They are sent beside the message, in the order of the ports.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl PausedPort {
    /// Bytes of the frames.
    pub fn len(&self) -> usize {
        self.frames.iter().flatten().map(|len| *len as usize).sum()
    }
}

/// A station, and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedStation {
    pub vlan: Option<u16>,
    pub mac: [u8; 6],
    pub port: String,
}

/// IP addresses that a station was heard to have.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedAddresses {
    pub station: SavedStation,
    pub addresses: Vec<IpAddr>,
}
