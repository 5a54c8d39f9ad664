//! The device side of a split virtqueue.
//!
//! Entries of the available ring are taken in batches, in two passes, so that the cache misses of a
//! burst overlap: first the heads, bringing their descriptors near; then the descriptors, each
//! copied once, bringing near what they point to. Completion is in order: entry `n` of the used
//! ring answers entry `n` of the available ring, and one position says everything about the state
//! of the ring.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::buffers::{Buffers, Fit};
use crate::copy::{CACHE_LINE, load16, prefetch, prefetch_write};
use crate::device::{DeviceRing, MAX_CHAIN, Put, RingConfig};
use crate::gather::{Body, Chain, Gather, Span};
use crate::grant_copy_batch::GrantCopyBatch;
use crate::notify;
use crate::region::Memory;
use crate::violation::Violation;
use crate::walk::{Fetch, Sink, Stop, Walk};

use super::{
    AVAIL_ALIGN, AVAIL_ENTRY, DESC_ALIGN, DESC_INDIRECT, DESC_NEXT, DESC_SIZE, DESC_WRITE, Desc,
    MAX_SIZE, RING_ENTRIES, RING_INDEX, USED_ALIGN, USED_ENTRY, avail_len, desc_len, used_len,
};

/// Entries that are taken together.
const BATCH: usize = 64;

/// A position of 16 bits, in a machine word of its own. Compilers load a 16-bit field together with
/// its neighbours; when one of them has just been stored, that load waits until the store has left
/// the processor's store buffer, behind all stores to cache lines that the driver has at the time.
#[derive(Clone, Copy, Debug)]
struct Position(usize);

impl Position {
    fn of(position: u16) -> Self {
        Position(position.into())
    }

