//! Errors in messages.

use thiserror::Error;

use super::layout::{MAX_FDS, MAX_PAYLOAD, MAX_TABLE_REGIONS};

/// An error in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadMessage {
    /// Only version 1 of the protocol exists.
    #[error("protocol version {0} in a message header, 1 is expected")]
    Version(u32),
    /// The front-end sends requests, never replies, on this socket.
    #[error("a message that calls itself a reply")]
    IsReply,
    /// The announced payload is longer than any request's.
    #[error("{name} announces {size} bytes of payload, at most {MAX_PAYLOAD} are read")]
    Oversized {
        /// The request.
        name: &'static str,
        /// The size in its header.
        size: u32,
    },
    /// The payload is not as long as the request's is.
    #[error("{name} with a payload of {size} bytes, {expected} are expected")]
    Size {
        /// The request.
        name: &'static str,
        /// The size that came.
        size: usize,
        /// The size that the request has.
        expected: usize,
    },
    /// More or fewer file descriptors than the request brings.
    #[error("{name} with {fds} file descriptors, {expected} are expected")]
    Descriptors {
        /// The request.
        name: &'static str,
        /// How many came.
        fds: usize,
        /// How many should have.
        expected: usize,
    },
    /// More descriptors beside one message than any request brings.
    #[error("{name} with more than {MAX_FDS} file descriptors")]
    TooManyDescriptors {
        /// The request.
        name: &'static str,
    },
    /// A memory table without regions, or with more than the message may have.
    #[error("SET_MEM_TABLE with {0} regions, 1 to {MAX_TABLE_REGIONS} are allowed")]
    Regions(u32),
    /// A ring index that no ring of a vhost-user device can have.
    #[error("{name} for ring {ring}, which cannot exist")]
    Ring {
        /// The request.
        name: &'static str,
        /// The index.
        ring: u64,
    },
    /// A ring size or index beyond 16 bits.
    #[error("{name} of {value}, which cannot be")]
    Value {
        /// The request.
        name: &'static str,
        /// The number.
        value: u64,
    },
    /// A request that the protocol does not have.
    #[error("unknown request {0}")]
    Unknown(u32),
    /// A request of a protocol feature that is not offered.
    #[error("{0}, which is not offered")]
    NotOffered(&'static str),
}

impl BadMessage {
    /// Whether the message itself was sound, so that it can be declined and the next one read.
    pub fn is_declinable(self) -> bool {
        matches!(self, BadMessage::Unknown(_) | BadMessage::NotOffered(_))
    }
}
