//! The log of what the device writes into a used ring.
//!
//! The front-end tells the guest address of the used ring for the log, which need not be the one
//! that the ring is translated by (vhost-user: `log_guest_addr`). A hostile front-end can only have
//! wrong pages of its own log marked.

use super::{RING_ENTRIES, RING_INDEX, USED_ENTRY, used_len};
use crate::device::RingConfig;
use crate::region::Memory;

/// The guest addresses of a used ring, for the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedLog {
    /// Guest address of the used ring.
    addr: u64,
    /// Entries.
    size: u16,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    event_idx: bool,
}

impl UsedLog {
    /// The used ring of `config`, logged at guest address `addr`.
    pub(super) fn new(addr: u64, config: &RingConfig) -> UsedLog {
        UsedLog { addr, size: config.size, event_idx: config.event_idx }
    }

    /// Logs that elements number `old..new`, and then the index, were written.
    #[cold]
    pub(super) fn published(&self, memory: &Memory, old: u16, new: u16) {
        let first = old & (self.size - 1);
        let count = new.wrapping_sub(old).min(self.size);
        let straight = count.min(self.size - first);
        self.log_elements(memory, first, straight);
        self.log_elements(memory, 0, count - straight);
        self.log(memory, RING_INDEX, 2);
    }

    /// Logs a change of the event index or of the flags, by which the device asks for kicks.
    #[cold]
    pub(super) fn suppressed(&self, memory: &Memory) {
        self.log(memory, if self.event_idx { used_len(self.size) - 2 } else { 0 }, 2);
    }

    fn log_elements(&self, memory: &Memory, first: u16, count: u16) {
        let offset = RING_ENTRIES + USED_ENTRY * u64::from(first);
        self.log(memory, offset, USED_ENTRY * u64::from(count));
    }

    fn log(&self, memory: &Memory, offset: u64, len: u64) {
        memory.log(self.addr.saturating_add(offset), len);
    }
}
