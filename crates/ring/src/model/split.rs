//! The driver of a split virtqueue.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Interrupts, Layout, Model, Piece, RING, get16, get32, put_desc, put16, write_flag};
use crate::device::RingConfig;
use crate::region::Memory;
use crate::split::device::SplitDevice;

pub struct Split {
    pub mem: Arc<Memory>,
    size: u16,
    start: u16,
    event_idx: bool,
    indirect: bool,
    /// Free descriptors in no particular order, as after a while of use.
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
    type Device = SplitDevice;

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
