//! The driver half of a split virtqueue (virtio 1.2, 2.7).
//!
//! Free descriptors form a queue, so that a device that works in order sees them, and their
//! buffers, in address order. The links of the queue are private; the shared table is written and
//! never read.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::device::RingConfig;
use crate::driver::{
    BadUsed, Direction, DriverRing, Footprint, Piece, Tables, Used, Window, capacity,
    direction_flag, request_pieces, room, written,
};
use crate::notify::{arm_event, arm_flags, disarm_flags, publish_with_event, publish_with_flags};
use crate::region::Memory;
use crate::split::{
    AVAIL_ALIGN, AVAIL_NO_INTERRUPT, DESC_ALIGN, DESC_INDIRECT, DESC_NEXT, DESC_SIZE, MAX_SIZE,
    USED_ALIGN, avail_len, desc_len, used_len,
};
use crate::violation::Violation;

/// Private state of the chain that begins at a descriptor.
#[derive(Clone, Copy, Default)]
struct InFlight {
    /// Descriptors that it occupies in the table; 0: not in flight.
    count: u16,
    /// The last of them.
    last: u16,
    /// Bytes that the device may write.
    capacity: u32,
}

/// The free descriptors.
struct FreeQueue {
    /// The descriptor behind each one: in the queue, or in a chain in flight.
    next: Box<[u16]>,
    head: usize,
    tail: usize,
    len: usize,
}

impl FreeQueue {
    /// All descriptors of a table.
    fn new(size: u16) -> Self {
        let next = (0..size).map(|i| (i + 1) & (size - 1)).collect();
        FreeQueue { next, head: 0, tail: usize::from(size - 1), len: usize::from(size) }
    }

    /// Takes the descriptor at the head.
    #[inline]
    fn take(&mut self) -> Option<usize> {
        let head = self.head;
        self.len = self.len.checked_sub(1)?;
        self.head = usize::from(self.next[head]);
        Some(head)
    }

    /// Takes `count` descriptors, behind which `head` is the next.
    fn advance(&mut self, count: usize, head: usize) {
        self.head = head;
        self.len -= count;
    }

    /// Puts a chain of `count` descriptors behind the tail.
    #[inline]
    fn give_back(&mut self, head: u16, last: u16, count: u16) {
        if self.len == 0 {
            self.head = usize::from(head);
        } else {
            self.next[self.tail] = head;
        }
        self.tail = usize::from(last);
        self.len += usize::from(count);
    }
}

/// The driver half of a split virtqueue.
///
/// Counters are machine words although 16 bits would hold them. Compilers read a 16-bit field with
/// a 32-bit load where alignment allows; when the field beside it has just been written, that load
/// waits for the store to leave the store buffer, behind all stores to cache lines that the device
/// has at the time. That wait halves the throughput.
pub struct SplitDriver {
    desc: Window,
    avail: Window,
    used: Window,
    tables: Option<(Window, Tables)>,
    size: usize,
    event_idx: bool,
    free: FreeQueue,
    in_flight: Box<[InFlight]>,
    in_flight_count: usize,
    /// Next avail entry to write, and how far the device has been told; the ring holds their low
    /// 16 bits.
    avail_idx: usize,
    told_idx: usize,
    /// Next used entry to take; likewise.
    used_idx: usize,
}

impl SplitDriver {
    /// Byte offset of `used_event` in the avail ring, and of used element 0 and `avail_event` in
    /// the used ring.
    fn used_event(&self) -> usize {
        4 + 2 * self.size
    }

    fn avail_event(&self) -> usize {
        4 + 8 * self.size
    }

    #[inline]
    fn slot(&self, index: usize) -> usize {
        index & (self.size - 1)
    }

    /// Writes the chain into table number `head` and one descriptor that refers to it.
    fn add_indirect(&mut self, pieces: &[Piece], direction: Direction) -> Option<u16> {
        let (part, tables) = self.tables.as_ref()?;
        if pieces.len() > usize::from(tables.entries) {
            return None;
        }
        let head = self.free.take()?;
        let offset = head as u64 * u64::from(tables.entries) * DESC_SIZE;
        for (i, piece) in pieces.iter().enumerate() {
            let more = if i + 1 < pieces.len() { DESC_NEXT } else { 0 };
            let flags = direction_flag(direction) | more;
            write_desc(part, offset as usize + i * 16, *piece, flags, i as u16 + 1);
        }
        let table = Piece { addr: tables.addr + offset, len: pieces.len() as u32 * 16 };
        write_desc(&self.desc, head * 16, table, DESC_INDIRECT, 0);
        self.set_in_flight(head, 1, head, capacity(pieces, direction));
        Some(head as u16)
    }

