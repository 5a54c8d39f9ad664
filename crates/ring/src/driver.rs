//! The driver half, or guest's half, of a virtqueue of either layout.
//!
//! The load generator and the tests use it to act as guests. [`DriverRing::add`] adds a chain of
//! buffers, [`DriverRing::publish`] makes a burst of chains visible, and [`DriverRing::collect`]
//! takes back the chains that the device has finished with.
//!
//! The device may be any vhost-user back-end, with any bug: everything that it writes is checked
//! against private state, and ends in a [`BadUsed`] instead of a wild access. Links between
//! descriptors are also kept privately, so that a device that overwrites the descriptor table
//! changes only what it reads itself.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::copy::{copy, prefetch};
use crate::desc::{DESC_ALIGN, DESC_SIZE, DESC_WRITE};
use crate::device::RingConfig;
use crate::region::Memory;
use crate::violation::Violation;

/// One descriptor's worth of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Guest address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// Which way the data of a chain goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads it: a frame that the guest transmits.
    Out,
    /// The device writes it: an empty buffer for a frame to come.
    In,
}

/// A chain that the device has finished with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The id that [`DriverRing::add`] returned for the chain.
    pub id: u16,
    /// Bytes that the device says it wrote: at most the chain's capacity, and 0 for a chain that it
    /// can only read.
    pub len: u32,
}

/// Memory for indirect descriptor tables: one table for each chain that can be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Guest address of the first table, a multiple of 16.
    pub addr: u64,
    /// Descriptors in each table.
    pub entries: u16,
}

impl Tables {
    /// Bytes of all tables of a ring with `size` descriptors.
    pub fn bytes(size: u16, entries: u16) -> u64 {
        u64::from(size) * u64::from(entries) * DESC_SIZE
    }

    /// The tables of a ring with `size` descriptors, and the memory that they lie in.
    pub(crate) fn open(self, mem: &Arc<Memory>, size: u16) -> Result<(Window, Self), Violation> {
        let bytes = Self::bytes(size, self.entries);
        Ok((Window::new(mem, self.addr, bytes, DESC_ALIGN)?, self))
    }
}

/// How many bytes each of the three parts of a ring takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Descriptor table (split) or descriptor ring (packed).
    pub desc: u64,
    /// Available ring, or the driver's event suppression area.
    pub driver: u64,
    /// Used ring, or the device's event suppression area.
    pub device: u64,
}

impl Footprint {
    /// A ring of `size` descriptors whose parts lie behind each other from guest address 0 on, each
    /// on cache lines of its own; without event index and indirect descriptors.
    pub fn at_zero(self, size: u16) -> RingConfig {
        let driver = self.desc.next_multiple_of(64);
        let device = driver + self.driver.next_multiple_of(64);
        RingConfig { size, desc: 0, driver, device, event_idx: false, indirect: false, start: 0 }
    }
}

/// Errors that no correct device makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUsed {
    /// The used index claims more chains than are in flight.
    #[error("the used index moved by {moved} with only {in_flight} chains in flight")]
    Index {
        /// How far it moved.
        moved: u16,
        /// How many chains the device had.
        in_flight: u16,
    },
    /// A used entry names a chain that the device does not have.
    #[error("used entry with id {0}, which is not in flight")]
    Id(u32),
    /// A used entry claims more bytes than the chain holds.
    #[error("used entry says {len} bytes were written to a chain of {capacity}")]
    Length {
        /// The length that the entry gives.
        len: u32,
        /// The bytes that the device could have written.
        capacity: u32,
    },
}

/// The driver half of one virtqueue. Not a trait object: each layout is compiled into its user.
pub trait DriverRing: Send + Sized {
    /// Bytes to set aside for a ring of `size` descriptors.
    fn footprint(size: u16) -> Footprint;

    /// Takes the ring at `config` into use and writes its initial state; the device must not look
    /// before. Indirect descriptors are used for every chain of several pieces when `tables`
    /// are given.
    ///
    /// # Errors
    /// An address outside `mem`, or misaligned; a size that the layout does not allow.
    fn new(
        mem: Arc<Memory>,
        config: &RingConfig,
        tables: Option<Tables>,
    ) -> Result<Self, Violation>;

    /// Adds one chain; returns its id, or `None` when descriptors have run out or `pieces` is empty
    /// or exceeds an indirect table. The device sees it after [`publish`](Self::publish).
    fn add(&mut self, pieces: &[Piece], direction: Direction) -> Option<u16>;

    /// Adds one request: pieces that the device reads, and behind them pieces that it writes.
    /// Otherwise as [`add`](Self::add).
    fn add_request(&mut self, readable: &[Piece], writable: &[Piece]) -> Option<u16>;

    /// Makes all chains added since the last call visible; true when the device asked to be kicked
    /// for them.
    fn publish(&mut self) -> bool;

    /// Takes back the chains that the device has finished with, into `used`, in the order in which
    /// it finished them; returns how many.
    ///
    /// # Errors
    /// The device broke the protocol. Entries before the bad one have been taken back, but
    /// are not reported.
    fn collect(&mut self, used: &mut [Used]) -> Result<usize, BadUsed>;

    /// Whether [`collect`](Self::collect) would find something.
    fn pending(&self) -> bool;

    /// How many more chains of `pieces` pieces fit.
    fn room(&self, pieces: usize) -> usize;

