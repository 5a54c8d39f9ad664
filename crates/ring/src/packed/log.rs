//! The log of what the device writes into a packed ring.

use super::{DESC_SIZE, EVENT_SIZE};
use crate::device::RingConfig;
use crate::notify::Place;
use crate::region::Memory;

/// The guest addresses of a packed ring, for the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedLog {
    desc: u64,
    size: u16,
    /// Guest address of the device event suppression structure, as the front-end tells it for the
    /// log (vhost-user: `log_guest_addr`).
    event: u64,
}

impl PackedLog {
    /// A ring whose descriptors lie where `config` says.
    pub(super) fn new(config: &RingConfig, event: u64) -> Self {
        PackedLog { desc: config.desc, size: config.size, event }
    }

    /// Logs that `count` descriptors from `first` on were written, at most as many as the ring has.
    #[cold]
    pub(super) fn written(&self, memory: &Memory, first: Place, count: u16) {
        let straight = count.min(self.size - first.index);
        self.log_descs(memory, first.index, straight);
        self.log_descs(memory, 0, count - straight);
    }

    /// Logs a change of the device event suppression structure.
    #[cold]
    pub(super) fn suppressed(&self, memory: &Memory) {
        memory.log(self.event, EVENT_SIZE);
    }

    fn log_descs(&self, memory: &Memory, first: u16, count: u16) {
        let offset = DESC_SIZE * u64::from(first);
        memory.log(self.desc.saturating_add(offset), DESC_SIZE * u64::from(count));
    }
}
