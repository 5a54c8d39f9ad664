//! The header of a message.

use super::error::BadMessage;
use super::layout::{HEADER_LEN, MAX_PAYLOAD, NEED_REPLY, REPLY, VERSION, VERSION_MASK, name};

/// A checked message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub code: u32,
    /// The front-end requests an acknowledgement (valid if `REPLY_ACK` was negotiated).
    pub need_reply: bool,
    /// Bytes of payload, at most [`MAX_PAYLOAD`].
    pub size: usize,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Another version, a reply, or a size that no request has.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, BadMessage> {
        let [c0, c1, c2, c3, f0, f1, f2, f3, s0, s1, s2, s3] = *bytes;
        let code = u32::from_le_bytes([c0, c1, c2, c3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        let size = u32::from_le_bytes([s0, s1, s2, s3]);
        if flags & VERSION_MASK != VERSION {
            return Err(BadMessage::Version(flags & VERSION_MASK));
        }
        if flags & REPLY != 0 {
            return Err(BadMessage::IsReply);
        }
        match usize::try_from(size) {
            Ok(len) if len <= MAX_PAYLOAD => {
                Ok(Header { code, need_reply: flags & NEED_REPLY != 0, size: len })
            }
            _ => Err(BadMessage::Oversized { name: name(code), size }),
        }
    }

    /// The request's name.
    pub fn name(&self) -> &'static str {
        name(self.code)
    }
}
