//! Features that every device offers: virtio features of rings, and features of the vhost-user
//! protocol.

use virtio_bindings::virtio_config::{
    VIRTIO_F_ANY_LAYOUT, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Virtio feature bits of the transport (virtio 1.2, 6), and vhost-user's own bit 30.
pub mod bit {
    use super::*;

    /// Legacy: the header may lie in any descriptor of a chain.
    pub const ANY_LAYOUT: u64 = 1 << VIRTIO_F_ANY_LAYOUT;
    /// Descriptors may refer to tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC;
    /// Kicks and interrupts are requested by index.
    pub const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
    /// vhost-user: pages that are written are logged (`VHOST_F_LOG_ALL`).
    pub const LOG_ALL: u64 = 1 << 26;
    /// vhost-user: protocol features are negotiated, and vrings start disabled.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Virtio 1.0 and later.
    pub const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
    /// Packed virtqueues.
    pub const RING_PACKED: u64 = 1 << VIRTIO_F_RING_PACKED;
}

/// Names of the bits that the transport offers, in the order of the bits.
const NAMES: [(u64, &str); 7] = [
    (bit::LOG_ALL, "log_all"),
    (bit::ANY_LAYOUT, "any_layout"),
    (bit::INDIRECT_DESC, "indirect_desc"),
    (bit::EVENT_IDX, "event_idx"),
    (bit::PROTOCOL_FEATURES, "protocol_features"),
    (bit::VERSION_1, "version_1"),
    (bit::RING_PACKED, "packed"),
];

/// All bits that the transport offers.
pub const OFFERED: u64 = bit::LOG_ALL
    | bit::ANY_LAYOUT
    | bit::INDIRECT_DESC
    | bit::EVENT_IDX
    | bit::PROTOCOL_FEATURES
    | bit::VERSION_1
    | bit::RING_PACKED;

/// A set of virtio feature bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Whether all of `bits` are in the set.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Names of the transport's bits in the set and of those in `device`, a list of the device's
    /// bits, in the order of the bits. Bits that are in neither list are left out.
    pub fn names(self, device: &[(u64, &'static str)]) -> Vec<&'static str> {
        let mut all: Vec<_> =
            NAMES.iter().chain(device).filter(|(bit, _)| self.has(*bit)).collect();
        all.sort_unstable_by_key(|(bit, _)| *bit);
        all.into_iter().map(|(_, name)| *name).collect()
    }
}

/// Bits of the vhost-user protocol (QEMU's docs/interop/vhost-user.rst, "Protocol features").
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// The log of written pages is shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// The back-end announces a guest that has migrated.
    pub const RARP: u64 = 1 << 2;
    /// Requests are acknowledged.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front-end tells the MTU.
    pub const NET_MTU: u64 = 1 << 4;
    /// The back-end also sends requests, on a socket of its own.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back-end serves the configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// The front-end keeps records of rings for the next back-end.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    /// All that the transport offers; a device adds its own.
    ///
    /// `STATUS` is not offered, since it would add nothing to the start and stop of vrings.
    pub const OFFERED: u64 =
        MQ | LOG_SHMFD | REPLY_ACK | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_bits() {
        let set = Features(bit::RING_PACKED | bit::ANY_LAYOUT | 1 | 1 << 50 | 1 << 63);
        assert_eq!(
            set.names(&[(1, "low"), (1 << 50, "high")]),
            ["low", "any_layout", "packed", "high"]
        );
    }

    #[test]
    fn every_offered_bit_has_a_name() {
        assert_eq!(Features(OFFERED).names(&[]).len(), NAMES.len());
        assert_eq!(NAMES.iter().fold(0, |all, (bit, _)| all | bit), OFFERED);
    }
}
