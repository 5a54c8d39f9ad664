//! A queue pair as a session sees it, which gives it rings and takes them away.

use std::sync::Arc;

use frame::Mac;
use network::port::QueuePair;
use ring::{Memory, Recovery, Violation};

use crate::transport::device::{VringControl, VringStart};

/// Which vring of a pair, in the guest's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest receives; vring numbers are even (virtio 1.2, 5.1.2).
    Rx,
    /// The guest transmits; vring numbers are odd.
    Tx,
}

impl Direction {
    /// The direction of vring number `vring`.
    pub fn of(vring: usize) -> Direction {
        if vring.is_multiple_of(2) { Direction::Rx } else { Direction::Tx }
    }
}

/// Operations of a session on a pair that no worker has.
pub trait VringPair: QueuePair {
    /// Attaches to a ring in the guest's memory, in place of a previous one, and continues at the
    /// position that the ring shows.
    ///
    /// # Errors
    /// When the ring's place or position is not valid.
    fn start(&mut self, direction: Direction, start: VringStart<'_>)
    -> Result<Recovery, Violation>;

    /// Drops a ring and returns its position, as `GET_VRING_BASE` reports it. `None`: the ring was
    /// not started.
    fn stop(&mut self, direction: Direction) -> Option<u32>;

    /// Changes how a ring that is started signals and whether it passes data.
    fn control(&mut self, direction: Direction, control: VringControl);

    /// Looks up the ring in changed memory. A ring that is not started is ignored.
    ///
    /// # Errors
    /// When the ring is not in the new memory.
    fn set_memory(&mut self, direction: Direction, memory: Arc<Memory>) -> Result<(), Violation>;

    /// Sends a frame that announces `mac`, the guest's address, before all that the guest sends
    /// next. A pair that does not transmit sends none.
    fn announce(&mut self, mac: Mac);

    /// Whether the ring is started.
    fn has(&self, direction: Direction) -> bool;

    /// Whether frames may be put.
    fn receives(&self) -> bool;
}
