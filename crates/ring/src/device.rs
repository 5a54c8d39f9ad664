//! The device side of a virtqueue of either layout.
//!
//! A ring belongs to one worker at a time, and has one direction: a Tx ring is used with [`fetch`],
//! [`complete`] and [`rewind`], an Rx ring with [`prepare`] and [`put`]. The other methods are for
//! both. Completion is always in order, so the state of a ring is one position, from which a
//! successor continues after a crash or a migration.
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

/// The addresses of a ring, and the features negotiated for it.
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
    /// The position to start from, as in vhost-user's `SET_VRING_BASE`. Split: the available index.
    /// Packed: available position in bits 0..=14, its wrap counter in bit 15, the same for the used
    /// position in the upper half.
    ///
    /// Work in flight does not survive a stop, so a packed ring continues from its used position.
    /// Peers that know only the lower half send zero in the upper one; the used position is then
    /// that of the lower half.
    pub start: u32,
}

/// The position of a ring, as found in the ring itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// At the position of the configuration.
    AsTold,
    /// At another position: an earlier back-end ended without reporting the position.
    Moved {
        /// The position of the configuration, in its lower half.
        told: u32,
        /// The position from which the ring continues, in the same format.
        found: u32,
    },
    /// The ring does not show its position, and continues at that of the configuration, which may
    /// be wrong.
    Unclear,
}

/// The outcome of putting a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The frame is in the peer's buffers, and becomes visible with the next
    /// [`publish`](DeviceRing::publish).
    Done,
    /// As before, but most of the frame is still with its sender, from where the peer must fetch
    /// it.
    Passed {
        /// The token of the frame on the peer's ring.
        token: u32,
    },
    /// There are not enough buffers; none was taken.
    Full,
    /// The frame does not fit into the next buffer, or, with mergeable buffers, into as many as one
    /// frame may take. None was taken.
    TooBig,
    /// The receiver refuses the frame as such. Virtqueues refuse granted frames in too many pieces;
    /// links to the host refuse frames that the host's kernel refuses.
    Refused,
    /// The receiver has said that it does not want such frames.
    Unwanted,
}

