//! The interface of a request to the thread of an image.

use super::gate::Entered;
use super::place::Place;
use crate::operation::Operation;

/// A request that a worker has handed to the thread of an image. The thread gives it back by one of
/// the last two functions.
pub(crate) trait Job: Send {
    /// Its next operation.
    fn operation(&self) -> Operation;

    /// The first byte of that, and how many are left.
    fn range(&self) -> (u64, u64);

    /// Copies the bytes that were read into its buffers. Returns how many there was room for.
    fn fill(&self, bytes: &[u8]) -> u32;

    /// Charges the request for processor time of the thread, in nanoseconds.
    fn charge(&mut self, nanoseconds: u64);

    /// Gives the request back, with the place of its next step.
    fn placed(self: Box<Self>, place: Place, entered: Entered);

    /// Gives the request back after its next step was carried out, with the bytes moved or an error
    /// number.
    fn done(self: Box<Self>, result: Result<u32, i32>);
}
