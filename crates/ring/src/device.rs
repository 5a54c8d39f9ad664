//! The device side of a virtqueue, whatever its layout.
//!
//! A ring belongs to one worker at a time, and goes in one direction: a Tx ring is used with
//! [`fetch`], [`complete`] and [`rewind`], an Rx ring with [`prepare`] and [`put`]; the rest is for
//! both. Completion is always in order, so the state of a ring is one position: whoever takes over
//! after a crash or a migration goes on from there.
//!
//! [`fetch`]: DeviceRing::fetch
//! [`complete`]: DeviceRing::complete
//! [`rewind`]: DeviceRing::rewind
//! [`prepare`]: DeviceRing::prepare
//! [`put`]: DeviceRing::put

use std::sync::Arc;

use crate::gather::{Body, Chain, Gather};
use crate::grant_copy_batch::GrantCopyBatch;
use crate::inflight::RingRecord;
use crate::region::Memory;
use crate::violation::Violation;

/// Where a ring lies, and what was negotiated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Entries. Split: a power of two up to 32768. Packed: any number up to 32768.
    pub size: u16,
    /// Guest address of the descriptor table (split) or descriptor ring (packed).
    pub desc: u64,
    /// Guest address of the available ring (split) or the driver event suppression structure
    /// (packed).
    pub driver: u64,
    /// Guest address of the used ring (split) or the device event suppression structure (packed).
    pub device: u64,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// Where to go on, as vhost-user's `SET_VRING_BASE` gives it. Split: the available index.
    /// Packed: available position in bits 0..=14, its wrap counter in bit 15, the same for the
    /// used position in the upper half.
    ///
    /// Work in flight does not survive a stop, so a packed ring goes on from its used position; an
    /// upper half of zero comes from peers that know only the lower one, and means the lower
    /// one.
    pub start: u32,
}

/// Where a ring stands, as the ring itself shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// At the position of the configuration.
    AsTold,
    /// At another one: a back-end that served the ring before ended without reporting its position.
    Moved {
        /// The position of the configuration, in its lower half.
        told: u32,
        /// Where the ring goes on, in the same terms.
        found: u32,
    },
    /// The ring does not show it, and goes on at the position of the configuration, which may be
    /// wrong.
    Unclear,
}

/// The outcome of putting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The frame is in the peer's buffers, and becomes visible with the next
    /// [`publish`](DeviceRing::publish).
    Done,
    /// As before, but most of it is still with its sender, where the peer is to fetch it.
    Passed {
        /// The token of the frame on the peer's ring.
        token: u32,
    },
    /// There are not enough buffers; none was taken.
    Full,
    /// The frame does not fit: without mergeable buffers, into the next buffer; with them, into as
    /// many as one frame may take. None was taken.
    TooBig,
    /// The receiver refuses the frame as such. Virtqueues say so of granted frames that are in too
    /// many pieces; links to the host when the host's kernel does.
    Refused,
    /// The receiver has said that it does not want such frames.
    Unwanted,
}

