//! The ways in which a peer can break the ring protocol.
//!
//! Each violation is a reason to stop that peer's port and to report why. None of them harms
//! another port.

use thiserror::Error;

/// A peer's violation of the protocol. The ring that reports it cannot be used until it is set up
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Violation {
    /// The queue size is zero, too big, or (split) not a power of two (virtio 1.2, 2.7 and
    /// 2.8.10.1).
    #[error("queue size {0} is not allowed")]
    QueueSize(u16),
    /// A ring area is not aligned as virtio 1.2, 2.7 and 2.8.10 ask.
    #[error("ring area at {addr:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// Guest address of the area.
        addr: u64,
        /// The alignment that was required.
        align: u64,
    },
    /// A ring area does not lie within one region of the peer's memory.
    #[error("ring area at {addr:#x}, {len} bytes, is outside the peer's memory")]
    RingOutside {
        /// Guest address of the area.
        addr: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The position to start from lies outside the ring.
    #[error("start position {0:#x} is outside the ring")]
    Start(u32),
    /// The available index is further ahead than the queue has entries.
    #[error("available index jumped to {index}, {ahead} ahead in a queue of {size}")]
    AvailableJump {
        /// The index that was read.
        index: u16,
        /// How far it is ahead of what the peer got back.
        ahead: u16,
        /// Entries in the queue.
        size: u16,
    },
    /// Xen ring: the request index is further ahead than the ring has slots, or went back.
    #[error("request index jumped to {index}, {ahead} ahead in a ring of {size}")]
    RequestJump {
        /// The index that was read.
        index: u32,
        /// How far it is ahead of what the peer got back.
        ahead: u32,
        /// Slots in the ring.
        size: u32,
    },
    /// A Xen ring's response index is further ahead than there are requests, or goes back.
    #[error("response index jumped to {index}, {ahead} ahead in a ring of {size}")]
    ResponseJump {
        /// The index that was read.
        index: u32,
        /// How far it is ahead of what was taken.
        ahead: u32,
        /// Slots in the ring.
        size: u32,
    },
    /// A descriptor index is not below the number of descriptors in its table.
    #[error("descriptor index {index} in a table of {table}")]
    DescriptorIndex {
        /// The index that was read.
        index: u16,
        /// Entries in the table.
        table: u32,
    },
    /// More descriptors are linked together than the bound allows: too long a chain, or a loop.
    #[error("descriptor chain longer than {0}, or a loop")]
    ChainTooLong(u32),
    /// The buffers of one chain add up to 4 GiB or more.
    #[error("descriptor chain of 4 GiB or more")]
    ChainTooBig,
    /// One chain lies in more pieces of host memory than are ever needed.
    #[error("descriptor chain lies in more than {0} pieces of memory")]
    ChainScattered(u32),
    /// Packed ring: a later descriptor of a chain has not been made available (virtio 1.2, 2.8.6).
    #[error("packed chain continues into a descriptor that is not available")]
    ChainTorn,
    /// Packed ring: a chain runs into descriptors which the peer has not got back yet.
    #[error("packed chain overruns descriptors in flight")]
    Overrun,
    /// An indirect descriptor although the feature was not negotiated.
    #[error("indirect descriptor without VIRTIO_F_INDIRECT_DESC")]
    IndirectNotNegotiated,
    /// An indirect table inside an indirect table (virtio 1.2, 2.7.5.3.1).
    #[error("indirect descriptor inside an indirect table")]
    IndirectNested,
    /// A descriptor that is both indirect and linked to a next one (virtio 1.2, 2.7.5.3.1).
    #[error("indirect descriptor with a next one")]
    IndirectNext,
    /// The length of an indirect table is zero, no multiple of 16, or more than 1024 entries.
    #[error("indirect table of {0} bytes")]
    IndirectLength(u32),
    /// A buffer or a table outside the peer's memory.
    #[error("address {addr:#x}, {len} bytes, is outside the peer's memory")]
    Outside {
        /// Guest address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A device-writable buffer on a transmit ring (virtio 1.2, 5.1.6.2).
    #[error("writable descriptor in a transmit chain")]
    WritableInTransmit,
    /// A device-readable buffer on a receive ring (virtio 1.2, 5.1.6.3).
    #[error("readable descriptor in a receive chain")]
    ReadableInReceive,
    /// A device-readable buffer behind a device-writable one (virtio 1.2, 2.7.4.2).
    #[error("readable descriptor behind a writable one")]
    ReadableAfterWritable,
    /// Split ring: a request begins with a descriptor that another request in flight begins with.
    #[error("descriptor {0} begins two requests at a time")]
    HeadInFlight(u16),
    /// The in-flight record of a ring is inconsistent.
    #[error("the in-flight record contradicts the ring")]
    InFlightRecord,
    /// The peer truncated the file behind its memory.
    #[error("the file behind the peer's memory was truncated")]
    MemoryTruncated,
    /// The peer truncated the file behind the log of written pages.
    #[error("the file behind the log of written pages was truncated")]
    LogTruncated,
    /// The peer caused this process to allocate more of its memory than allowed.
    #[error(
        "memory limit: more than {limit} bytes of the peer's memory were allocated by its buffers"
    )]
    MemoryLimit {
        /// The limit in bytes.
        limit: u64,
    },
    /// The peer made an interrupt's event descriptor blocking, and filled it.
    #[error("the interrupt's event descriptor is full, and was made blocking")]
    InterruptBlocks,
    /// The peer has the interrupt's event descriptor watched so often that signalling it keeps a
    /// worker busy.
    #[error(
        "slow_eventfd: signalling the interrupt's event descriptor takes too long, again and again"
    )]
    SlowInterrupt,
}