    #[inline(always)]
    fn get(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    fn on(&mut self, n: usize) {
        self.0 = self.0.wrapping_add(n);
    }

    fn back(&mut self, n: usize) {
        self.0 = self.0.wrapping_sub(n);
    }
}

/// The device side of a split virtqueue.
#[derive(Debug)]
pub struct SplitDevice {
    entries: Entries,
    /// Rx: buffers taken ahead.
    buffers: Buffers,
    config: RingConfig,
    /// Next entry of the used ring to write; behind `Entries::next` by what is in flight or taken
    /// ahead.
    done: Position,
    /// An interrupt decision was made before: only then does the event index say what the driver
    /// has seen.
    notified: bool,
}

// SAFETY: the areas that `Entries` points to are mapped for the whole process as long as it holds
// its memory, and are only reached through raw copies and atomics.
unsafe impl Send for SplitDevice {}

impl DeviceRing for SplitDevice {
    fn new(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation> {
        if !config.size.is_power_of_two() || config.size > MAX_SIZE {
            return Err(Violation::QueueSize(config.size));
        }
        let start = u16::try_from(config.start).map_err(|_| Violation::Start(config.start))?;
        let areas = Areas::find(&mem, config)?;
        let heads = vec![0; usize::from(config.size)].into();
        let entries = Entries {
            mem,
            areas,
            hint: 0,
            size: config.size,
            indirect: config.indirect,
            next: Position::of(start),
            seen: Position::of(start),
            published: Position::of(start),
            heads,
        };
        Ok(Self {
            entries,
            buffers: Buffers::new(),
            config: *config,
            done: Position::of(start),
            notified: false,
        })
    }

    fn set_memory(&mut self, mem: Arc<Memory>) -> Result<(), Violation> {
        let areas = Areas::find(&mem, &self.config)?;
        self.entries.next.back(self.buffers.len());
        self.buffers.clear();
        self.entries.areas = areas;
        self.entries.mem = mem;
        Ok(())
    }

    #[inline]
    fn fetch(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        max: usize,
    ) -> Result<usize, Violation> {
        let ready = self.entries.ready(max)?;
        if ready == 0 {
            return Ok(0);
        }
        gather.pin(&self.entries.mem);
        let taken = self.entries.take(ready, &mut Fetch::new(gather, chains));
        self.entries.look_ahead();
        taken
    }

    #[inline]
    fn in_flight(&self) -> usize {
        usize::from(self.entries.next.get().wrapping_sub(self.done.get())) - self.buffers.len()
    }

    #[inline]
    fn complete(&mut self, n: usize) {
        debug_assert!(n <= self.in_flight());
        for _ in 0..n.min(self.in_flight()) {
            self.entries.write_used(self.done.get(), 0);
            self.done.on(1);
        }
    }

    fn rewind(&mut self, n: usize) {
        debug_assert!(n <= self.in_flight());
        self.entries.next.back(n.min(self.in_flight()));
    }

    #[inline]
    fn prepare(&mut self, n: usize) -> Result<usize, Violation> {
        let want = self.buffers.wanted(n);
        if want > 0 {
            let ready = self.entries.ready(want)?;
            self.entries.take(ready, &mut self.buffers)?;
        }
        Ok(self.buffers.len())
    }

    #[inline]
    fn put(
        &mut self,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        mergeable: bool,
        grant_copies: &mut GrantCopyBatch,
    ) -> Result<Put, Violation> {
        let total = net.len() as u64 + head.len() as u64 + u64::from(body.len());
        let n = loop {
            match self.buffers.fit(total, mergeable) {
                Fit::Takes(n) => break n,
                Fit::Never => return Ok(Put::TooBig),
                Fit::Short => {
                    let before = self.buffers.len();
                    let room = self.buffers.room();
                    if self.prepare(before + BATCH)? == before && self.buffers.room() == room {
                        return Ok(Put::Full);
                    }
                }
            }
        };
        if body.is_granted() {
            return Ok(self.put_later(n, net, head, body, grant_copies));
        }
        let (entries, done) = (&mut self.entries, &mut self.done);
        self.buffers.fill(n, net, head, body, |used| {
            entries.write_used(done.get(), used);
            done.on(1);
        });
        Ok(Put::Done)
    }

    #[inline(always)]
    fn put_alone(&mut self, net: [u8; 12], head: &[u8], body: Body<'_>) -> bool {
        let Some(used) = self.buffers.fill_alone(net, head, body) else { return false };
        self.entries.write_used(self.done.get(), used);
        self.done.on(1);
        true
    }

    #[inline]
    fn ask(&self, n: usize, len: usize) {
        self.buffers.ask(n, len);
    }

    fn spoil(&mut self, token: u32) {
        let (first, count) = (token as u16, (token >> 16) as u16);
        let unpublished = self.done.get().wrapping_sub(self.entries.published.get());
        for number in (0..count).map(|i| first.wrapping_add(i)) {
            if number.wrapping_sub(self.entries.published.get()) < unpublished {
                self.entries.write_used(number, 0);
            }
        }
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let (old, done, areas) =
            (self.entries.published.get(), self.done.get(), &self.entries.areas);
        if old == done {
            return false;
        }
        self.entries.published = self.done;
        if self.config.event_idx {
            let wanted =
                notify::publish_with_event(areas.used_index(), done, old, areas.used_event());
            wanted | !std::mem::replace(&mut self.notified, true)
        } else {
            notify::publish_with_flags(areas.used_index(), done, areas.avail_flags())
        }
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        let (next, areas) = (self.entries.next.get(), &self.entries.areas);
        let index = if self.config.event_idx {
            notify::arm_event(areas.avail_event(), next, areas.avail_index())
        } else {
            notify::arm_flags(areas.used_flags(), areas.avail_index())
        };
        self.entries.saw(index)?;
        if self.entries.mem.is_faulted() {
            return Err(Violation::MemoryTruncated);
        }
        Ok(index != next)
    }

    fn disarm(&mut self) {
        if !self.config.event_idx {
            notify::disarm_flags(self.entries.areas.used_flags());
        }
    }

    #[inline]
    fn available(&mut self) -> Result<bool, Violation> {
        Ok(self.entries.ready(1)? > 0)
    }

    fn position(&self) -> u32 {
        u32::from(self.done.get())
    }

    fn mark(&self) -> u32 {
        let event = self.entries.areas.used_event().load(Ordering::Acquire);
        u32::from(self.done.get()) | u32::from(event) << 16
    }

    fn has_taken(&self, mark: u32) -> bool {
        let (mark, before) = (mark as u16, (mark >> 16) as u16);
        let posted = self.entries.areas.avail_index().load(Ordering::Acquire).wrapping_sub(mark);
        if posted >= self.config.size {
            return true;
        }
        // An event index that the driver has not touched since may be of long ago, unless it says
        // just this. And zero says nothing: Linux writes it while it wants no interrupts,
        // whatever it has taken.
        let event = self.entries.areas.used_event().load(Ordering::Acquire);
        let since = self.done.get().wrapping_sub(mark);
        let says =
            event != 0 && (event == mark || event != before && event.wrapping_sub(mark) <= since);
        self.config.event_idx && says
    }
}

impl SplitDevice {
    /// Puts a frame whose body is granted into the oldest `n` buffers.
    #[cold]
    fn put_later(
        &mut self,
        n: usize,
        net: &mut [u8],
        head: &[u8],
        body: Body<'_>,
        grant_copies: &mut GrantCopyBatch,
    ) -> Put {
        let token = u32::from(self.done.get()) | (n as u32) << 16;
        let pieces = body.fragments() + self.buffers.pieces(n);
        let len = head.len() as u32 + body.len();
        if !body
            .engine()
            .is_some_and(|engine| grant_copies.begin(engine, body, (token, len), pieces, 0))
        {
            return Put::Refused;
        }
        grant_copies.pin(&self.entries.mem);
        let (entries, done) = (&mut self.entries, &mut self.done);
        self.buffers.fill_later(n, net, head, body, grant_copies, |used| {
            entries.write_used(done.get(), used);
            done.on(1);
        });
        Put::Done
    }
}

/// Where the three parts of the ring are mapped. Each lies whole in one mapping, of which `Entries`
/// keeps the memory.
#[derive(Debug)]
struct Areas {
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    size: u16,
}

impl Areas {
    fn find(mem: &Memory, config: &RingConfig) -> Result<Self, Violation> {
        let size = config.size;
        Ok(Self {
            desc: mem.host(config.desc, desc_len(size), DESC_ALIGN)?,
            avail: mem.host(config.driver, avail_len(size), AVAIL_ALIGN)?,
            used: mem.host(config.device, used_len(size), USED_ALIGN)?,
            size,
        })
    }

