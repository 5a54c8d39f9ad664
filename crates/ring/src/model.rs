//! Straightforward drivers to test the devices against.
//!
//! They write rings byte by byte as the specification describes them, without a thought of speed or
//! of concurrency, and share no code with the rings beyond the layout constants and [`Memory`].

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::device::{DeviceRing, RingConfig};
use crate::region::{Memory, RegionSpec};
use crate::{packed, split};

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
    /// So many pieces directly (split only), then a table at this address.
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
    /// Interrupts wanted always, never, or once so many chains of one descriptor beyond those taken
    /// back are used.
    fn interrupts(&mut self, wanted: Interrupts);
    /// What the device says it goes on from, with this ring as it is.
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

pub struct Split {
    pub mem: Arc<Memory>,
    size: u16,
    start: u16,
    event_idx: bool,
    indirect: bool,
    /// In no particular order, as after a while.
    free: Vec<u16>,
    chains: HashMap<u16, Vec<u16>>,
    added: u16,
    published: u16,
    taken: u16,
}

impl Split {
    pub fn desc(&self, index: u16) -> u64 {
        RING + 16 * u64::from(index)
    }

    pub fn avail(&self) -> u64 {
        self.desc(self.size)
    }

    pub fn used_ring(&self) -> u64 {
        (self.avail() + 6 + 2 * u64::from(self.size)).next_multiple_of(4)
    }

    fn slot(&self, index: u16) -> u64 {
        u64::from(index % self.size)
    }

    fn take_free(&mut self) -> u16 {
        let at = self.free.len() * 7 / 11;
        self.free.swap_remove(at)
    }
}

impl Model for Split {
    type Device = split::device::SplitDevice;

    fn new(mem: Arc<Memory>, size: u16, start: u32) -> Self {
        let start = start as u16;
        let model = Self {
            mem,
            size,
            start,
            event_idx: true,
            indirect: true,
            free: (0..size).collect(),
            chains: HashMap::new(),
            added: start,
            published: start,
            taken: start,
        };
        put16(&model.mem, model.avail() + 2, start);
        put16(&model.mem, model.used_ring() + 2, start);
        model
    }

    fn origin() -> u32 {
        0
    }

    fn negotiate(&mut self, event_idx: bool, indirect: bool) {
        (self.event_idx, self.indirect) = (event_idx, indirect);
    }

    fn config(&self) -> RingConfig {
        RingConfig {
            size: self.size,
            desc: self.desc(0),
            driver: self.avail(),
            device: self.used_ring(),
            event_idx: self.event_idx,
            indirect: self.indirect,
            start: self.start.into(),
        }
    }

    fn add(&mut self, pieces: &[Piece], layout: Layout) -> Option<u16> {
        let direct = match layout {
            Layout::Direct => pieces.len(),
            Layout::Indirect(direct, table) => {
                let rest = &pieces[direct..];
                // Table entries in reverse order but for the first: links, not neighbours, make the
                // chain.
                let place = |i: usize| if i == 0 { 0 } else { rest.len() - i };
                for (i, piece) in rest.iter().enumerate() {
                    let next = if i + 1 < rest.len() { 1 } else { 0 };
                    let words = [write_flag(piece.write) | next, place(i + 1) as u16];
                    put_desc(&self.mem, table + 16 * place(i) as u64, piece.addr, piece.len, words);
                }
                direct
            }
        };
        let mut list: Vec<_> = pieces[..direct]
            .iter()
            .map(|piece| (piece.addr, piece.len, write_flag(piece.write)))
            .collect();
        if let Layout::Indirect(_, table) = layout {
            list.push((table, 16 * (pieces.len() - direct) as u32, 4));
        }
        if list.len() > self.free.len() {
            return None;
        }
        let ids: Vec<u16> = list.iter().map(|_| self.take_free()).collect();
        for (i, (addr, len, flags)) in list.iter().enumerate() {
            let next = ids.get(i + 1).copied();
            let words = [flags | if next.is_some() { 1 } else { 0 }, next.unwrap_or(0xffff)];
            put_desc(&self.mem, self.desc(ids[i]), *addr, *len, words);
        }
        put16(&self.mem, self.avail() + 4 + 2 * self.slot(self.added), ids[0]);
        self.added = self.added.wrapping_add(1);
        let head = ids[0];
        self.chains.insert(head, ids);
        Some(head)
    }

