//! A request, as the thread of an image sees it.

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

    /// The thread has used so much processor time for it, in nanoseconds.
    fn charge(&mut self, nanoseconds: u64);

    /// Its next step has a place.
    fn placed(self: Box<Self>, place: Place, entered: Entered);

    /// Its next step has been carried out: so many bytes were moved, or an error number.
    fn done(self: Box<Self>, result: Result<u32, i32>);
}
