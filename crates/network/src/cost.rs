//! The cost of frames to their worker, in the unit that shares are counted in.
//!
//! The unit is the time that copying one byte takes. A frame costs its bytes and [`CHARGE`] more,
//! [`PIECE`] for each piece of memory that it lies in beyond the first, and [`MISS`] if the flow
//! cache does not know its flow. What is done for a frame besides is added where it is done: copies
//! of a flood, segments, checksums.
//!
//! The sender pays for what its frames cost. What a receiver makes dear, by buffers in many pieces,
//! is the receiver's debt: see [`receive_debt`](crate::receive_debt).

/// Cost of a frame besides its bytes, in bytes whose copy takes as long.
pub const CHARGE: u64 = 2048;

/// Cost of each piece of memory, beyond the first, that a frame lies in or is put into.
pub const PIECE: u64 = 512;

/// Cost of asking the switch about a frame. So a guest whose frames are each of a flow of their own
/// pays for it.
pub const MISS: u64 = 3 * CHARGE;

/// Cost of each segment that a frame is cut into, besides its bytes: its headers are made anew, and
/// it is put into the receiver's ring alone.
pub const SEGMENT: u64 = 2 * CHARGE;

/// Cost of each byte that a checksum is made of, besides that of the copy: the byte is read once
/// more, and added.
pub const SUMMED: u64 = 2;

/// Cost of each copy of a flood, besides what a frame costs. None of the receivers has asked for it,
/// and each guest spends time of its own on the copy. The worker is charged nothing of that, so the
/// sender is: otherwise a guest that sends broadcasts takes more from others than its share.
pub const FLOODED: u64 = 3 * CHARGE;

/// Cost of `frames` frames of `bytes` bytes together.
#[inline]
pub fn cost(frames: usize, bytes: u64) -> u64 {
    CHARGE * frames as u64 + bytes
}