    fn publish(&mut self) -> bool {
        let old = self.published;
        put16(&self.mem, self.avail() + 2, self.added);
        self.published = self.added;
        if old == self.added {
            return false;
        }
        if self.event_idx {
            let event = get16(&self.mem, self.used_ring() + 4 + 8 * u64::from(self.size));
            // Entry number `event` is among those just published.
            (0..self.added.wrapping_sub(old)).any(|i| old.wrapping_add(i) == event)
        } else {
            get16(&self.mem, self.used_ring()) & 1 == 0
        }
    }

    fn used(&mut self) -> Vec<(u16, u32)> {
        let index = get16(&self.mem, self.used_ring() + 2);
        let mut list = Vec::new();
        while self.taken != index {
            let at = self.used_ring() + 4 + 8 * self.slot(self.taken);
            let (id, len) = (get32(&self.mem, at), get32(&self.mem, at + 4));
            let ids = self.chains.remove(&(id as u16)).expect("a chain that is in flight");
            self.free.extend(ids);
            list.push((id as u16, len));
            self.taken = self.taken.wrapping_add(1);
        }
        list
    }

    fn interrupts(&mut self, wanted: Interrupts) {
        let event = self.avail() + 4 + 2 * u64::from(self.size);
        match wanted {
            Interrupts::Always => {
                put16(&self.mem, self.avail(), 0);
                put16(&self.mem, event, self.taken);
            }
            Interrupts::Never => {
                put16(&self.mem, self.avail(), 1);
                put16(&self.mem, event, self.taken.wrapping_sub(1));
            }
            Interrupts::After(n) => put16(&self.mem, event, self.taken.wrapping_add(n)),
        }
    }

    fn position(&self) -> u32 {
        self.taken.into()
    }
}

pub struct Packed {
    pub mem: Arc<Memory>,
    size: u16,
    start: u32,
    event_idx: bool,
    indirect: bool,
    free: u16,
    ids: Vec<u16>,
    /// Descriptors that each id in flight occupies.
    counts: HashMap<u16, u16>,
    /// Next descriptor to fill, free-running: each pass over the ring flips the wrap counter.
    filled: u64,
    published: u64,
    taken: u64,
    /// Flags of chains' first descriptors, still to be written.
    held_back: Vec<(u64, u16)>,
}

impl Packed {
    pub fn desc(&self, number: u64) -> u64 {
        RING + 16 * (number % u64::from(self.size))
    }

    fn driver(&self) -> u64 {
        self.desc(0) + 16 * u64::from(self.size)
    }

    /// The wrap counter when descriptor `number` is written: 1 in the first pass over the ring.
    fn wrap(&self, number: u64) -> bool {
        (number / u64::from(self.size)).is_multiple_of(2)
    }

    pub fn available(&self, number: u64) -> u16 {
        if self.wrap(number) { 1 << 7 } else { 1 << 15 }
    }

    fn word(&self, number: u64) -> u16 {
        (number % u64::from(self.size)) as u16 | if self.wrap(number) { 1 << 15 } else { 0 }
    }
}

impl Model for Packed {
    type Device = packed::device::PackedDevice;

    fn new(mem: Arc<Memory>, size: u16, start: u32) -> Self {
        let wrapped = if start & 0x8000 != 0 { 0 } else { u64::from(size) };
        let number = u64::from(start & 0x7fff) + wrapped;
        let model = Self {
            mem,
            size,
            start,
            event_idx: true,
            indirect: true,
            free: size,
            ids: (0..size).map(|id| id.wrapping_mul(3) ^ 0x5a00).collect(),
            counts: HashMap::new(),
            filled: number,
            published: number,
            taken: number,
            held_back: Vec::new(),
        };
        for i in 0..u64::from(size) {
            // All used: in the pass before for those still to come.
            let wrap = model.wrap(if i < number % u64::from(size) {
                number
            } else {
                number + u64::from(size)
            });
            put16(&model.mem, model.desc(i) + 14, if wrap { 0x8080 } else { 0 });
        }
        model
    }

