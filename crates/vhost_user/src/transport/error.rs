//! Why a session cannot meet a request.

use ring::{MapError, Violation};
use thiserror::Error;

use super::memory_table::MAX_REGIONS;
use super::message::BadMessage;

/// Why a request cannot be met.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The message itself is wrong.
    #[error(transparent)]
    Message(#[from] BadMessage),
    /// Virtio features that were not offered.
    #[error("SET_FEATURES with {0:#x}, which is not offered")]
    Features(u64),
    /// Protocol features that were not offered.
    #[error("SET_PROTOCOL_FEATURES with {0:#x}, which is not offered")]
    ProtocolFeatures(u64),
    /// Other virtio features while vrings run under the old ones.
    #[error("SET_FEATURES changes features while rings are started")]
    FeaturesWhileStarted,
    /// A vring beyond those that the device has.
    #[error("{name} for ring {ring}, the port has {rings}")]
    NoRing {
        /// The request.
        name: &'static str,
        /// Number of the vring.
        ring: u8,
        /// How many there are.
        rings: usize,
    },
    /// Size, addresses or position of a vring that is started.
    #[error("{name} for ring {ring}, which is started")]
    Started {
        /// The request.
        name: &'static str,
        /// Number of the vring.
        ring: u8,
    },
    /// A part of a vring that is in no memory region.
    #[error("ring {ring}: its {part} at user address {addr:#x} is in no memory region")]
    OutsideMemory {
        /// Number of the vring.
        ring: usize,
        /// The part.
        part: &'static str,
        /// Its address in the front-end's address space.
        addr: u64,
    },
    /// A vring whose description is not valid.
    #[error("ring {ring}: {violation}")]
    Ring {
        /// Number of the vring.
        ring: usize,
        /// The violation.
        violation: Violation,
    },
    /// The log of written pages cannot be mapped.
    #[error("SET_LOG_BASE: {0}")]
    Log(MapError),
    /// The log of written pages does not reach as far as the memory.
    #[error("the log of written pages ends at guest address {log:#x}, the memory at {memory:#x}")]
    ShortLog {
        /// The first guest address that has no bit.
        log: u64,
        /// The first guest address behind the memory.
        memory: u64,
    },
    /// A resource that the vrings need is not available.
    #[error("{0}")]
    Unavailable(String),
    /// A kick, call or error descriptor that is no eventfd.
    #[error("{name} for ring {ring} brings a descriptor that is no eventfd")]
    NoEvent {
        /// The request.
        name: &'static str,
        /// Number of the vring.
        ring: u8,
    },
    /// In-flight records that are impossible or too long.
    #[error("in-flight records of {queues} rings of {queue_size} entries cannot be kept")]
    Inflight {
        /// Number of vrings.
        queues: u16,
        /// Entries of each.
        queue_size: u16,
    },
    /// Memory that cannot be mapped.
    #[error("memory table: {0}")]
    Memory(#[from] MapError),
    /// In-flight records whose memory cannot be mapped.
    #[error("in-flight records: {0}")]
    Records(MapError),
    /// More regions than `GET_MAX_MEM_SLOTS` allows.
    #[error("ADD_MEM_REG beyond {MAX_REGIONS} regions")]
    TooManyRegions,
    /// A value that the device declines.
    #[error("{0}")]
    Declined(String),
}

impl SessionError {
    /// Whether the request can be declined by an acknowledgement, so that the connection goes on.
    pub(super) fn is_declinable(&self) -> bool {
        match self {
            SessionError::Message(bad) => bad.is_declinable(),
            SessionError::Declined(_) => true,
            _ => false,
        }
    }
}