    #[inline]
    fn avail_flags(&self) -> &AtomicU16 {
        // SAFETY: the first two bytes of the area, which is mapped and aligned to 2.
        unsafe { AtomicU16::from_ptr(self.avail.as_ptr().cast()) }
    }

    #[inline]
    fn avail_index(&self) -> &AtomicU16 {
        // SAFETY: as above, two bytes on.
        unsafe { AtomicU16::from_ptr(self.avail.as_ptr().add(RING_INDEX as usize).cast()) }
    }

    /// The used event: the last two bytes of the available ring.
    #[inline]
    fn used_event(&self) -> &AtomicU16 {
        // SAFETY: `avail_len` bytes are mapped; an even offset.
        unsafe {
            AtomicU16::from_ptr(self.avail.as_ptr().add(avail_len(self.size) as usize - 2).cast())
        }
    }

    #[inline]
    fn used_flags(&self) -> &AtomicU16 {
        // SAFETY: the first two bytes of the area, which is mapped and aligned to 4.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().cast()) }
    }

    #[inline]
    fn used_index(&self) -> &AtomicU16 {
        // SAFETY: as above, two bytes on.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().add(RING_INDEX as usize).cast()) }
    }

    /// The available event: the last two bytes of the used ring.
    #[inline]
    fn avail_event(&self) -> &AtomicU16 {
        // SAFETY: `used_len` bytes are mapped; an even offset.
        unsafe {
            AtomicU16::from_ptr(self.used.as_ptr().add(used_len(self.size) as usize - 2).cast())
        }
    }

    /// Head index in slot `slot` of the available ring, unchecked: whatever the driver wrote.
    #[inline(always)]
    fn head(&self, slot: usize) -> u16 {
        debug_assert!(slot < usize::from(self.size));
        let offset = RING_ENTRIES as usize + AVAIL_ENTRY as usize * slot;
        // SAFETY: `slot` is below the size, since it was masked with it; so within the area, and
        // even.
        unsafe { self.avail.as_ptr().add(offset).cast::<u16>().read_volatile() }
    }

    /// Address of descriptor `index`, which is below the size.
    #[inline(always)]
    fn desc_at(&self, index: u16) -> *const u8 {
        debug_assert!(index < self.size);
        // SAFETY: within the area.
        unsafe { self.desc.as_ptr().add(DESC_SIZE as usize * usize::from(index)) }
    }

