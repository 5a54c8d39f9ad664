//! The device side of a virtqueue whose requests complete in any order.
//!
//! [`DeviceRing`](crate::DeviceRing) is for frames, which complete in the order of the ring. Here
//! each request that was taken has a *token*, by which it is completed. A request is written to the
//! front-end's in-flight record ([`RingRecord`]) before it is begun, and removed after the driver
//! has its answer. The successor of a killed back-end takes the requests of the record again, in
//! the order in which they were taken at first.

use std::sync::Arc;

use crate::device::{Recovery, RingConfig};
use crate::inflight::RingRecord;
use crate::io_chain::IoChain;
use crate::region::Memory;
use crate::violation::Violation;

/// The device side of one virtqueue of requests.
///
/// After a [`Violation`] only [`position`](Self::position) should be called, before the ring is
/// dropped.
pub trait RequestRing: Send + Sized {
    /// Attaches to a ring in the driver's memory. The position is taken from the ring, or else from
    /// `record`, or else from `config`. Requests that the record shows to be in flight are taken
    /// again first.
    ///
    /// # Errors
    /// When size, alignment, place or start position are not allowed, or the record contradicts the
    /// ring.
    fn start(
        memory: Arc<Memory>,
        config: &RingConfig,
        record: Option<RingRecord>,
    ) -> Result<(Self, Recovery), Violation>;

    /// Follows a change of the driver's memory table: looks up the ring at the same guest
    /// addresses.
    ///
    /// # Errors
    /// When the ring does not lie within the new memory.
    fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), Violation>;

    /// See [`DeviceRing::set_used_log`](crate::DeviceRing::set_used_log).
    fn set_used_log(&mut self, addr: Option<u64>);

    /// The driver's memory.
    fn memory(&self) -> &Arc<Memory>;

    /// Takes the next request into `chain`, and returns its token, which is below the ring's size.
    /// `None`: the driver has published no more.
    ///
    /// # Errors
    /// The driver's error. Nothing was taken.
    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, Violation>;

    /// Whether there is something to take.
    ///
    /// # Errors
    /// When the driver's index is impossible.
    fn has_next(&mut self) -> Result<bool, Violation>;

    /// Requests that were taken and are not complete.
    fn in_flight(&self) -> usize;

    /// Completes the request with this token, with `len` bytes written to its buffers. The driver
    /// sees it after [`publish`](Self::publish). A token that is not in flight is ignored.
    fn complete(&mut self, token: u16, len: u32);

    /// Makes all completed requests visible to the driver at once. Returns whether the driver wants
    /// an interrupt; `None`: no request was completed.
    fn publish(&mut self) -> Option<bool>;

    /// Asks the driver to kick when it publishes more, and looks once more: true when there is
    /// something to take already.
    ///
    /// # Errors
    /// When the driver's index is impossible, or its memory was truncated.
    fn arm(&mut self) -> Result<bool, Violation>;

    /// Asks the driver not to kick.
    fn disarm(&mut self);

    /// The position from which a successor must continue, as `GET_VRING_BASE` returns it. Valid
    /// only while nothing is in flight.
    fn position(&self) -> u32;
}

#[cfg(test)]
mod tests;
