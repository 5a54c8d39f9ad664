//! What can be negotiated: virtio features, and features of the vhost-user protocol.
//!
//! Two kinds of virtio bits are offered. For most, the offer means that the ring or the datapath
//! does it. Some are the front-end's own business (link status, the control queue, announcing after
//! a migration); front-ends show their guest only what the backend offers too, so those are offered
//! to say that nothing here stands against them.

use frame::offload::Accepts;

/// Bits of virtio 1.2, 5.1.3 and 6, and vhost-user's own bit 30.
pub mod bit {
    /// Guest may leave checksums to us.
    pub const CSUM: u64 = 1 << 0;
    /// Guest takes frames with unfinished checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// Guest is told an MTU.
    pub const MTU: u64 = 1 << 3;
    /// Guest takes big TCP over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// Guest takes big TCP over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// Guest takes big TCP with ECN.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// Guest may send big TCP over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// Guest may send big TCP over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// Guest may send big TCP with ECN.
    pub const HOST_ECN: u64 = 1 << 13;
    /// One frame may fill several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Guest reads a link status (from the front-end).
    pub const STATUS: u64 = 1 << 16;
    /// There is a control queue (in the front-end).
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The control queue sets receive modes (in the front-end).
    pub const CTRL_RX: u64 = 1 << 18;
    /// Guest announces itself after a migration (asked by the front-end).
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// Several queue pairs.
    pub const MQ: u64 = 1 << 22;
    /// Legacy: the header may lie in any piece of a buffer.
    pub const ANY_LAYOUT: u64 = 1 << 27;
    /// Descriptors may point to tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Kicks and interrupts are asked for by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user: protocol features are negotiated, and rings start disabled.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Virtio 1.0 and later.
    pub const VERSION_1: u64 = 1 << 32;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Guest takes big UDP over IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// Guest takes big UDP over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// Guest may send big UDP.
    pub const HOST_USO: u64 = 1 << 56;
}

/// Names of the bits that are offered.
const NAMES: [(u64, &str); 24] = [
    (bit::CSUM, "csum"),
    (bit::GUEST_CSUM, "guest_csum"),
    (bit::MTU, "mtu"),
    (bit::GUEST_TSO4, "guest_tso4"),
    (bit::GUEST_TSO6, "guest_tso6"),
    (bit::GUEST_ECN, "guest_ecn"),
    (bit::HOST_TSO4, "host_tso4"),
    (bit::HOST_TSO6, "host_tso6"),
    (bit::HOST_ECN, "host_ecn"),
    (bit::MRG_RXBUF, "mrg_rxbuf"),
    (bit::STATUS, "status"),
    (bit::CTRL_VQ, "ctrl_vq"),
    (bit::CTRL_RX, "ctrl_rx"),
    (bit::GUEST_ANNOUNCE, "guest_announce"),
    (bit::MQ, "mq"),
    (bit::ANY_LAYOUT, "any_layout"),
    (bit::INDIRECT_DESC, "indirect_desc"),
    (bit::EVENT_IDX, "event_idx"),
    (bit::PROTOCOL_FEATURES, "protocol_features"),
    (bit::VERSION_1, "version_1"),
    (bit::RING_PACKED, "packed"),
    (bit::GUEST_USO4, "guest_uso4"),
    (bit::GUEST_USO6, "guest_uso6"),
    (bit::HOST_USO, "host_uso"),
];

/// A set of virtio feature bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// All that is offered to a front-end.
    pub fn offered() -> Features {
        Features(NAMES.iter().fold(0, |all, (bit, _)| all | bit))
    }

    /// Whether all of `bits` are in the set.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Bytes of the offload header before each frame: without its last field only for a legacy
    /// guest that does not merge buffers (virtio 1.2, 5.1.6.1).
    pub fn vnet_len(self) -> usize {
        if self.0 & (bit::VERSION_1 | bit::MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// What the guest takes without our doing the work first. Segmentation needs checksums
    /// (5.1.3.1).
    pub fn accepts(self) -> Accepts {
        let csum = self.has(bit::GUEST_CSUM);
        let tso4 = csum && self.has(bit::GUEST_TSO4);
        let tso6 = csum && self.has(bit::GUEST_TSO6);
        Accepts {
            csum,
            tso4,
            tso6,
            ecn: (tso4 || tso6) && self.has(bit::GUEST_ECN),
            uso4: csum && self.has(bit::GUEST_USO4),
            uso6: csum && self.has(bit::GUEST_USO6),
        }
    }

    /// Names of the bits in the set, in their order; those that were never offered are left out.
    pub fn names(self) -> Vec<&'static str> {
        NAMES.iter().filter(|(bit, _)| self.has(*bit)).map(|(_, name)| *name).collect()
    }
}

/// Bits of the vhost-user protocol.
pub mod protocol {
    /// Several queue pairs.
    pub const MQ: u64 = 1 << 0;
    /// Requests are acknowledged.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front-end tells the MTU.
    pub const NET_MTU: u64 = 1 << 4;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory comes and goes region by region.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    /// All that is offered.
    ///
    /// `CONFIG` is not: front-ends of network devices keep the configuration space themselves, and
    /// QEMU warns of a backend that offers it. `STATUS` is not: stopping rings says all that it
    /// could. `INFLIGHT_SHMFD` is not needed: completion is in order, so that the ring itself
    /// says where to go on.
    pub const OFFERED: u64 = MQ | REPLY_ACK | NET_MTU | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_short_only_for_old_guests() {
        assert_eq!(Features(0).vnet_len(), 10);
        assert_eq!(Features(bit::CSUM).vnet_len(), 10);
        assert_eq!(Features(bit::MRG_RXBUF).vnet_len(), 12);
        assert_eq!(Features(bit::VERSION_1).vnet_len(), 12);
    }

    #[test]
    fn segmentation_without_checksums_is_not_believed() {
        let all = Features::offered();
        assert_eq!(all.accepts(), Accepts::ALL);
        assert_eq!(Features(all.0 & !bit::GUEST_CSUM).accepts(), Accepts::default());
        let ecn_alone = Features(bit::GUEST_CSUM | bit::GUEST_ECN).accepts();
        assert_eq!(ecn_alone, Accepts { csum: true, ..Accepts::default() });
    }

    #[test]
    fn names_are_told_in_order() {
        let set = Features(bit::RING_PACKED | bit::CSUM | 1 << 63);
        assert_eq!(set.names(), ["csum", "packed"]);
        assert_eq!(Features::offered().names().len(), NAMES.len());
    }
}