    /// Copies descriptor `index`, which is below the size, out of the table.
    #[inline(always)]
    fn desc(&self, index: u16) -> Desc {
        // SAFETY: a descriptor within the area.
        desc_of(unsafe { load16(self.desc_at(index)) })
    }
}

/// A descriptor, from the two words that it was copied as.
#[inline(always)]
fn desc_of([addr, rest]: [u64; 2]) -> Desc {
    Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
}

/// The driver's half of the ring, as far as it was taken.
#[derive(Debug)]
struct Entries {
    /// Keeps the areas and all buffers taken ahead mapped.
    mem: Arc<Memory>,
    areas: Areas,
    /// The region where the last address was found.
    hint: usize,
    size: u16,
    indirect: bool,
    /// Next entry of the available ring to take.
    next: Position,
    /// The available index when it was last read: entries before it are ours to take.
    seen: Position,
    /// The used index as the driver sees it. It can have made no more than `size` entries
    /// available beyond.
    published: Position,
    /// Heads of the chains between the used and the available position, by slot.
    heads: Box<[u16]>,
}

impl Entries {
    /// How many entries can be taken, up to `max`. Reads the available index only when what was
    /// seen is not enough.
    #[inline]
    fn ready(&mut self, max: usize) -> Result<usize, Violation> {
        let known = usize::from(self.seen.get().wrapping_sub(self.next.get()));
        if known >= max {
            return Ok(max);
        }
        let index = self.areas.avail_index().load(Ordering::Acquire);
        self.saw(index)?;
        Ok(usize::from(index.wrapping_sub(self.next.get())).min(max))
    }

    /// Believes an available index, if it can be: not before what was taken, nor more than a ring
    /// beyond what the driver got back.
    #[inline]
    fn saw(&mut self, index: u16) -> Result<(), Violation> {
        let ahead = index.wrapping_sub(self.published.get());
        if ahead > self.size || ahead < self.next.get().wrapping_sub(self.published.get()) {
            return Err(self.mem.blame(Violation::AvailableJump { index, ahead, size: self.size }));
        }
        self.seen = Position::of(index);
        Ok(())
    }