    #[inline]
    fn add_one(&mut self, piece: Piece, direction: Direction) -> Option<u16> {
        let head = self.free.take()?;
        write_desc(&self.desc, head * 16, piece, direction_flag(direction), 0);
        self.set_in_flight(head, 1, head, capacity(&[piece], direction));
        Some(head as u16)
    }

    fn add_direct(&mut self, pieces: &[Piece], direction: Direction) -> Option<u16> {
        if pieces.is_empty() || pieces.len() > self.free.len {
            return None;
        }
        let head = self.free.head;
        let (mut at, mut last) = (head, head);
        for (i, piece) in pieces.iter().enumerate() {
            let next = self.free.next[at];
            let more = if i + 1 < pieces.len() { DESC_NEXT } else { 0 };
            write_desc(&self.desc, at * 16, *piece, direction_flag(direction) | more, next);
            (last, at) = (at, usize::from(next));
        }
        self.free.advance(pieces.len(), at);
        self.set_in_flight(head, pieces.len() as u16, last, capacity(pieces, direction));
        Some(head as u16)
    }

    #[inline]
    fn set_in_flight(&mut self, head: usize, count: u16, last: usize, capacity: u32) {
        self.in_flight[head] = InFlight { count, last: last as u16, capacity };
        self.in_flight_count += 1;
    }

    /// Checks one used entry against what is in flight, and frees its descriptors.
    #[inline]
    fn take_back(&mut self, id: u32, len: u32) -> Result<Used, BadUsed> {
        let chain = match self.in_flight.get_mut(id as usize) {
            Some(chain) if chain.count > 0 => std::mem::take(chain),
            _ => return Err(BadUsed::Id(id)),
        };
        self.free.give_back(id as u16, chain.last, chain.count);
        self.in_flight_count -= 1;
        Ok(Used { id: id as u16, len: written(len, chain.capacity)? })
    }
}

impl DriverRing for SplitDriver {
    fn footprint(size: u16) -> Footprint {
        Footprint { desc: desc_len(size), driver: avail_len(size), device: used_len(size) }
    }

