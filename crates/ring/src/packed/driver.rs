//! The driver half of a packed virtqueue (virtio 1.2, 2.8).
//!
//! Descriptors are written into consecutive slots of the one ring as chains are added, all but one:
//! the flags of the first slot of a burst wait for `publish`. The device cannot pass that slot, so
//! the whole burst appears at once.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::device::RingConfig;
use crate::driver::{
    BadUsed, Direction, DriverRing, Footprint, Piece, Tables, Used, Window, capacity,
    direction_flag, request_pieces, room, written,
};
use crate::notify::{Place, arm_packed, disarm_packed, publish_packed};
use crate::packed::{
    DESC_ALIGN, DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_SIZE, DESC_USED, EVENT_ALIGN,
    EVENT_DISABLE, EVENT_ENABLE, EVENT_SIZE, MAX_SIZE, available_flags, desc_len, used_flags,
};
use crate::region::Memory;
use crate::violation::Violation;

/// The driver's position in the ring: a [`Place`] in machine words, for the reason given at
/// [`SplitDriver`](crate::split::driver::SplitDriver).
#[derive(Clone, Copy)]
struct Cursor {
    index: usize,
    wrap: bool,
}

impl Cursor {
    #[inline]
    fn place(self) -> Place {
        Place { index: self.index as u16, wrap: self.wrap }
    }

    /// Byte offset of the descriptor.
    #[inline]
    fn offset(self) -> usize {
        self.index * DESC_SIZE as usize
    }

    /// `count` descriptors later, at most `size`.
    #[inline]
    fn advance(&mut self, count: usize, size: usize) {
        self.index += count;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }
}

/// Private state of a buffer id.
#[derive(Clone, Copy, Default)]
struct InFlight {
    /// Slots that its chain occupies; 0: not in flight.
    count: u16,
    /// Bytes that the device may write.
    capacity: u32,
}

/// Free buffer ids, in a queue: `ids[first..]`, `len` of them, wrapping.
struct FreeIds {
    ids: Box<[u16]>,
    first: usize,
    len: usize,
}

impl FreeIds {
    #[inline]
    fn take(&mut self) -> Option<u16> {
        let id = *self.ids.get(self.first)?;
        self.len = self.len.checked_sub(1)?;
        self.first = if self.first + 1 == self.ids.len() { 0 } else { self.first + 1 };
        Some(id)
    }

    #[inline]
    fn give_back(&mut self, id: u16) {
        let (at, size) = (self.first + self.len, self.ids.len());
        self.ids[if at < size { at } else { at - size }] = id;
        self.len += 1;
    }
}

/// The driver half of a packed virtqueue.
pub struct PackedDriver {
    desc: Window,
    driver_event: Window,
    device_event: Window,
    tables: Option<(Window, Tables)>,
    size: usize,
    event_idx: bool,
    ids: FreeIds,
    in_flight: Box<[InFlight]>,
    /// Free slots.
    free: usize,
    next: Cursor,
    used: Cursor,
    /// The first unpublished slot, and its flags; `None`: all are published.
    held: Option<(Cursor, u16)>,
    /// Slots added since the last publish.
    added: usize,
}

impl PackedDriver {
    /// Writes the descriptor at `next`, without its flags if it is the first one of a burst.
    #[inline]
    fn write_slot(&mut self, piece: Piece, id: u16, flags: u16) {
        let flags = flags | available_flags(self.next.wrap);
        let at = self.next.offset();
        self.desc.u64(at).store(piece.addr, Relaxed);
        if self.held.is_none() {
            self.held = Some((self.next, flags));
            self.desc.u32(at + 8).store(piece.len, Relaxed);
            self.desc.u16(at + 12).store(id, Relaxed);
        } else {
            // The address must not appear after the flags, in case the device looks at this slot
            // ahead of its turn.
            let rest = u64::from(piece.len) | u64::from(id) << 32 | u64::from(flags) << 48;
            self.desc.u64(at + 8).store(rest, Release);
        }
        self.next.advance(1, self.size);
        self.free -= 1;
        self.added += 1;
    }

