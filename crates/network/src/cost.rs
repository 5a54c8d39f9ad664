//! The cost of frames to their worker, in the unit that shares are counted in.
//!
//! The unit is the time that copying one byte takes. A frame costs [`CHARGE`] and its bytes,
//! [`PIECE`] for each piece of memory beyond the first that it lies in, and [`MISS`] if the flow
//! cache does not know its flow. The cost of further work on a frame is added where it is done:
//! copies of a flood, segments, checksums.
//!
//! The sender pays for its frames. Extra cost that a receiver causes, by buffers in many pieces, is
//! the receiver's debt: see [`receive_debt`](crate::receive_debt).

/// Cost of a frame besides its bytes, in bytes whose copy takes the same time.
pub const CHARGE: u64 = 2048;

/// Cost of each piece of memory, beyond the first, that a frame lies in or is put into.
pub const PIECE: u64 = 512;

/// Cost of asking the switch about a frame. A guest pays for sending each frame in a new flow.
pub const MISS: u64 = 3 * CHARGE;

/// Cost of each segment that a frame is cut into, besides its bytes: its headers are made anew, and
/// it is put into the receiver's ring alone.
pub const SEGMENT: u64 = 2 * CHARGE;

/// Cost of each byte that a checksum is made of, besides that of the copy: the byte is read once
/// more, and added.
pub const SUMMED: u64 = 2;

/// Cost of each copy of a flood, besides what a frame costs. Each receiving guest spends CPU time
/// of its own on the copy, which the worker's time does not include. The sender is charged for that
/// time: otherwise a guest that sends broadcasts would take more from others than its share.
pub const FLOODED: u64 = 3 * CHARGE;

/// Cost of `frames` frames of `bytes` bytes together.
#[inline]
pub fn cost(frames: usize, bytes: u64) -> u64 {
    CHARGE * frames as u64 + bytes
}
