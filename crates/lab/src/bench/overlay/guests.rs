//! Two guests, one of which sends frames to the other.

use super::frames::Traffic;

/// Descriptors of a guest's ring: so many buffers are filled in turn.
pub(super) const RING: u16 = 1024;

/// A guest that sends and a guest that receives, on two hosts.
pub(super) trait Guests: Send {
    /// Sends frames number `first` and those after it, up to `count` of them. Returns how many were
    /// taken. An error is one line.
    fn send(&mut self, traffic: Traffic, first: u64, count: usize) -> Result<usize, String>;

    /// Takes the frames that arrived, and returns the bytes of their payload. An error is one line.
    fn receive(&mut self, traffic: Traffic) -> Result<u64, String>;
}