    /// Writes the chain into the table that belongs to `id`; returns the one piece that stands for
    /// it.
    fn write_table(&mut self, pieces: &[Piece], direction: Direction, id: u16) -> Option<Piece> {
        let (part, tables) = self.tables.as_ref()?;
        let offset = u64::from(id) * u64::from(tables.entries) * DESC_SIZE;
        for (i, piece) in pieces.iter().enumerate() {
            let at = offset as usize + i * DESC_SIZE as usize;
            let rest = u64::from(piece.len) | u64::from(direction_flag(direction)) << 48;
            part.u64(at).store(piece.addr, Relaxed);
            part.u64(at + 8).store(rest, Relaxed);
        }
        Some(Piece { addr: tables.addr + offset, len: pieces.len() as u32 * DESC_SIZE as u32 })
    }

    /// Whether the chain goes through an indirect table; `None` if there is no room for it at
    /// present.
    #[inline]
    fn wants_table(&self, pieces: &[Piece]) -> Option<bool> {
        let table = self.tables.as_ref().filter(|_| pieces.len() > 1);
        let fits = match table {
            Some((_, tables)) => pieces.len() <= usize::from(tables.entries) && self.free > 0,
            None => !pieces.is_empty() && pieces.len() <= self.free,
        };
        fits.then_some(table.is_some())
    }
}

impl DriverRing for PackedDriver {
    fn footprint(size: u16) -> Footprint {
        Footprint { desc: desc_len(size), driver: EVENT_SIZE, device: EVENT_SIZE }
    }

    fn new(
        mem: Arc<Memory>,
        config: &RingConfig,
        tables: Option<Tables>,
    ) -> Result<Self, Violation> {
        let size = config.size;
        if size == 0 || size > MAX_SIZE {
            return Err(Violation::QueueSize(size));
        }
        let bytes = Self::footprint(size);
        let tables = tables.map(|tables| tables.open(&mem, size)).transpose()?;
        let start = Place::from_word(config.start as u16);
        let from = Cursor { index: usize::from(start.index), wrap: start.wrap };
        if start.index >= size {
            return Err(Violation::Start(config.start));
        }
        let ring = Self {
            desc: Window::new(&mem, config.desc, bytes.desc, DESC_ALIGN)?,
            driver_event: Window::new(&mem, config.driver, bytes.driver, EVENT_ALIGN)?,
            device_event: Window::new(&mem, config.device, bytes.device, EVENT_ALIGN)?,
            tables,
            size: usize::from(size),
            event_idx: config.event_idx,
            ids: FreeIds { ids: (0..size).collect(), first: 0, len: usize::from(size) },
            in_flight: vec![InFlight::default(); usize::from(size)].into(),
            free: usize::from(size),
            next: from,
            used: from,
            held: None,
            added: 0,
        };
        ring.clear(start);
        Ok(ring)
    }

    #[inline]
    fn add(&mut self, pieces: &[Piece], direction: Direction) -> Option<u16> {
        let table = self.wants_table(pieces)?;
        let id = self.ids.take()?;
        if table {
            let whole = self.write_table(pieces, direction, id)?;
            self.write_slot(whole, id, DESC_INDIRECT);
        } else {
            let data = direction_flag(direction);
            for (i, piece) in pieces.iter().enumerate() {
                let more = if i + 1 < pieces.len() { DESC_NEXT } else { 0 };
                self.write_slot(*piece, id, data | more);
            }
        }
        let count = if table { 1 } else { pieces.len() as u16 };
        self.in_flight[usize::from(id)] = InFlight { count, capacity: capacity(pieces, direction) };
        Some(id)
    }

