//! vhost-user messages: parsing requests, encoding replies.
//!
//! Pure functions, no socket. A message is a 12-byte header (request, flags, payload size), a
//! payload, and file descriptors beside it. All fields are little endian here: the protocol uses
//! the byte order of the host, and this crate is built for little-endian hosts only.
//!
//! Everything comes from a front-end that may be hostile. A header is checked before its payload is
//! awaited, so that a size cannot make this process allocate; payloads have exactly the size that
//! their request defines; and the number of descriptors is compared with what the request brings.
//! Anything else is a [`BadMessage`] with a name.

mod error;
mod header;
mod layout;
mod payload;
mod reply;
mod request;

pub use error::BadMessage;
pub use header::Header;
pub use layout::{HEADER_LEN, MAX_CONFIG, MAX_FDS, MAX_PAYLOAD, MAX_TABLE_REGIONS, name};
pub use payload::{ConfigRange, HasFd, Inflight, LogArea, Region, RingAddress};
pub use reply::Reply;
pub(super) use reply::encode_backend_request;
pub use request::Request;

#[cfg(test)]
mod tests;
