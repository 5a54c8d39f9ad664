//! The packed virtqueue (virtio 1.2, 2.8): one ring of descriptors that both sides write.

#[cfg(not(all(test, loom)))]
mod areas;
#[cfg(not(all(test, loom)))]
mod avail;
#[cfg(not(all(test, loom)))]
pub mod device;
#[cfg(all(any(test, feature = "driver"), not(all(test, loom))))]
pub mod driver;
#[cfg(not(all(test, loom)))]
mod log;
#[cfg(not(all(test, loom)))]
mod recovery;
#[cfg(not(all(test, loom)))]
pub mod requests;
#[cfg(not(all(test, loom)))]
mod used;

pub use crate::desc::{
    DESC_ALIGN, DESC_INDIRECT, DESC_NEXT, DESC_SIZE, DESC_WRITE, MAX_SIZE, desc_len,
};
pub use crate::notify::{EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, WRAP};

/// Set to the driver's wrap counter when it makes a descriptor available, to the device's when that
/// marks it used (virtio 1.2, 2.8.1).
pub const DESC_AVAIL: u16 = 1 << 7;
/// Set to the inverse of the driver's wrap counter when it makes a descriptor available, to the
/// device's wrap counter when that marks it used (virtio 1.2, 2.8.1).
pub const DESC_USED: u16 = 1 << 15;

/// Bytes of an event suppression structure: le16 offset and wrap, le16 flags.
pub const EVENT_SIZE: u64 = 4;

/// Alignment of the event suppression structures (virtio 1.2, 2.8.10.1).
pub const EVENT_ALIGN: u64 = 4;

/// One descriptor, as it lies in memory (virtio 1.2, 2.8.13): little endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Desc {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Its length in bytes; of a used one, the bytes written.
    pub len: u32,
    /// Id of the buffer, which the device returns in the used descriptor.
    pub id: u16,
    /// `DESC_*`.
    pub flags: u16,
}

/// The flags that make a descriptor available under the driver's wrap counter `wrap`.
#[inline]
pub const fn available_flags(wrap: bool) -> u16 {
    if wrap { DESC_AVAIL } else { DESC_USED }
}

/// The flags that mark a descriptor used under the device's wrap counter `wrap`.
#[inline]
pub const fn used_flags(wrap: bool) -> u16 {
    if wrap { DESC_AVAIL | DESC_USED } else { 0 }
}

/// The last eight bytes of a used descriptor: le32 length, le16 buffer id, le16 flags. One store
/// writes them, so a used descriptor is never half written, even if this process is killed.
#[cfg(not(all(test, loom)))]
#[inline]
const fn used_word(len: u32, id: u16, wrap: bool) -> u64 {
    let flags = used_flags(wrap) | if len > 0 { DESC_WRITE } else { 0 };
    len as u64 | (id as u64) << 32 | (flags as u64) << 48
}

/// `flags` of a descriptor, as they are when the device has marked it used.
#[cfg(not(all(test, loom)))]
#[inline]
const fn marked_used(flags: u16, wrap: bool) -> u16 {
    flags & !(DESC_AVAIL | DESC_USED) | used_flags(wrap)
}

/// `flags` of a descriptor, as they are when the driver has made it available.
#[cfg(not(all(test, loom)))]
#[inline]
const fn marked_available(flags: u16, wrap: bool) -> u16 {
    flags & !(DESC_AVAIL | DESC_USED) | available_flags(wrap)
}
