//! Messages of the xenstore protocol (xen/include/public/io/xs_wire.h): a header of four 32-bit
//! numbers in the machine's byte order, and up to 4096 bytes.

use crate::store::{Permission, StoreError};

/// Bytes of a header.
pub const HEADER: usize = 16;

/// Most bytes that follow a header.
pub const PAYLOAD: usize = 4096;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Directory = 1,
    Read = 2,
    GetPermissions = 3,
    Watch = 4,
    Unwatch = 5,
    Start = 6,
    End = 7,
    Write = 11,
    Make = 12,
    Remove = 13,
    SetPermissions = 14,
    /// A watch event, which is not an answer.
    Event = 15,
    /// An error in answer to any request.
    Error = 16,
    DirectoryPart = 22,
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of a [`Kind`], or an unknown one.
    pub kind: u32,
    /// The number of the request, or of the one that is answered.
    pub request: u32,
    /// The transaction, or 0.
    pub transaction: u32,
    /// Bytes that follow.
    pub len: u32,
}

impl Header {
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let word = |n: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[4 * n..4 * n + 4]);
            u32::from_ne_bytes(word)
        };
        Self { kind: word(0), request: word(1), transaction: word(2), len: word(3) }
    }

    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [self.kind, self.request, self.transaction, self.len];
        bytes
            .chunks_exact_mut(4)
            .zip(words)
            .for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
        bytes
    }
}

/// A whole message: header and `payload`. `None` when that is too long.
pub fn message(kind: Kind, request: u32, transaction: u32, payload: &[u8]) -> Option<Vec<u8>> {
    if payload.len() > PAYLOAD {
        return None;
    }
    let header = Header { kind: kind as u32, request, transaction, len: payload.len() as u32 };
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(payload);
    Some(bytes)
}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
}

impl Stream {
    /// Adds what was read.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// One that is longer than any may be.
    pub fn next(&mut self) -> Result<Option<(Header, Vec<u8>)>, StoreError> {
        let Some(header) = self.bytes.first_chunk::<HEADER>().map(Header::decode) else {
            return Ok(None);
        };
        let len = header.len as usize;
        if len > PAYLOAD {
            return Err(StoreError::Protocol("a message longer than any may be"));
        }
        if self.bytes.len() < HEADER + len {
            return Ok(None);
        }
        let payload = self.bytes.drain(..HEADER + len).skip(HEADER).collect();
        Ok(Some((header, payload)))
    }
}

/// `parts`, each with a NUL byte after it. `None` when one of them has a NUL byte in it.
pub fn strings(parts: &[&str]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in parts {
        if part.contains('\0') {
            return None;
        }
        bytes.extend_from_slice(part.as_bytes());
        bytes.push(0);
    }
    Some(bytes)
}

/// The strings of a list in which each ends with a NUL byte. Invalid UTF-8 is replaced; the last
/// NUL may be missing.
pub fn split(list: &[u8]) -> impl Iterator<Item = String> + '_ {
    let list = list.strip_suffix(b"\0").unwrap_or(list);
    let count = if list.is_empty() { 0 } else { usize::MAX };
    list.split(|byte| *byte == 0).take(count).map(|part| String::from_utf8_lossy(part).into_owned())
}

/// One piece of a long directory (`XS_DIRECTORY_PART`): the directory's generation, the names, and
/// whether it is the last.
pub fn directory_part(payload: &[u8]) -> Option<(&[u8], &[u8], bool)> {
    let end = payload.iter().position(|byte| *byte == 0)?;
    let (generation, names) = (&payload[..end], &payload[end + 1..]);
    // One more NUL follows the last name, or is in an empty piece.
    match names {
        [] | [0] => Some((generation, &[], true)),
        [names @ .., 0, 0] => Some((generation, names, true)),
        names => Some((generation, names, false)),
    }
}

/// The permissions of a node, each as text.
pub fn permissions(payload: &[u8]) -> Option<Vec<Permission>> {
    split(payload).map(|text| text.parse().ok()).collect()
}

/// The error with this name.
pub fn error(name: &[u8], path: &str) -> StoreError {
    let path = path.to_owned();
    match name.strip_suffix(b"\0").unwrap_or(name) {
        b"ENOENT" => StoreError::NotFound { path },
        b"EACCES" | b"EPERM" => StoreError::Denied { path },
        b"EAGAIN" => StoreError::Again,
        b"E2BIG" => StoreError::TooLong { path },
        b"ENOSPC" | b"EDQUOT" => StoreError::Quota { path },
        name => StoreError::Refused { path, name: String::from_utf8_lossy(name).into_owned() },
    }
}

#[cfg(test)]
mod tests;
