//! The differences between the layouts of a virtqueue, on the device side.
//!
//! A layout takes chains in the order of the ring and gives them back in the same order, so the
//! chains in flight are one stretch of the ring: from the oldest chain that was not given back to
//! the next one to take.

use std::sync::Arc;

use crate::device::{Recovery, RingConfig};
use crate::inflight::RingRecord;
use crate::region::Memory;
use crate::violation::Violation;
use crate::walk::Sink;

/// The device's view of one ring in the driver's memory.
pub(crate) trait Layout: Send + Sized {
    /// Attaches to a ring. Writes nothing to it.
    fn attach(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation>;

    /// See [`DeviceRing::recover`](crate::DeviceRing::recover).
    fn recover(&mut self, record: Option<RingRecord>) -> Recovery;

    /// Looks up the ring in other memory, at the same guest addresses, and puts back the newest
    /// `untaken` chains.
    fn set_memory(&mut self, mem: Arc<Memory>, untaken: usize) -> Result<(), Violation>;

    /// The driver's memory.
    fn memory(&self) -> &Arc<Memory>;

    /// How many chains can be taken, up to `max`: an upper bound, but 0 exactly if there is none.
    fn ready(&mut self, max: usize) -> Result<usize, Violation>;

    /// As [`ready`](Self::ready), but a positive result may be returned if there is none.
    #[inline(always)]
    fn ready_at_most(&mut self, max: usize) -> Result<usize, Violation> {
        self.ready(max)
    }

    /// Takes up to `max` chains, no more than are ready, into `sink`: fewer when there are fewer,
    /// when the sink is full, or when a broken chain follows. A broken chain is an error only if it
    /// comes first.
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<usize, Violation>;

    /// Prefetches the first entries of the next batch.
    #[inline(always)]
    fn look_ahead(&self) {}

    /// Chains that were taken and not given back.
    fn outstanding(&self) -> usize;

    /// Puts back the newest `n` chains.
    fn untake(&mut self, n: usize);

    /// Marks the oldest outstanding chain as used, with `len` bytes written to it. The driver sees
    /// it after [`publish`](Self::publish).
    fn give_back(&mut self, len: u32);

    /// The number, in 16 bits, of the next chain that is given back.
    fn next_used(&self) -> u16;

    /// Rewrites the used elements of `count` chains, from number `first` on, with length 0, unless
    /// they are published.
    fn invalidate(&mut self, first: u16, count: u16);

    /// See [`DeviceRing::set_used_log`](crate::DeviceRing::set_used_log).
    fn set_used_log(&mut self, addr: Option<u64>);

    /// See [`DeviceRing::publish`](crate::DeviceRing::publish).
    fn publish(&mut self) -> bool;

    /// See [`DeviceRing::arm`](crate::DeviceRing::arm).
    fn arm(&mut self) -> Result<bool, Violation>;

    /// See [`DeviceRing::disarm`](crate::DeviceRing::disarm).
    fn disarm(&mut self);

    /// See [`DeviceRing::position`](crate::DeviceRing::position).
    fn position(&self) -> u32;

    /// See [`DeviceRing::mark`](crate::DeviceRing::mark).
    fn mark(&self) -> u32;

    /// See [`DeviceRing::has_consumed`](crate::DeviceRing::has_consumed).
    fn has_consumed(&self, mark: u32) -> bool;
}
