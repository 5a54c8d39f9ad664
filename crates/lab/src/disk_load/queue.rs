//! One queue of a disk, as the driver uses it.

use std::os::fd::RawFd;
use std::time::Duration;

use super::DiskLoadError;

/// Bytes of a sector, the unit of places on a disk.
pub(super) const SECTOR: u64 = 512;

/// How long a back-end may take to listen, to connect a disk, and to answer a request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// One queue, with the requests that are under way in it.
pub(super) trait Queue {
    /// Becomes readable when the back-end interrupts.
    fn waker(&self) -> RawFd;

    /// Requests that are under way.
    fn in_flight(&self) -> usize;

    /// When the oldest request that is under way was sent, in ns of the driver's clock.
    fn oldest(&self) -> Option<u64>;

    /// Whether one more request may be sent.
    fn has_room(&self) -> bool;

    /// Adds a request for `block`; the back-end sees it after [`publish`](Self::publish). False:
    /// there is no room.
    fn add(&mut self, block: u64, now: u64) -> Result<bool, DiskLoadError>;

    /// Makes all added requests visible, and signals the back-end if it asks for that.
    fn publish(&mut self) -> Result<(), DiskLoadError>;

    /// Takes back what has completed, and hands the time at which each was sent to `done`. Returns
    /// how many there were.
    fn collect(&mut self, done: impl FnMut(u64)) -> Result<usize, DiskLoadError>;

    /// Asks for an interrupt. True: something has completed already.
    fn arm(&mut self) -> Result<bool, DiskLoadError>;

    /// Ends what [`arm`](Self::arm) began, and takes the interrupt if there is one.
    fn disarm(&mut self);
}
