//! Replies to requests.

use super::layout::{HEADER_LEN, REPLY, VERSION};
use super::payload::{ConfigRange, Inflight};

/// A reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing but the header.
    Empty,
    /// A number; as an acknowledgement, 0 for done and 1 for refused.
    Number(u64),
    /// A vring and its position.
    State(u8, u32),
    /// Memory for in-flight records, in a payload of this size. Its descriptor travels beside the
    /// message.
    Inflight(Inflight, usize),
    /// Bytes of the configuration space; `None`: the range cannot be read.
    Config(ConfigRange, Option<Vec<u8>>),
}

impl Reply {
    /// The bytes of the reply to request number `code`.
    pub fn encode(self, code: u32) -> Vec<u8> {
        let payload = match self {
            Reply::Number(value) => value.to_le_bytes().to_vec(),
            Reply::State(ring, value) => {
                (u64::from(ring) | u64::from(value) << 32).to_le_bytes().to_vec()
            }
            Reply::Inflight(Inflight { len, offset, queues, queue_size }, size) => {
                let counts = u64::from(queues) | u64::from(queue_size) << 16;
                let mut payload =
                    [len, offset, counts].map(u64::to_le_bytes).as_flattened().to_vec();
                payload.truncate(size);
                payload
            }
            Reply::Empty | Reply::Config(_, None) => Vec::new(),
            Reply::Config(ConfigRange { offset, size, flags }, Some(bytes)) => {
                [[offset, size, flags].map(u32::to_le_bytes).as_flattened(), &bytes].concat()
            }
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        for field in [code, VERSION | REPLY, payload.len() as u32] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&payload);
        bytes
    }
}

/// The bytes of a request of the back-end, without a payload.
pub(crate) fn encode_backend_request(code: u32) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes
        .iter_mut()
        .zip([code, VERSION, 0].map(u32::to_le_bytes).as_flattened())
        .for_each(|(to, from)| *to = *from);
    bytes
}
