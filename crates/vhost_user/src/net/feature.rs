//! Features of a network device.
//!
//! Two kinds of bits are offered. For most, the offer means that the ring or the frame pipeline
//! implements the feature. Others concern the front-end only (link status, the control queue,
//! announcements after a migration); front-ends show their guest only features that the back-end
//! also offers, so these are offered as well.

use frame::offload::Accepts;
use virtio_bindings::virtio_net::*;

use crate::transport::feature::{Features, protocol};

/// Feature bits of a network device (virtio 1.2, 5.1.3), and those of the transport.
pub mod bit {
    use super::*;

    pub use crate::transport::feature::bit::*;

    /// The driver may leave checksums to the device.
    pub const CSUM: u64 = 1 << VIRTIO_NET_F_CSUM;
    /// The driver takes frames with partial checksums.
    pub const GUEST_CSUM: u64 = 1 << VIRTIO_NET_F_GUEST_CSUM;
    /// The configuration space holds an MTU.
    pub const MTU: u64 = 1 << VIRTIO_NET_F_MTU;
    /// The driver takes TSO over IPv4.
    pub const GUEST_TSO4: u64 = 1 << VIRTIO_NET_F_GUEST_TSO4;
    /// The driver takes TSO over IPv6.
    pub const GUEST_TSO6: u64 = 1 << VIRTIO_NET_F_GUEST_TSO6;
    /// The driver takes TSO with ECN.
    pub const GUEST_ECN: u64 = 1 << VIRTIO_NET_F_GUEST_ECN;
    /// The driver may send TSO over IPv4.
    pub const HOST_TSO4: u64 = 1 << VIRTIO_NET_F_HOST_TSO4;
    /// The driver may send TSO over IPv6.
    pub const HOST_TSO6: u64 = 1 << VIRTIO_NET_F_HOST_TSO6;
    /// The driver may send TSO with ECN.
    pub const HOST_ECN: u64 = 1 << VIRTIO_NET_F_HOST_ECN;
    /// One frame may fill several receive buffers.
    pub const MRG_RXBUF: u64 = 1 << VIRTIO_NET_F_MRG_RXBUF;
    /// The driver reads a link status (from the front-end).
    pub const STATUS: u64 = 1 << VIRTIO_NET_F_STATUS;
    /// There is a control queue (in the front-end).
    pub const CTRL_VQ: u64 = 1 << VIRTIO_NET_F_CTRL_VQ;
    /// The control queue sets receive modes (in the front-end).
    pub const CTRL_RX: u64 = 1 << VIRTIO_NET_F_CTRL_RX;
    /// The driver announces itself after a migration (on request of the front-end).
    pub const GUEST_ANNOUNCE: u64 = 1 << VIRTIO_NET_F_GUEST_ANNOUNCE;
    /// Several queue pairs.
    pub const MQ: u64 = 1 << VIRTIO_NET_F_MQ;
    /// The driver takes USO over IPv4.
    pub const GUEST_USO4: u64 = 1 << VIRTIO_NET_F_GUEST_USO4;
    /// The driver takes USO over IPv6.
    pub const GUEST_USO6: u64 = 1 << VIRTIO_NET_F_GUEST_USO6;
    /// The driver may send USO.
    pub const HOST_USO: u64 = 1 << VIRTIO_NET_F_HOST_USO;
}

/// Names of the device bits that are offered.
const NAMES: [(u64, &str); 18] = [
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
    (bit::GUEST_USO4, "guest_uso4"),
    (bit::GUEST_USO6, "guest_uso6"),
    (bit::HOST_USO, "host_uso"),
];

/// Protocol features of a network device beside those of the transport.
///
/// `CONFIG` is not among them: front-ends of network devices keep the configuration space
/// themselves, and QEMU warns about a back-end that offers it.
pub const PROTOCOL: u64 = protocol::NET_MTU | protocol::RARP;

/// The device bits that are offered.
pub fn offered() -> u64 {
    NAMES.iter().fold(0, |all, (bit, _)| all | bit)
}

/// All that a front-end is offered, with the bits of the transport.
pub fn all_offered() -> Features {
    Features(offered() | crate::transport::feature::OFFERED)
}

/// All protocol features that a front-end is offered, with those of the transport.
pub const ALL_PROTOCOL: u64 = PROTOCOL | protocol::OFFERED;

/// Names of the bits in `features`, in the order of the bits.
pub fn names(features: Features) -> Vec<&'static str> {
    features.names(&NAMES)
}

/// Bytes of `virtio_net_hdr` before each frame: 10 only for a legacy driver that does not merge
/// buffers (virtio 1.2, 5.1.6.1), otherwise 12.
pub fn header_len(features: Features) -> usize {
    if features.0 & (bit::VERSION_1 | bit::MRG_RXBUF) != 0 { 12 } else { 10 }
}

/// The offloads that the driver accepts. Segmentation depends on checksums (virtio 1.2, 5.1.3.1).
pub fn accepts(features: Features) -> Accepts {
    let csum = features.has(bit::GUEST_CSUM);
    let tso4 = csum && features.has(bit::GUEST_TSO4);
    let tso6 = csum && features.has(bit::GUEST_TSO6);
    Accepts {
        csum,
        tso4,
        tso6,
        ecn: (tso4 || tso6) && features.has(bit::GUEST_ECN),
        uso4: csum && features.has(bit::GUEST_USO4),
        uso6: csum && features.has(bit::GUEST_USO6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_short_only_for_legacy_drivers() {
        assert_eq!(header_len(Features(0)), 10);
        assert_eq!(header_len(Features(bit::CSUM)), 10);
        assert_eq!(header_len(Features(bit::MRG_RXBUF)), 12);
        assert_eq!(header_len(Features(bit::VERSION_1)), 12);
    }

    #[test]
    fn segmentation_without_checksums_is_ignored() {
        let all = all_offered();
        assert_eq!(accepts(all), Accepts::ALL);
        assert_eq!(accepts(Features(all.0 & !bit::GUEST_CSUM)), Accepts::default());
        let ecn_alone = accepts(Features(bit::GUEST_CSUM | bit::GUEST_ECN));
        assert_eq!(ecn_alone, Accepts { csum: true, ..Accepts::default() });
    }

    #[test]
    fn names_are_in_the_order_of_the_bits() {
        let set = Features(bit::RING_PACKED | bit::CSUM | bit::HOST_USO | 1 << 63);
        assert_eq!(names(set), ["csum", "packed", "host_uso"]);
        assert_eq!(names(all_offered()).len(), 25);
        assert_eq!(all_offered().0.count_ones(), 25);
    }
}
