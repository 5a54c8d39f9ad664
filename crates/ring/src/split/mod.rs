//! The split virtqueue (virtio 1.2, 2.7): a descriptor table, an available ring, a used ring.

mod areas;
mod avail;
pub mod device;
#[cfg(all(any(test, feature = "driver"), not(all(test, loom))))]
pub mod driver;
mod log;
mod look_ahead;
mod position;
pub mod requests;

pub use crate::desc::{
    DESC_ALIGN, DESC_INDIRECT, DESC_NEXT, DESC_SIZE, DESC_WRITE, MAX_SIZE, desc_len,
};

/// In the available ring's flags: the driver wants no interrupts (virtio 1.2, 2.7.6).
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: the device wants no kicks (virtio 1.2, 2.7.8).
pub const USED_NO_NOTIFY: u16 = 1;

/// Bytes of one entry of the available ring: le16 head index.
pub const AVAIL_ENTRY: u64 = 2;
/// Bytes of one entry of the used ring: le32 head index, le32 length.
pub const USED_ENTRY: u64 = 8;
/// Offset of the index in the available and the used ring; the flags are at 0.
pub const RING_INDEX: u64 = 2;
/// Offset of the first entry in the available and the used ring.
pub const RING_ENTRIES: u64 = 4;

/// Alignment of the available ring (virtio 1.2, 2.7).
pub const AVAIL_ALIGN: u64 = 2;
/// Alignment of the used ring (virtio 1.2, 2.7).
pub const USED_ALIGN: u64 = 4;

/// Bytes of the available ring of a queue of `size`, with the used event at its end (virtio 1.2,
/// 2.7.6).
pub const fn avail_len(size: u16) -> u64 {
    RING_ENTRIES + AVAIL_ENTRY * size as u64 + 2
}

/// Bytes of the used ring of a queue of `size`, with the available event at its end (virtio 1.2,
/// 2.7.8).
pub const fn used_len(size: u16) -> u64 {
    RING_ENTRIES + USED_ENTRY * size as u64 + 2
}

/// One descriptor, as it lies in memory (virtio 1.2, 2.7.5): little endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Desc {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// Index of the next descriptor of the chain, when the flags say that there is one.
    pub next: u16,
}