    /// Asks for an interrupt at the next used chain. True: a used chain is there already, so the
    /// caller must not sleep.
    fn arm(&mut self) -> bool;

    /// Stops asking for interrupts, as far as the layout allows. With the split layout's event
    /// index, the index simply becomes stale.
    fn disarm(&mut self);
}

/// The descriptor flag for a direction.
#[inline]
pub(crate) fn direction_flag(direction: Direction) -> u16 {
    match direction {
        Direction::Out => 0,
        Direction::In => DESC_WRITE,
    }
}

/// The pieces of a request in their order, and which way the data of each goes.
pub(crate) fn request_pieces(
    readable: &[Piece],
    writable: &[Piece],
) -> impl Iterator<Item = (Piece, u16)> {
    let out = readable.iter().map(|piece| (*piece, 0));
    out.chain(writable.iter().map(|piece| (*piece, DESC_WRITE)))
}

/// Checks the length of a used entry for a chain of which `capacity` bytes are writable. The length
/// of a chain that the device only reads is not checked: DPDK leaves the descriptor's own length
/// there, and no driver uses it.
#[inline]
pub(crate) fn written(len: u32, capacity: u32) -> Result<u32, BadUsed> {
    match capacity {
        0 => Ok(0),
        _ if len > capacity => Err(BadUsed::Length { len, capacity }),
        _ => Ok(len),
    }
}

/// The number of chains of `pieces` pieces that `free` free descriptors have room for.
pub(crate) fn room(free: usize, has_tables: bool, pieces: usize) -> usize {
    if has_tables && pieces > 1 { free } else { free / pieces.max(1) }
}

/// Bytes that a device may write to a chain. A hostile test's lengths may well exceed what 32 bits
/// hold.
#[inline]
pub(crate) fn capacity(pieces: &[Piece], direction: Direction) -> u32 {
    match direction {
        Direction::Out => 0,
        Direction::In => pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.len)),
    }
}

/// A range of guest memory that the driver works in: resolved once, bounds-checked at each access.
///
/// Buffers are copied to and from; the parts of a ring are reached as naturally aligned atomics,
/// since the device works on them at the same time.
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    _mem: Arc<Memory>,
}

// SAFETY: the memory is mapped as long as `_mem` lives, whatever thread uses it, and is reached
// through raw copies and atomics only, as `Memory` itself does it.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// The `len` bytes at guest address `addr`, which must be a multiple of `align`.
    ///
    /// # Errors
    /// When they do not lie within one region of the memory, or are misaligned.
    pub fn new(mem: &Arc<Memory>, addr: u64, len: u64, align: u64) -> Result<Self, Violation> {
        let base = mem.host(addr, len, align)?;
        Ok(Self { base, len: len as usize, _mem: mem.clone() })
    }

    /// Copies from `offset` on into `buf`.
    ///
    /// # Panics
    /// Beyond the end of the window: offsets are the driver's own.
    #[inline]
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        let from = self.span(offset as usize, buf.len());
        // SAFETY: the span is inside the mapping, `buf` is private memory of the same length.
        unsafe { copy(from, buf.as_mut_ptr(), buf.len()) };
    }

    /// Copies `buf` to `offset`.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write(&self, offset: u64, buf: &[u8]) {
        let to = self.span(offset as usize, buf.len());
        // SAFETY: the span is inside the mapping, `buf` is private memory of the same length.
        unsafe { copy(buf.as_ptr(), to, buf.len()) };
    }

    /// The 8 bytes at `offset`, of any alignment, as a little-endian number.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn read_word(&self, offset: u64) -> u64 {
        let from = self.span(offset as usize, 8);
        // SAFETY: the span is inside the mapping; any bytes are a number.
        unsafe { from.cast::<u64>().read_unaligned() }
    }

    /// Writes a number as 8 little-endian bytes to `offset`, of any alignment.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    pub fn write_word(&self, offset: u64, word: u64) {
        let to = self.span(offset as usize, 8);
        // SAFETY: the span is inside the mapping.
        unsafe { to.cast::<u64>().write_unaligned(word) };
    }

    /// Prefetches the cache line at `offset`.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        prefetch(self.base.as_ptr().wrapping_add(offset as usize));
    }

    /// Host address of `len` bytes at `at`. Offsets come from private state of the driver, so one
    /// that is out of range is a bug that no device can cause.
    #[inline]
    fn span(&self, at: usize, len: usize) -> *mut u8 {
        assert!(len <= self.len && at <= self.len - len, "outside the window");
        // SAFETY: inside the window, as just checked.
        unsafe { self.base.as_ptr().add(at) }
    }

    #[inline]
    fn aligned<T>(&self, at: usize) -> *mut T {
        assert!(at.is_multiple_of(size_of::<T>()), "misaligned");
        self.span(at, size_of::<T>()).cast()
    }

    #[inline]
    pub(crate) fn u16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: in bounds and aligned: a ring's parts start aligned to their widest access.
        // Shared memory is reached atomically only.
        unsafe { AtomicU16::from_ptr(self.aligned(at)) }
    }

    #[inline]
    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU32::from_ptr(self.aligned(at)) }
    }

    #[inline]
    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `u16`.
        unsafe { AtomicU64::from_ptr(self.aligned(at)) }
    }
}

#[cfg(test)]
mod tests;