/// The device side of one virtqueue.
///
/// After a [`Violation`] the ring's state is sound but its meaning is lost: nothing should be done
/// with it but [`position`](DeviceRing::position) and dropping it.
pub trait DeviceRing: Send + Sized {
    /// Attaches to a ring in the peer's memory. Writes nothing to it.
    ///
    /// # Errors
    /// When size, alignment, place or start position are not allowed.
    fn new(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation>;

    /// Goes on where the ring itself shows that a back-end before this one, which may have been
    /// killed at any moment, has left off; where a ring does not show that, at what `record` says.
    /// Only before anything else is done with the ring. Chains that were in flight are taken again;
    /// none is lost, and none that the driver got back is given back twice.
    ///
    /// From then on, the record has the ring's position.
    fn recover(&mut self, record: Option<RingRecord>) -> Recovery;

    /// The peer's memory table changed: finds the ring anew, at the same guest addresses. Positions
    /// stay; buffers that were taken ahead are given back first. Chains fetched before stay
    /// usable, their [`Gather`] keeps the old memory.
    ///
    /// # Errors
    /// When the ring does not lie within the new memory.
    fn set_memory(&mut self, mem: Arc<Memory>) -> Result<(), Violation>;

    /// The used ring (split), or the device event suppression structure (packed), has this guest
    /// address in the log of written pages. `None`: what is written to the ring is not logged.
    ///
    /// Descriptors of a packed ring are logged where they lie, and buffers always, if the memory has
    /// a log.
    fn set_used_log(&mut self, addr: Option<u64>);

    /// Whether writes into the peer's memory are logged.
    fn is_logged(&self) -> bool;

    /// Tx: takes up to `max` published chains, appends their buffers to `gather` and the chains, in
    /// order, to `chains`; returns how many. Stops early when `gather` is full. The peer's
    /// available index is read at most once, and each descriptor exactly once.
    ///
    /// # Errors
    /// The peer's violation in the next chain; then nothing was fetched. Good chains before a
    /// broken one are fetched first, and the next call tells about it.
    fn fetch(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        max: usize,
    ) -> Result<usize, Violation>;

    /// Tx: chains that were fetched and are not complete.
    fn in_flight(&self) -> usize;

    /// Tx: the oldest `n` fetched chains are used, with length 0; the peer sees it after
    /// [`publish`](Self::publish). At most as many as are in flight.
    fn complete(&mut self, n: usize);

    /// Tx: the newest `n` fetched chains are not fetched: they stay in the peer's ring, and come
    /// again. At most as many as are in flight.
    fn rewind(&mut self, n: usize);

    /// Rx: takes buffers ahead until at least `n` are ready, as far as the peer has published as
    /// many, and brings them near; returns how many are ready in total.
    ///
    /// # Errors
    /// The peer's violation in the next buffer.
    fn prepare(&mut self, n: usize) -> Result<usize, Violation>;

    /// Rx: writes one frame into the peer's next buffers: `net`, the `virtio_net_hdr` of 10 or 12
    /// bytes; `head`, private bytes; `body`, bytes that still lie with their sender. In place
    /// of bytes 10 and 11 of a `net` of 12 bytes the peer gets the number of buffers; what is
    /// left in `net` means nothing. With `mergeable` a frame takes as many buffers as it needs,
    /// otherwise one.
    ///
    /// A body that is granted is not copied yet, but added to `grant_copies`, which is flushed
    /// before the next [`publish`](Self::publish).
    ///
    /// # Errors
    /// The peer's violation in the next buffer.
    fn put(
        &mut self,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        mergeable: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, Violation>;

    /// Rx: [`put`](Self::put) for the usual case: the next buffer is ready, in one piece, and has
    /// room for the whole frame, whose bytes are mapped. False: it is not so, and nothing was
    /// done. The count of buffers in `net` is set here. Not while writes [are
    /// logged](Self::is_logged), which is not done here.
    fn put_alone(&mut self, net: [u8; 12], head: &[u8], body: Body<'_>) -> bool;

    /// Rx: brings near, to be written, what the first `len` bytes go into of the `n`th buffer that
    /// is ready from now on, as far as [`prepare`](Self::prepare) has not.
    fn prefetch(&self, n: usize, len: usize);

    /// How many pieces of memory frames were put into since the last time, beyond one a frame.
    fn take_extra_pieces(&mut self) -> u32;

    /// Rx: the frame that `grant_copies` knows by `token` could not be copied: its buffers go back to the
    /// peer with nothing in them. Only before the [`publish`](Self::publish) after it was put.
    fn invalidate(&mut self, token: u32);

    /// Makes everything that was completed or put since the last time visible to the peer, all at
    /// once. True when the peer wants an interrupt for it.
    fn publish(&mut self) -> bool;

    /// Asks the peer to kick when it publishes more, and looks once more. True when something is
    /// there already, that was not fetched or taken ahead: then no kick may come for it.
    ///
    /// # Errors
    /// When the peer's available index is nonsense, or its memory was truncated under us.
    fn arm(&mut self) -> Result<bool, Violation>;

    /// Asks the peer not to kick. With the event index this is free: the event is left where it
    /// was, in the past.
    fn disarm(&mut self);

    /// Whether anything is published that was not fetched (Tx) or taken ahead (Rx;
    /// [`prepare`](Self::prepare) tells about what was).
    ///
    /// # Errors
    /// When the peer's available index is nonsense.
    fn available(&mut self) -> Result<bool, Violation>;

    /// Where somebody else would have to go on: what `GET_VRING_BASE` answers. Everything complete
    /// counts, published or not; chains in flight and buffers taken ahead do not.
    fn position(&self) -> u32;

    /// Where the ring stands, for [`has_consumed`](Self::has_consumed) to be asked soon: before the ring
    /// has gone round 64 times.
    fn mark(&self) -> u32;

    /// Whether the driver has certainly taken what was done before `mark`: it has room for a whole
    /// ring of buffers, so whatever it has posted beyond one ring after the mark is in the
    /// place of some that it took; or it asked to be told of what comes after the mark. A
    /// driver that does neither has perhaps taken them, too; one that lies about it reorders its
    /// own frames.
    fn has_consumed(&self, mark: u32) -> bool;
}

#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tests;