    fn origin() -> u32 {
        0x8000_8000
    }

    fn negotiate(&mut self, event_idx: bool, indirect: bool) {
        (self.event_idx, self.indirect) = (event_idx, indirect);
    }

    fn config(&self) -> RingConfig {
        RingConfig {
            size: self.size,
            desc: self.desc(0),
            driver: self.driver(),
            device: self.driver() + 4,
            event_idx: self.event_idx,
            indirect: self.indirect,
            start: self.start,
        }
    }

    fn add(&mut self, pieces: &[Piece], layout: Layout) -> Option<u16> {
        let list: Vec<_> = match layout {
            Layout::Direct => pieces
                .iter()
                .map(|piece| (piece.addr, piece.len, write_flag(piece.write)))
                .collect(),
            Layout::Indirect(_, table) => {
                for (i, piece) in pieces.iter().enumerate() {
                    let words = [0xdead, write_flag(piece.write)];
                    put_desc(&self.mem, table + 16 * i as u64, piece.addr, piece.len, words);
                }
                vec![(table, 16 * pieces.len() as u32, 4)]
            }
        };
        let count = list.len() as u16;
        if count > self.free {
            return None;
        }
        let id = self.ids.swap_remove(self.ids.len() * 7 / 11);
        for (i, (addr, len, flags)) in list.iter().enumerate() {
            let number = self.filled + i as u64;
            let last = i + 1 == list.len();
            let flags = self.available(number) | flags | if last { 0 } else { 1 };
            let at = self.desc(number);
            let now = if i == 0 { get16(&self.mem, at + 14) } else { flags };
            // Only the last descriptor's id counts.
            put_desc(&self.mem, at, *addr, *len, [if last { id } else { 0xbad }, now]);
            if i == 0 {
                self.held_back.push((number, flags));
            }
        }
        self.filled += u64::from(count);
        self.free -= count;
        self.counts.insert(id, count);
        Some(id)
    }

    fn publish(&mut self) -> bool {
        for (number, flags) in std::mem::take(&mut self.held_back).into_iter().rev() {
            put16(&self.mem, self.desc(number) + 14, flags);
        }
        let published = std::mem::replace(&mut self.published, self.filled);
        if published == self.filled {
            return false;
        }
        let (word, flags) =
            (get16(&self.mem, self.driver() + 4), get16(&self.mem, self.driver() + 6));
        match flags {
            0 => true,
            2 => (published..self.filled).any(|number| self.word(number) == word),
            _ => false,
        }
    }

    fn used(&mut self) -> Vec<(u16, u32)> {
        let mut list = Vec::new();
        while self.taken != self.filled {
            let at = self.desc(self.taken);
            let (id, flags) = (get16(&self.mem, at + 12), get16(&self.mem, at + 14));
            if flags & 0x8080 != if self.wrap(self.taken) { 0x8080 } else { 0 } {
                break;
            }
            let count = self.counts.remove(&id).expect("a chain that is in flight");
            let len = get32(&self.mem, at + 8);
            assert_eq!(flags & 2 != 0, len > 0);
            self.ids.push(id);
            self.free += count;
            self.taken += u64::from(count);
            list.push((id, len));
        }
        list
    }

    fn interrupts(&mut self, wanted: Interrupts) {
        let (word, flags) = match wanted {
            Interrupts::Always => (0, 0),
            Interrupts::Never => (0, 1),
            Interrupts::After(n) => (self.word(self.taken + u64::from(n)), 2),
        };
        put16(&self.mem, self.driver(), word);
        put16(&self.mem, self.driver() + 2, flags);
    }

    fn position(&self) -> u32 {
        let word = u32::from(self.word(self.taken));
        word | word << 16
    }
}