/// The device side of one virtqueue.
///
/// After a [`Violation`] the ring's state is sound but meaningless. Only
/// [`position`](DeviceRing::position) should be called then, before the ring is dropped.
pub trait DeviceRing: Send + Sized {
    /// Attaches to a ring in the peer's memory. Writes nothing to it.
    ///
    /// # Errors
    /// When size, alignment, place or start position are not allowed.
    fn new(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation>;

    /// Finds the position at which an earlier back-end, which may have been killed at any moment,
    /// left off. The position is read from the ring itself, or from `record` if the ring does not
    /// show it. Must be called before anything else is done with the ring. Chains that were in
    /// flight are taken again; none is lost, and no chain is given back to the driver twice.
    ///
    /// From then on, the ring's position is kept in the record.
    fn recover(&mut self, record: Option<RingRecord>) -> Recovery;

    /// Follows a change of the peer's memory table: looks up the ring at the same guest addresses.
    /// Positions are kept; buffers that were taken ahead are put back first. Chains fetched before
    /// stay usable, because their [`Gather`] keeps the old memory.
    ///
    /// # Errors
    /// When the ring does not lie within the new memory.
    fn set_memory(&mut self, mem: Arc<Memory>) -> Result<(), Violation>;

    /// Sets the guest address, in the log of written pages, of the used ring (split) or the device
    /// event suppression structure (packed). `None`: writes to the ring are not logged.
    ///
    /// Descriptors of a packed ring are logged at their own addresses. Buffers are always logged if
    /// the memory has a log.
    fn set_used_log(&mut self, addr: Option<u64>);

    /// Whether writes into the peer's memory are logged.
    fn is_logged(&self) -> bool;

    /// Tx: takes up to `max` published chains, appends their buffers to `gather` and the chains, in
    /// order, to `chains`; returns how many. Stops early when `gather` is full. The peer's
    /// available index is read at most once, and each descriptor exactly once.
    ///
    /// # Errors
    /// The peer's violation in the next chain; then nothing was fetched. Good chains
    /// before a broken one are fetched first, and the next call reports the violation.
    fn fetch(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        max: usize,
    ) -> Result<usize, Violation>;

    /// Tx: chains that were fetched and are not complete.
    fn in_flight(&self) -> usize;

    /// Tx: marks the oldest `n` fetched chains used, with length 0. The peer sees that after
    /// [`publish`](Self::publish). `n` is limited to the chains in flight.
    fn complete(&mut self, n: usize);

    /// Tx: undoes the fetch of the newest `n` chains, which stay in the peer's ring and will be
    /// fetched again. `n` is limited to the chains in flight.
    fn rewind(&mut self, n: usize);

    /// Rx: takes buffers ahead until at least `n` are ready, if the peer has published that many,
    /// and prefetches them. Returns how many are ready in total.
    ///
    /// # Errors
    /// The peer's violation in the next buffer.
    fn prepare(&mut self, n: usize) -> Result<usize, Violation>;

    /// Rx: writes one frame into the peer's next buffers: `net`, the `virtio_net_hdr` of 10 or 12
    /// bytes; `head`, private bytes; `body`, bytes that still lie with their sender. Bytes 10 and
    /// 11 of a `net` of 12 bytes are replaced by the number of buffers; the contents of `net` are
    /// unspecified afterwards. With `mergeable` a frame takes as many buffers as it needs,
    /// otherwise one.
    ///
    /// A granted body is not copied yet, but added to `grant_copies`, which must be flushed before
    /// the next [`publish`](Self::publish).
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
    /// room for the whole frame, whose bytes are mapped. False: this is not the case, and nothing
    /// was done. The count of buffers in `net` is set here. Must not be used while writes [are
    /// logged](Self::is_logged), since it does not log them.
    fn put_alone(&mut self, net: [u8; 12], head: &[u8], body: Body<'_>) -> bool;

    /// Rx: prefetches, for writing, the first `len` bytes of the `n`th ready buffer, except those
    /// that [`prepare`](Self::prepare) has prefetched.
    fn prefetch(&self, n: usize, len: usize);

    /// How many pieces of memory frames were put into since the last time, beyond one a frame.
    fn take_extra_pieces(&mut self) -> u32;

    /// Rx: invalidates the frame that `grant_copies` knows by `token`, because it could not be
    /// copied. The frame's buffers go back to the peer with length 0. Must be called before the
    /// [`publish`](Self::publish) that follows the put.
    fn invalidate(&mut self, token: u32);

    /// Publishes everything that was completed or put since the last call, all at once. True when
    /// the peer wants an interrupt for it.
    fn publish(&mut self) -> bool;

    /// Asks the peer to kick when it publishes more, and looks once more. True when chains are
    /// published already that were not fetched or taken ahead; no kick may come for those.
    ///
    /// # Errors
    /// When the peer's available index is impossible, or its memory was truncated.
    fn arm(&mut self) -> Result<bool, Violation>;

    /// Asks the peer not to kick. With the event index this costs nothing: the event stays in the
    /// past.
    fn disarm(&mut self);

    /// Whether chains are published that were not fetched (Tx) or taken ahead (Rx).
    /// [`prepare`](Self::prepare) returns the number of those taken ahead.
    ///
    /// # Errors
    /// When the peer's available index is impossible.
    fn available(&mut self) -> Result<bool, Violation>;

    /// The position from which a successor must continue, as `GET_VRING_BASE` returns it. All
    /// completed chains count, published or not; chains in flight and buffers taken ahead do not.
    fn position(&self) -> u32;

    /// The present position, for a later call of [`has_consumed`](Self::has_consumed), which must
    /// follow before the ring has wrapped around 64 times.
    fn mark(&self) -> u32;

    /// Whether the driver has certainly taken all entries used before `mark`. There are two signs:
    /// the driver has posted buffers more than one ring beyond the mark, which must replace buffers
    /// that it took; or it has asked to be notified of entries after the mark. A driver that shows
    /// neither sign may also have taken them. A driver that lies about it reorders only its own
    /// frames.
    fn has_consumed(&self, mark: u32) -> bool;
}

#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tests;
