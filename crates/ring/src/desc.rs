//! The properties of descriptors that both layouts share.

/// The chain goes on: at `next` in a split ring (virtio 1.2, 2.7.5), with the next descriptor of a
/// packed one (2.8.6).
pub const DESC_NEXT: u16 = 1;
/// The device may write the buffer; otherwise it may read it (virtio 1.2, 2.7.5 and 2.8.5).
pub const DESC_WRITE: u16 = 2;
/// The buffer is a table of descriptors (virtio 1.2, 2.7.5.3 and 2.8.7).
pub const DESC_INDIRECT: u16 = 4;

/// Bytes of one descriptor.
pub const DESC_SIZE: u64 = 16;
/// Alignment of the descriptor table or ring, in bytes (virtio 1.2, 2.7 and 2.8.10.1).
pub const DESC_ALIGN: u64 = 16;

/// Largest queue, in descriptors (virtio 1.2, 2.7 and 2.8.10.1).
pub const MAX_SIZE: u16 = 32768;

/// Bytes of the descriptor table or ring of a queue of `size`.
pub const fn desc_len(size: u16) -> u64 {
    DESC_SIZE * size as u64
}
