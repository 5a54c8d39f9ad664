//! Simple model drivers to test the devices against.
//!
//! The models write rings byte by byte as the specification describes them, without regard to speed
//! or concurrency, and share no code with the rings beyond the layout constants and [`Memory`].

mod packed;
mod split;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::device::{DeviceRing, RingConfig};
use crate::region::{Memory, RegionSpec};

pub use packed::Packed;
pub use split::Split;

/// Where tests put rings; buffers come after [`BUFFERS`].
pub const RING: u64 = 0x1000;
/// From here on is room for buffers and tables, up to [`END`].
pub const BUFFERS: u64 = 0x4_0000;
/// A border between two regions that touch in guest terms only.
pub const BORDER: u64 = 0x8_0000;
/// The end of the lower memory.
pub const END: u64 = 0x10_0000;
/// One more region, `BUFFERS` bytes long.
pub const HIGH: u64 = 1 << 32;

/// A guest's memory in four regions, jumbled in their file.
pub fn memory() -> Arc<Memory> {
    remap(&memory_file())
}

pub fn memory_file() -> OwnedFd {
    let fd = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, END + BUFFERS).unwrap();
    fd
}

pub fn remap(fd: &OwnedFd) -> Arc<Memory> {
    let region = |guest_addr, len, offset| RegionSpec {
        guest_addr,
        user_addr: guest_addr,
        len,
        offset,
        fd: fd.try_clone().unwrap(),
    };
    let regions = vec![
        region(BORDER, END - BORDER, 0),
        region(HIGH, BUFFERS, END),
        region(0, BUFFERS, BORDER),
        region(BUFFERS, BORDER - BUFFERS, BORDER + BUFFERS),
    ];
    Arc::new(Memory::map(regions).unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub addr: u64,
    pub len: u32,
    pub write: bool,
}

/// How the pieces of a chain are described.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    Direct,
    /// A number of pieces directly (split only), then a table at this address.
    Indirect(usize, u64),
}

pub trait Model: Sized {
    type Device: DeviceRing;

    /// A ring whose positions start at `start`, as `RingConfig::start` has it.
    fn new(mem: Arc<Memory>, size: u16, start: u32) -> Self;
    fn negotiate(&mut self, event_idx: bool, indirect: bool);
    fn config(&self) -> RingConfig;
    /// Where a ring starts at first.
    fn origin() -> u32;
    /// Adds a chain, not visible yet. `None`: no descriptors left.
    fn add(&mut self, pieces: &[Piece], layout: Layout) -> Option<u16>;
    /// Makes all that was added visible; returns whether the device wants a kick for it.
    fn publish(&mut self) -> bool;
    /// Takes back what the device has used: id and length.
    fn used(&mut self) -> Vec<(u16, u32)>;
    /// Sets when interrupts are wanted: always, never, or once a number of chains of one descriptor
    /// beyond those taken back are used.
    fn interrupts(&mut self, wanted: Interrupts);
    /// The position from which the device says it continues, with this ring as it is.
    fn position(&self) -> u32;

    fn device(&self, mem: &Arc<Memory>) -> Self::Device {
        Self::Device::new(mem.clone(), &self.config()).unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    Always,
    Never,
    After(u16),
}

fn put16(mem: &Memory, addr: u64, value: u16) {
    mem.write(addr, &value.to_le_bytes()).unwrap();
}

fn get16(mem: &Memory, addr: u64) -> u16 {
    let mut bytes = [0; 2];
    mem.read(addr, &mut bytes).unwrap();
    u16::from_le_bytes(bytes)
}

fn get32(mem: &Memory, addr: u64) -> u32 {
    let mut bytes = [0; 4];
    mem.read(addr, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// A descriptor of either layout: the last two words are flags and next, or id and flags.
pub fn put_desc(mem: &Memory, at: u64, addr: u64, len: u32, words: [u16; 2]) {
    mem.write(at, &addr.to_le_bytes()).unwrap();
    mem.write(at + 8, &len.to_le_bytes()).unwrap();
    put16(mem, at + 12, words[0]);
    put16(mem, at + 14, words[1]);
}

fn write_flag(write: bool) -> u16 {
    if write { 2 } else { 0 }
}
