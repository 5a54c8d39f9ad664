//! The driver of a packed virtqueue.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Interrupts, Layout, Model, Piece, RING, get16, get32, put_desc, put16, write_flag};
use crate::device::RingConfig;
use crate::packed::device::PackedDevice;
use crate::region::Memory;

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
    type Device = PackedDevice;

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
            // All descriptors look used. Those still to come look used in the pass before.
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
