//! Writes into a peer's memory that are yet to be logged.
//!
//! A frame's bytes may be copied by the hypervisor, after the frame was put. All copies are made
//! before the ring is published, so a ring notes its writes, and logs them when it is published.

use crate::region::Memory;

/// Ranges of guest addresses that are being written.
#[derive(Debug, Default)]
pub(crate) struct PendingLog {
    ranges: Vec<(u64, u64)>,
}

impl PendingLog {
    /// Whether there is nothing to log.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Notes that `len` bytes at host address `at` of `memory` are being written. The list grows
    /// only while a guest migrates, by the pieces of the frames of a burst.
    pub(crate) fn add(&mut self, memory: &Memory, at: *const u8, len: usize) {
        let Some(addr) = memory.guest_of(at) else { return };
        match self.ranges.last_mut() {
            Some((first, length)) if *first + *length == addr => *length += len as u64,
            _ => self.ranges.push((addr, len as u64)),
        }
    }

    /// Logs all noted writes, which have been made by now.
    pub(crate) fn flush(&mut self, memory: &Memory) {
        for (addr, len) in self.ranges.drain(..) {
            memory.log(addr, len);
        }
    }
}
