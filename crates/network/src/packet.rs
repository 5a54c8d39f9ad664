//! A frame as a receiver sees it.

use frame::Offload;
use ring::gather::Body;

/// A frame on its way to one receiver: private headers, and the rest still in the sender's memory.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    /// Work that the sender left to be done, and that this receiver accepts.
    pub offload: &'a Offload,
    /// Bytes from the start of the frame to its payload, for the receiver's `hdr_len` hint.
    pub headers_len: u16,
    /// The first bytes of the frame, private and checked.
    pub head: &'a [u8],
    /// The remaining bytes, in the sender's memory, from which they are copied once.
    pub body: Body<'a>,
    /// The body may stay where it is, for the receiver to fetch it.
    pub may_pass: bool,
}

impl Packet<'_> {
    /// Length of the frame in bytes.
    pub fn len(&self) -> u32 {
        self.head.len() as u32 + self.body.len()
    }

    /// Whether the frame has no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