    /// Takes the next `n` entries, which are ready, into `sink`: fewer when it is full, or when a
    /// broken chain follows, which is an error only when it comes first.
    #[inline]
    fn take<S: Sink>(&mut self, n: usize, sink: &mut S) -> Result<usize, Violation> {
        let mut taken = 0;
        while taken < n {
            let batch = (n - taken).min(BATCH);
            match self.take_batch(batch, sink) {
                Err(violation) if taken == 0 => return Err(self.mem.blame(violation)),
                Ok(got) if got == batch => taken += got,
                Ok(got) => return Ok(taken + got),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    #[inline]
    fn take_batch<S: Sink>(&mut self, n: usize, sink: &mut S) -> Result<usize, Violation> {
        let n = self.copy_heads(n)?;
        for i in 0..n {
            let desc = self.areas.desc(self.heads[self.slot(i)]);
            match self.take_chain(desc, sink) {
                Ok(()) => continue,
                Err(Stop::Broken(violation)) if i == 0 => {
                    sink.cancel();
                    return Err(violation);
                }
                Err(_) => sink.cancel(),
            }
            self.next.on(i);
            return Ok(i);
        }
        self.next.on(n);
        Ok(n)
    }

    /// The slot of the `i`th entry to take, in the available ring and in `heads`.
    #[inline(always)]
    fn slot(&self, i: usize) -> usize {
        usize::from(self.next.get().wrapping_add(i as u16) & (self.size - 1))
    }

    /// Copies the next `n` heads, as many as are good, and brings their descriptors near.
    #[inline]
    fn copy_heads(&mut self, n: usize) -> Result<usize, Violation> {
        for i in 0..n {
            let slot = self.slot(i);
            let head = self.areas.head(slot);
            if head >= self.size {
                let violation =
                    Violation::DescriptorIndex { index: head, table: u32::from(self.size) };
                return if i == 0 { Err(violation) } else { Ok(i) };
            }
            prefetch(self.areas.desc_at(head));
            self.heads[slot] = head;
        }
        self.ask_for_used(n);
        Ok(n)
    }

    /// Brings the descriptors near that the next batch begins with, as far as it is known to be
    /// there: it finds them while this one is carried. Drivers use descriptors in their order,
    /// mostly, so one of each cache line is asked for.
    #[inline]
    fn look_ahead(&self) {
        let known = usize::from(self.seen.get().wrapping_sub(self.next.get())).min(BATCH);
        for i in (0..known).step_by(CACHE_LINE / DESC_SIZE as usize) {
            let head = self.areas.head(self.slot(i));
            if head < self.size {
                prefetch(self.areas.desc_at(head));
            }
        }
    }

    /// Brings the entries of the used ring near that answer the next `n`: the driver has just read
    /// around there.
    #[inline]
    fn ask_for_used(&self, n: usize) {
        for i in (0..n).step_by(CACHE_LINE / USED_ENTRY as usize) {
            let offset = RING_ENTRIES as usize + USED_ENTRY as usize * self.slot(i);
            prefetch_write(self.areas.used.as_ptr().wrapping_add(offset));
        }
    }

    #[inline(always)]
    fn take_chain<S: Sink>(&mut self, desc: Desc, sink: &mut S) -> Result<(), Stop> {
        let plain = if S::WRITABLE { DESC_WRITE } else { 0 };
        if desc.flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == plain
            && let Some((at, left)) = self.mem.run(desc.addr, &mut self.hint)
            && left >= u64::from(desc.len)
        {
            S::ask(at.as_ptr());
            S::ask(at.as_ptr().wrapping_add(CACHE_LINE));
            if !sink.push(Span { at, len: desc.len }) {
                return Err(Stop::Full);
            }
            sink.close(desc.len);
            return Ok(());
        }
        self.walk_chain(desc, sink)
    }

    /// Follows a chain that begins with `desc` to its end, in the ring's table and at most one
    /// indirect table.
    fn walk_chain<S: Sink>(&mut self, mut desc: Desc, sink: &mut S) -> Result<(), Stop> {
        let mut walk = Walk::new(&self.mem, &mut self.hint, sink);
        let bound = u32::from(self.size).min(MAX_CHAIN);
        for _ in 0..bound {
            if desc.flags & DESC_INDIRECT != 0 {
                if !self.indirect {
                    return Err(Violation::IndirectNotNegotiated.into());
                }
                if desc.flags & DESC_NEXT != 0 {
                    return Err(Violation::IndirectNext.into());
                }
                walk_table(&mut walk, &desc)?;
                return walk.close();
            }
            walk.add(desc.addr, desc.len, desc.flags)?;
            if desc.flags & DESC_NEXT == 0 {
                return walk.close();
            }
            if desc.next >= self.size {
                return Err(Violation::DescriptorIndex {
                    index: desc.next,
                    table: u32::from(self.size),
                }
                .into());
            }
            desc = self.areas.desc(desc.next);
        }
        Err(Violation::ChainTooLong(bound).into())
    }

    /// Writes used entry number `number`: it answers the available entry of that number.
    #[inline(always)]
    fn write_used(&mut self, number: u16, len: u32) {
        let slot = usize::from(number & (self.size - 1));
        let entry = u64::from(self.heads[slot]) | u64::from(len) << 32;
        let offset = RING_ENTRIES as usize + USED_ENTRY as usize * slot;
        // SAFETY: the slot is below the size, so within the area. Nobody reads it before the index
        // is published.
        unsafe { self.areas.used.as_ptr().add(offset).cast::<u64>().write_unaligned(entry) }
    }
}

/// Follows the links of the indirect table that `desc` names, from its entry 0.
fn walk_table<S: Sink>(walk: &mut Walk<'_, S>, desc: &Desc) -> Result<(), Stop> {
    let table = walk.table(desc.addr, desc.len)?;
    let mut index = 0;
    for _ in 0..table.entries() {
        let desc = desc_of(table.entry(index)?);
        if desc.flags & DESC_INDIRECT != 0 {
            return Err(Violation::IndirectNested.into());
        }
        walk.add(desc.addr, desc.len, desc.flags)?;
        if desc.flags & DESC_NEXT == 0 {
            return Ok(());
        }
        index = u32::from(desc.next);
    }
    Err(Violation::ChainTooLong(table.entries()).into())
}

#[cfg(test)]
mod tests;