    fn new(
        mem: Arc<Memory>,
        config: &RingConfig,
        tables: Option<Tables>,
    ) -> Result<Self, Violation> {
        let size = config.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(Violation::QueueSize(size));
        }
        let bytes = Self::footprint(size);
        let tables = tables.map(|tables| tables.open(&mem, size)).transpose()?;
        let start = config.start as u16;
        let from = usize::from(start);
        let ring = Self {
            desc: Window::new(&mem, config.desc, bytes.desc, DESC_ALIGN)?,
            avail: Window::new(&mem, config.driver, bytes.driver, AVAIL_ALIGN)?,
            used: Window::new(&mem, config.device, bytes.device, USED_ALIGN)?,
            tables,
            size: usize::from(size),
            event_idx: config.event_idx,
            free: FreeQueue::new(size),
            in_flight: vec![InFlight::default(); usize::from(size)].into(),
            in_flight_count: 0,
            avail_idx: from,
            told_idx: from,
            used_idx: from,
        };
        ring.used.u16(0).store(0, Relaxed);
        ring.used.u16(2).store(start, Relaxed);
        ring.used.u16(ring.avail_event()).store(start, Relaxed);
        // With the event index, flags must stay 0 (2.7.7.1).
        ring.avail.u16(0).store(if config.event_idx { 0 } else { AVAIL_NO_INTERRUPT }, Relaxed);
        ring.avail.u16(ring.used_event()).store(start.wrapping_sub(1), Relaxed);
        ring.avail.u16(2).store(start, Release);
        Ok(ring)
    }

    #[inline]
    fn add(&mut self, pieces: &[Piece], direction: Direction) -> Option<u16> {
        let head = match pieces {
            [piece] => self.add_one(*piece, direction)?,
            _ if self.tables.is_some() && !pieces.is_empty() => {
                self.add_indirect(pieces, direction)?
            }
            _ => self.add_direct(pieces, direction)?,
        };
        self.avail.u16(4 + 2 * self.slot(self.avail_idx)).store(head, Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        Some(head)
    }

    fn add_request(&mut self, readable: &[Piece], writable: &[Piece]) -> Option<u16> {
        let count = readable.len() + writable.len();
        let table = self.tables.as_ref().filter(|_| count > 1).map(|(_, tables)| *tables);
        let (slots, longest) = match table {
            Some(tables) => (1, usize::from(tables.entries)),
            None => (count, self.size),
        };
        if count == 0 || count > longest || slots > self.free.len {
            return None;
        }
        let head = self.free.head;
        let (mut at, mut last) = (head, head);
        for (i, (piece, way)) in request_pieces(readable, writable).enumerate() {
            let flags = way | if i + 1 < count { DESC_NEXT } else { 0 };
            match (&self.tables, table) {
                (Some((part, _)), Some(tables)) => {
                    let first = head * usize::from(tables.entries);
                    write_desc(part, (first + i) * 16, piece, flags, i as u16 + 1);
                }
                _ => {
                    write_desc(&self.desc, at * 16, piece, flags, self.free.next[at]);
                    (last, at) = (at, usize::from(self.free.next[at]));
                }
            }
        }
        if let Some(tables) = table {
            let offset = head as u64 * u64::from(tables.entries) * DESC_SIZE;
            let whole = Piece { addr: tables.addr + offset, len: count as u32 * 16 };
            write_desc(&self.desc, head * 16, whole, DESC_INDIRECT, 0);
            at = usize::from(self.free.next[head]);
        }
        self.free.advance(slots, at);
        self.set_in_flight(head, slots as u16, last, capacity(writable, Direction::In));
        self.avail.u16(4 + 2 * self.slot(self.avail_idx)).store(head as u16, Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        Some(head as u16)
    }

    #[inline]
    fn publish(&mut self) -> bool {
        if self.avail_idx == self.told_idx {
            return false;
        }
        let old = std::mem::replace(&mut self.told_idx, self.avail_idx);
        let index = self.avail.u16(2);
        if self.event_idx {
            publish_with_event(
                index,
                self.avail_idx as u16,
                old as u16,
                self.used.u16(self.avail_event()),
            )
        } else {
            publish_with_flags(index, self.avail_idx as u16, self.used.u16(0))
        }
    }

    #[inline]
    fn collect(&mut self, used: &mut [Used]) -> Result<usize, BadUsed> {
        let ready = self.used.u16(2).load(Acquire).wrapping_sub(self.used_idx as u16);
        if usize::from(ready) > self.in_flight_count {
            return Err(BadUsed::Index { moved: ready, in_flight: self.in_flight_count as u16 });
        }
        let count = used.len().min(usize::from(ready));
        for out in &mut used[..count] {
            let at = 4 + 8 * self.slot(self.used_idx);
            self.used_idx = self.used_idx.wrapping_add(1);
            let (id, len) = (self.used.u32(at).load(Relaxed), self.used.u32(at + 4).load(Relaxed));
            *out = self.take_back(id, len)?;
        }
        Ok(count)
    }

    #[inline]
    fn pending(&self) -> bool {
        self.used.u16(2).load(Acquire) != self.used_idx as u16
    }

    fn room(&self, pieces: usize) -> usize {
        room(self.free.len, self.tables.is_some(), pieces)
    }

    fn arm(&mut self) -> bool {
        let index = self.used.u16(2);
        let seen = if self.event_idx {
            arm_event(self.avail.u16(self.used_event()), self.used_idx as u16, index)
        } else {
            arm_flags(self.avail.u16(0), index)
        };
        seen != self.used_idx as u16
    }

    fn disarm(&mut self) {
        if !self.event_idx {
            disarm_flags(self.avail.u16(0));
        }
    }
}

#[inline]
fn write_desc(part: &Window, at: usize, piece: Piece, flags: u16, next: u16) {
    let rest = u64::from(piece.len) | u64::from(flags) << 32 | u64::from(next) << 48;
    part.u64(at).store(piece.addr, Relaxed);
    part.u64(at + 8).store(rest, Relaxed);
}
