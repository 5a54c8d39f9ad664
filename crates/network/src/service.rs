//! The cost of serving a queue, and its limit.

use runtime::Served;

use crate::burst::{BURST, MAX_FRAME};
use crate::cost::CHARGE;

/// A port's share of a round: a full burst of frames as long as an Ethernet's.
pub const QUANTUM: u64 = BURST as u64 * (CHARGE + 1514);

// A queue is served from half a quantum on: then it can send at least one frame, however long.
const _: () = assert!(QUANTUM / 2 > CHARGE + MAX_FRAME as u64);

/// The cost of serving one queue once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// The cost that serving may come to.
    pub quantum: u64,
    /// Bytes of the frames of the burst.
    pub bytes: u64,
    /// Cost of carrying these frames: bytes, and pieces of memory.
    pub carriage: u64,
    /// Cost of the service besides.
    pub cost: u64,
    /// The part of `cost` that was not known when the burst was fetched: copies of floods, and
    /// segments.
    pub added: u64,
    /// How many frames at the front have taken room in the limits of their port.
    pub taken: usize,
    /// The queue is likely to have more: its burst was as long as it could be, and all of it is
    /// done.
    pub more: bool,
}

impl Service {
    /// The result with `frames` frames carried; `moved`: other work was done.
    #[inline]
    pub fn served(&self, frames: usize, moved: bool) -> Served {
        Served { cost: self.cost, units: frames as u64, moved, more: self.more }
    }
}
