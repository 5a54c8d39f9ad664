//! Features of a block device.

use storage::Disk;
use virtio_bindings::virtio_blk::*;

use crate::transport::feature::{Features, protocol};

/// Feature bits of a block device (virtio 1.2, 5.2.3).
pub mod bit {
    use super::*;

    pub use crate::transport::feature::bit::*;

    /// A request has a limited number of pieces.
    pub const SEG_MAX: u64 = 1 << VIRTIO_BLK_F_SEG_MAX;
    /// The disk is read-only.
    pub const RO: u64 = 1 << VIRTIO_BLK_F_RO;
    /// The configuration space holds the size of a block.
    pub const BLK_SIZE: u64 = 1 << VIRTIO_BLK_F_BLK_SIZE;
    /// The configuration space holds the size of a physical block.
    pub const TOPOLOGY: u64 = 1 << VIRTIO_BLK_F_TOPOLOGY;
    /// The driver sends flushes.
    pub const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
    /// The driver may switch the write cache on and off.
    pub const CONFIG_WCE: u64 = 1 << VIRTIO_BLK_F_CONFIG_WCE;
    /// Several queues.
    pub const MQ: u64 = 1 << VIRTIO_BLK_F_MQ;
    /// The driver may discard ranges.
    pub const DISCARD: u64 = 1 << VIRTIO_BLK_F_DISCARD;
    /// The driver may request that ranges be filled with zeros.
    pub const WRITE_ZEROES: u64 = 1 << VIRTIO_BLK_F_WRITE_ZEROES;
}

/// Names of the device bits that are offered.
const NAMES: [(u64, &str); 9] = [
    (bit::SEG_MAX, "seg_max"),
    (bit::RO, "ro"),
    (bit::BLK_SIZE, "blk_size"),
    (bit::FLUSH, "flush"),
    (bit::TOPOLOGY, "topology"),
    (bit::CONFIG_WCE, "config_wce"),
    (bit::MQ, "mq"),
    (bit::DISCARD, "discard"),
    (bit::WRITE_ZEROES, "write_zeroes"),
];

/// Protocol features of a block device beside those of the transport. Front-ends read the
/// configuration space from the back-end, and are told when it has changed.
pub const PROTOCOL: u64 = protocol::CONFIG | protocol::BACKEND_REQ;

/// The device bits that are offered for a disk.
pub fn offered(disk: &Disk) -> u64 {
    let always =
        bit::SEG_MAX | bit::BLK_SIZE | bit::FLUSH | bit::TOPOLOGY | bit::CONFIG_WCE | bit::MQ;
    let image = disk.image();
    match image.is_read_only() {
        true => always | bit::RO,
        false if image.discards() => always | bit::DISCARD | bit::WRITE_ZEROES,
        false => always | bit::WRITE_ZEROES,
    }
}

/// Names of the bits in `features`, in the order of the bits.
pub fn names(features: Features) -> Vec<&'static str> {
    features.names(&NAMES)
}