    fn add_request(&mut self, readable: &[Piece], writable: &[Piece]) -> Option<u16> {
        let count = readable.len() + writable.len();
        let capacity = capacity(writable, Direction::In);
        let table = self.tables.as_ref().filter(|_| count > 1).map(|(_, tables)| *tables);
        let fits = match table {
            Some(tables) => count <= usize::from(tables.entries) && self.free > 0,
            None => count > 0 && count <= self.free,
        };
        let id = fits.then(|| self.ids.take()).flatten()?;
        match (&self.tables, table) {
            (Some((part, _)), Some(tables)) => {
                let offset = u64::from(id) * u64::from(tables.entries) * DESC_SIZE;
                for (i, (piece, way)) in request_pieces(readable, writable).enumerate() {
                    let at = offset as usize + i * DESC_SIZE as usize;
                    part.u64(at).store(piece.addr, Relaxed);
                    part.u64(at + 8).store(u64::from(piece.len) | u64::from(way) << 48, Relaxed);
                }
                let len = count as u32 * DESC_SIZE as u32;
                self.write_slot(Piece { addr: tables.addr + offset, len }, id, DESC_INDIRECT);
            }
            _ => {
                for (i, (piece, way)) in request_pieces(readable, writable).enumerate() {
                    let more = if i + 1 < count { DESC_NEXT } else { 0 };
                    self.write_slot(piece, id, way | more);
                }
            }
        }
        let slots = if table.is_some() { 1 } else { count as u16 };
        self.in_flight[usize::from(id)] = InFlight { count: slots, capacity };
        Some(id)
    }

    fn publish(&mut self) -> bool {
        let Some((first, flags)) = self.held.take() else {
            return false;
        };
        let added = std::mem::take(&mut self.added);
        let flags_at = self.desc.u16(first.offset() + 14);
        let (next, size) = (self.next.place(), self.size as u16);
        publish_packed(
            || flags_at.store(flags, Release),
            self.device_event.u32(0),
            next,
            added as u16,
            size,
            self.event_idx,
        )
    }

    #[inline]
    fn collect(&mut self, used: &mut [Used]) -> Result<usize, BadUsed> {
        let mut count = 0;
        while count < used.len() && self.pending() {
            let at = self.used.offset();
            let len = self.desc.u32(at + 8).load(Relaxed);
            let id = self.desc.u16(at + 12).load(Relaxed);
            let chain = match self.in_flight.get_mut(usize::from(id)) {
                Some(chain) if chain.count > 0 => std::mem::take(chain),
                _ => return Err(BadUsed::Id(u32::from(id))),
            };
            let slots = usize::from(chain.count);
            self.used.advance(slots, self.size);
            self.free += slots;
            self.ids.give_back(id);
            used[count] = Used { id, len: written(len, chain.capacity)? };
            count += 1;
        }
        Ok(count)
    }

    #[inline]
    fn pending(&self) -> bool {
        self.is_used(self.desc.u16(self.used.offset() + 14).load(Acquire))
    }

    fn room(&self, pieces: usize) -> usize {
        room(self.free, self.tables.is_some(), pieces)
    }

    fn arm(&mut self) -> bool {
        let flags = self.desc.u16(self.used.offset() + 14);
        self.is_used(arm_packed(self.driver_event.u32(0), self.used.place(), self.event_idx, flags))
    }

    fn disarm(&mut self) {
        disarm_packed(self.driver_event.u32(0));
    }
}

impl PackedDriver {
    /// Whether these flags mark the descriptor at `used` as used.
    #[inline]
    fn is_used(&self, flags: u16) -> bool {
        // With nothing in flight, a descriptor that looks used is one of the previous round.
        self.free < self.size && flags & (DESC_AVAIL | DESC_USED) == used_flags(self.used.wrap)
    }

    /// Makes every slot look as if used in the round before, and asks for no interrupts.
    fn clear(&self, start: Place) {
        for slot in 0..self.size as u16 {
            // Slots from `start` on were last used in the round before this one, those below it in
            // this one.
            let flags = used_flags((slot >= start.index) != start.wrap);
            self.desc.u16(usize::from(slot) * DESC_SIZE as usize + 14).store(flags, Relaxed);
        }
        self.device_event.u32(0).store(u32::from(EVENT_ENABLE) << 16, Relaxed);
        self.driver_event.u32(0).store(u32::from(EVENT_DISABLE) << 16, Release);
    }
}
