//! The state of a server and its connection, as one process hands it to another.
//!
//! Descriptors travel beside the state, in a list; the state has their numbers in that list. A
//! process that takes over state checks it as it checks messages of a front-end, because hostile
//! guests could reach the former process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of a descriptor in the list that travels beside the state.
pub type FileNumber = u32;

/// Why state cannot be handed over or taken over.
#[derive(Debug, Error)]
pub enum HandOverError {
    /// The guest is migrating to another host.
    #[error("its guest is being migrated; wait until that has ended")]
    Migrates,
    /// The server was busy for too long.
    #[error("its thread does not answer")]
    Busy,
    /// The system refused.
    #[error("{0}")]
    Os(#[from] io::Error),
    /// The state contradicts itself or this process.
    #[error("the state is not usable: {0}")]
    Unusable(String),
}

/// Descriptors that travel beside state.
#[derive(Debug, Default)]
pub struct Files(Vec<Option<OwnedFd>>);

impl Files {
    /// The descriptors that came beside state.
    pub fn new(files: Vec<OwnedFd>) -> Files {
        Files(files.into_iter().map(Some).collect())
    }

    /// Adds a duplicate of a descriptor. Returns its number.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn add(&mut self, file: impl AsFd) -> io::Result<FileNumber> {
        self.0.push(Some(file.as_fd().try_clone_to_owned()?));
        Ok(self.0.len() as FileNumber - 1)
    }

    /// Takes a descriptor out, once.
    ///
    /// # Errors
    /// When there is none of this number.
    pub fn take(&mut self, number: FileNumber) -> Result<OwnedFd, HandOverError> {
        let file = self.0.get_mut(number as usize).and_then(Option::take);
        file.ok_or_else(|| HandOverError::Unusable(format!("descriptor {number} is missing")))
    }

    /// All descriptors, in the order of their numbers.
    pub fn into_inner(self) -> Vec<OwnedFd> {
        self.0.into_iter().flatten().collect()
    }
}

/// A server and its connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedServer {
    /// The listening socket; `None`: this side connects.
    pub listener: Option<SavedListener>,
    /// The front-end; `None`: none is connected.
    pub connection: Option<SavedConnection>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were ended because the front-end broke the protocol.
    pub violations: u64,
    /// Messages so far that waited for the port's budget.
    pub control_delayed: u64,
    /// Vrings so far that did not show their position.
    pub unclear: u64,
    /// Vrings so far that continued at the position that they showed.
    pub recovered: u64,
}

/// A listening socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedListener {
    /// The socket.
    pub socket: FileNumber,
    /// Device and number of its file.
    pub file: (u64, u64),
}

/// A connection, its incomplete messages, and the state that its front-end has set.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedConnection {
    /// The connected socket.
    pub socket: FileNumber,
    /// Bytes of a message that has not come whole.
    pub incoming: Vec<u8>,
    /// Descriptors that came with these bytes.
    pub incoming_files: Vec<FileNumber>,
    /// Bytes that the front-end has not taken yet.
    pub outgoing: Vec<u8>,
    /// The descriptor beside the first of them.
    pub outgoing_file: Option<FileNumber>,
    /// The state that the front-end has set.
    pub session: SavedSession,
}

/// The state that a front-end has set.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSession {
    /// Virtio features in use.
    pub features: u64,
    /// Protocol features in use.
    pub protocol: u64,
    /// Regions of the guest's memory.
    pub regions: Vec<SavedRegion>,
    /// Memory for in-flight records.
    pub inflight: Option<SavedInflight>,
    /// The socket on which the front-end reads requests of this side.
    pub backend_channel: Option<FileNumber>,
    /// The vrings, in the order of their numbers.
    pub vrings: Vec<SavedVring>,
}

/// A region of a guest's memory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRegion {
    /// Guest physical address.
    pub guest_addr: u64,
    /// Bytes.
    pub len: u64,
    /// Where the front-end has it mapped.
    pub user_addr: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file.
    pub file: FileNumber,
}

/// Memory for in-flight records.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedInflight {
    /// Bytes.
    pub len: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Rings.
    pub queues: u16,
    /// Entries of each ring.
    pub queue_size: u16,
    /// Whether the records are those of packed rings.
    pub packed: bool,
    /// The file.
    pub file: FileNumber,
}

/// One vring. Its position travels later, when the vring rests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedVring {
    /// Number of entries.
    pub size: Option<u16>,
    /// Flags of the address, and addresses of the descriptors, the used ring, the available ring
    /// and the log.
    pub address: Option<(u32, [u64; 4])>,
    /// The position that the front-end has said, or at which the vring was stopped.
    pub base: Option<u32>,
    /// Whether the front-end has enabled it, if it has said so.
    pub enable: Option<bool>,
    /// The front-end has requested the start.
    pub started: bool,
    /// The vring is in service.
    pub running: bool,
    /// The event that the driver kicks through.
    pub kick: Option<FileNumber>,
    /// The event that the driver is interrupted through.
    pub call: Option<FileNumber>,
    /// The event that signals errors to the front-end.
    pub err: Option<FileNumber>,
}

/// Positions of the vrings that were in service, by their numbers, as `GET_VRING_BASE` reports
/// them.
pub type Positions = Vec<Option<u32>>;
