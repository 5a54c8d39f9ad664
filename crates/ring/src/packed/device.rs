//! The device side of a packed virtqueue.
//!
//! Descriptors are taken in the order of the ring and given back in the same order, one used
//! descriptor for each chain, so what is in flight is one stretch of the ring, from `done` to
//! `next`. Used descriptors are written as they come, except for the flags of the first since the
//! last publication: the driver does not look past it, so writing these flags last makes the whole
//! burst appear at once.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::buffers::{Buffers, Fit};
use crate::copy::{CACHE_LINE, prefetch_write};
use crate::device::{DeviceRing, MAX_CHAIN, Put, RingConfig};
use crate::gather::{Body, Chain, Gather, Span};
use crate::grant_copy_batch::GrantCopyBatch;
use crate::notify::{self, Place};
use crate::region::Memory;
use crate::violation::Violation;
use crate::walk::{Fetch, Sink, Stop, Walk};

use super::{
    DESC_ALIGN, DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_SIZE, DESC_USED, DESC_WRITE, Desc,
    EVENT_ALIGN, EVENT_SIZE, MAX_SIZE, available_flags, desc_len, used_flags,
};

/// Chains that are taken together.
const BATCH: usize = 64;

/// Descriptors that are brought near ahead of the one that is taken: four cache lines of the ring.
const AHEAD: u16 = 16;

/// The device side of a packed virtqueue.
#[derive(Debug)]
pub struct PackedDevice {
    ring: Ring,
    /// Rx: buffers taken ahead.
    buffers: Buffers,
    config: RingConfig,
    done: Done,
}

// SAFETY: the areas that `Ring` points to are mapped for the whole process as long as it holds its
// memory, and are only reached through raw copies and atomics.
unsafe impl Send for PackedDevice {}

impl DeviceRing for PackedDevice {
    fn new(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation> {
        if config.size == 0 || config.size > MAX_SIZE {
            return Err(Violation::QueueSize(config.size));
        }
        let start = start_of(config)?;
        let areas = Areas::find(&mem, config)?;
        let taken = vec![Taken::default(); usize::from(config.size).next_power_of_two()].into();
        let (size, indirect) = (config.size, config.indirect);
        let batch = Box::new([Head::EMPTY; BATCH]);
        let ring = Ring {
            mem,
            areas,
            hint: 0,
            size,
            indirect,
            next: start,
            held: 0,
            taken,
            next_chain: 0,
            batch,
        };
        let done = Done { next: start, chain: 0, fresh: None };
        Ok(Self { ring, buffers: Buffers::new(), config: *config, done })
    }

    fn set_memory(&mut self, mem: Arc<Memory>) -> Result<(), Violation> {
        let areas = Areas::find(&mem, &self.config)?;
        self.ring.untake(self.buffers.len());
        self.buffers.clear();
        self.ring.areas = areas;
        self.ring.mem = mem;
        Ok(())
    }

    #[inline]
    fn fetch(
        &mut self,
        gather: &mut Gather,
        chains: &mut Vec<Chain>,
        max: usize,
    ) -> Result<usize, Violation> {
        if !self.ring.ready() {
            return Ok(0);
        }
        gather.pin(&self.ring.mem);
        self.ring.take(max, &mut Fetch::new(gather, chains))
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.ring.next_chain.wrapping_sub(self.done.chain) as usize - self.buffers.len()
    }

    #[inline]
    fn complete(&mut self, n: usize) {
        debug_assert!(n <= self.in_flight());
        for _ in 0..n.min(self.in_flight()) {
            self.done.give_back(&self.ring, 0);
        }
    }

    fn rewind(&mut self, n: usize) {
        debug_assert!(n <= self.in_flight());
        self.ring.untake(n.min(self.in_flight()));
    }

    #[inline]
    fn prepare(&mut self, n: usize) -> Result<usize, Violation> {
        let want = self.buffers.wanted(n);
        if want > 0 {
            self.ring.take(want, &mut self.buffers)?;
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
                    let before = (self.buffers.len(), self.buffers.room());
                    self.prepare(before.0 + BATCH)?;
                    if before == (self.buffers.len(), self.buffers.room()) {
                        return Ok(Put::Full);
                    }
                }
            }
        };
        if body.is_granted() {
            return Ok(self.put_later(n, net, head, body, grant_copies));
        }
        let (ring, done) = (&self.ring, &mut self.done);
        self.buffers.fill(n, net, head, body, |used| done.give_back(ring, used));
        Ok(Put::Done)
    }

    #[inline(always)]
    fn put_alone(&mut self, net: [u8; 12], head: &[u8], body: Body<'_>) -> bool {
        let Some(used) = self.buffers.fill_alone(net, head, body) else { return false };
        self.done.give_back(&self.ring, used);
        true
    }

    #[inline]
    fn ask(&self, n: usize, len: usize) {
        self.buffers.ask(n, len);
    }

    fn spoil(&mut self, token: u32) {
        self.done.spoil(&self.ring, token as u16, (token >> 16) as u16);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let Some(Fresh { at, flags, count }) = self.done.fresh.take() else {
            return false;
        };
        self.ring.held -= count;
        let (first, suppression) = (self.ring.areas.flags(at), self.ring.areas.driver_event());
        notify::publish_packed(
            first,
            flags,
            suppression,
            self.done.next,
            count,
            self.ring.size,
            self.config.event_idx,
        )
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        let (next, areas) = (self.ring.next, &self.ring.areas);
        let flags = notify::arm_packed(
            areas.device_event(),
            next,
            self.config.event_idx,
            areas.flags(next.index),
        );
        if self.ring.mem.is_faulted() {
            return Err(Violation::MemoryTruncated);
        }
        Ok(self.ring.is_ready(flags))
    }

    fn disarm(&mut self) {
        notify::disarm_packed(self.ring.areas.device_event());
    }

    #[inline]
    fn available(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.ready())
    }

    fn position(&self) -> u32 {
        let word = u32::from(self.done.next.to_word());
        word | word << 16
    }

    fn mark(&self) -> u32 {
        u32::from(self.done.next.to_word())
    }

    /// Seen at the last descriptor before the mark: the driver has written it anew, a lap later.
    fn has_taken(&self, mark: u32) -> bool {
        let size = self.config.size;
        let mark = Place::from_word(mark as u16);
        let last = if mark.index == 0 {
            Place { index: size - 1, wrap: !mark.wrap }
        } else {
            Place { index: (mark.index - 1).min(size - 1), ..mark }
        };
        let flags = self.ring.areas.flags(last.index).load(Ordering::Acquire);
        (flags & DESC_AVAIL != 0) != last.wrap
    }
}

impl PackedDevice {
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
        let token = self.done.chain & 0xffff | (n as u32) << 16;
        let pieces = body.fragments() + self.buffers.pieces(n);
        let len = head.len() as u32 + body.len();
        if !body
            .engine()
            .is_some_and(|engine| grant_copies.begin(engine, body, (token, len), pieces, 0))
        {
            return Put::Refused;
        }
        grant_copies.pin(&self.ring.mem);
        let (ring, done) = (&self.ring, &mut self.done);
        self.buffers
            .fill_later(n, net, head, body, grant_copies, |used| done.give_back(ring, used));
        Put::Done
    }
}

/// The device's half of the ring: what was given back.
#[derive(Debug)]
struct Done {
    /// Where the next used descriptor goes.
    next: Place,
    /// Number of the chain that it answers, see `Ring::next_chain`.
    chain: u32,
    /// What was written since the last publication.
    fresh: Option<Fresh>,
}

/// Used descriptors that the driver does not see yet.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    /// Where the first of them is, and the flags that it lacks.
    at: u16,
    flags: u16,
    /// Descriptors from there up to `Done::next`, including those of each chain that get no used
    /// descriptor.
    count: u16,
}

impl Done {
    /// Writes the used descriptor of the oldest chain of `ring`, `len` bytes long.
    #[inline(always)]
    fn give_back(&mut self, ring: &Ring, len: u32) {
        let Taken { id, count } = ring.taken_at(self.chain);
        let flags = used_flags(self.next.wrap) | if len > 0 { DESC_WRITE } else { 0 };
        ring.areas.write_used(self.next.index, id, len);
        match &mut self.fresh {
            None => self.fresh = Some(Fresh { at: self.next.index, flags, count }),
            Some(fresh) => {
                fresh.count += count;
                ring.areas.flags(self.next.index).store(flags, Ordering::Relaxed);
            }
        }
        self.next = self.next.forward(count, ring.size);
        self.chain = self.chain.wrapping_add(1);
    }

    /// Writes the used descriptors of `count` chains, from the one whose number ends in `first` on,
    /// once more, as empty.
    #[cold]
    fn spoil(&self, ring: &Ring, first: u16, count: u16) {
        let Some(fresh) = &self.fresh else { return };
        let (mut at, mut chain, mut left) = (self.next, self.chain, fresh.count);
        while left > 0 {
            chain = chain.wrapping_sub(1);
            let Taken { id, count: descriptors } = ring.taken_at(chain);
            at = at.back(descriptors, ring.size);
            left = left.saturating_sub(descriptors.max(1));
            if (chain as u16).wrapping_sub(first) < count {
                ring.areas.write_used(at.index, id, 0);
            }
        }
    }
}

/// The place to start from: nothing is in flight when a ring starts, so there is only one.
fn start_of(config: &RingConfig) -> Result<Place, Violation> {
    let (available, used) = (config.start as u16, (config.start >> 16) as u16);
    let place = Place::from_word(if used == 0 { available } else { used });
    if place.index < config.size { Ok(place) } else { Err(Violation::Start(config.start)) }
}

/// Where the three parts of the ring are mapped. Each lies whole in one mapping, of which `Ring`
/// keeps the memory.
#[derive(Debug)]
struct Areas {
    desc: NonNull<u8>,
    driver: NonNull<u8>,
    device: NonNull<u8>,
    size: u16,
}

impl Areas {
    fn find(mem: &Memory, config: &RingConfig) -> Result<Self, Violation> {
        Ok(Self {
            desc: mem.host(config.desc, desc_len(config.size), DESC_ALIGN)?,
            driver: mem.host(config.driver, EVENT_SIZE, EVENT_ALIGN)?,
            device: mem.host(config.device, EVENT_SIZE, EVENT_ALIGN)?,
            size: config.size,
        })
    }

    /// How the driver wants to be interrupted.
    #[inline]
    fn driver_event(&self) -> &AtomicU32 {
        // SAFETY: four bytes are mapped, and aligned.
        unsafe { AtomicU32::from_ptr(self.driver.as_ptr().cast()) }
    }

    /// How the device wants to be kicked.
    #[inline]
    fn device_event(&self) -> &AtomicU32 {
        // SAFETY: four bytes are mapped, and aligned.
        unsafe { AtomicU32::from_ptr(self.device.as_ptr().cast()) }
    }

    /// Address of descriptor `index`, which is below the size.
    #[inline(always)]
    fn desc_at(&self, index: u16) -> *mut u8 {
        debug_assert!(index < self.size);
        // SAFETY: within the area.
        unsafe { self.desc.as_ptr().add(DESC_SIZE as usize * usize::from(index)) }
    }

    /// The flags of descriptor `index`, which is below the size: its last two bytes.
    #[inline(always)]
    fn flags(&self, index: u16) -> &AtomicU16 {
        // SAFETY: within the descriptor, and even.
        unsafe { AtomicU16::from_ptr(self.desc_at(index).add(14).cast()) }
    }

    /// Copies what descriptor `index` says, apart from its `flags`, which were read before: after
    /// an acquiring load, the rest belongs to them.
    #[inline(always)]
    fn desc(&self, index: u16, flags: u16) -> Desc {
        let at = self.desc_at(index);
        // SAFETY: the first 14 bytes of a descriptor within the area, which is aligned to 16.
        unsafe {
            Desc {
                addr: at.cast::<u64>().read_volatile(),
                len: at.add(8).cast::<u32>().read_volatile(),
                id: at.add(12).cast::<u16>().read_volatile(),
                flags,
            }
        }
    }

    /// Writes a used descriptor, but for its flags.
    #[inline(always)]
    fn write_used(&self, index: u16, id: u16, len: u32) {
        let at = self.desc_at(index);
        // SAFETY: as in `desc`.
        unsafe {
            at.add(8).cast::<u32>().write_volatile(len);
            at.add(12).cast::<u16>().write_volatile(id);
        }
    }
}

/// A chain's first descriptor, and where it points to.
#[derive(Clone, Copy, Debug)]
struct Head {
    desc: Desc,
    /// Mapped address and the bytes that follow there, when the guest address is mapped at all.
    place: Option<(NonNull<u8>, u64)>,
}

impl Head {
    const EMPTY: Head = Head { desc: Desc { addr: 0, len: 0, id: 0, flags: 0 }, place: None };
}

/// A chain that was taken: what its used descriptor needs.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    id: u16,
    /// Descriptors of the ring that it occupies.
    count: u16,
}

/// The driver's half of the ring, as far as it was taken.
#[derive(Debug)]
struct Ring {
    /// Keeps the areas and all buffers taken ahead mapped.
    mem: Arc<Memory>,
    areas: Areas,
    /// The region where the last address was found.
    hint: usize,
    size: u16,
    indirect: bool,
    /// The next descriptor to take.
    next: Place,
    /// Descriptors that were taken, and that the driver has not got back: never more than the ring
    /// has.
    held: u16,
    /// Chains in flight or taken ahead, by their number modulo the length, a power of two.
    taken: Box<[Taken]>,
    /// Free-running number of the next chain to take.
    next_chain: u32,
    /// The batch that is being taken; of no meaning in between.
    batch: Box<[Head; BATCH]>,
}

impl Ring {
    /// Whether flags of the descriptor at `next` make it available (virtio 1.2, 2.8.1).
    #[inline(always)]
    fn is_ready(&self, flags: u16) -> bool {
        is_available(flags, self.next.wrap) && self.held < self.size
    }

    #[inline(always)]
    fn ready(&self) -> bool {
        self.is_ready(self.areas.flags(self.next.index).load(Ordering::Acquire))
    }

    #[inline(always)]
    fn taken_at(&self, chain: u32) -> Taken {
        self.taken[chain as usize & (self.taken.len() - 1)]
    }

    /// The newest `n` chains were not taken.
    fn untake(&mut self, n: usize) {
        for _ in 0..n {
            self.next_chain = self.next_chain.wrapping_sub(1);
            let count = self.taken_at(self.next_chain).count;
            self.next = self.next.back(count, self.size);
            self.held -= count;
        }
    }

    /// Takes up to `max` chains into `sink`: fewer when there are fewer, when it is full, or when a
    /// broken chain follows, which is an error only when it comes first.
    #[inline]
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<usize, Violation> {
        let mut taken = 0;
        while taken < max {
            let batch = self.copy_heads::<S>((max - taken).min(BATCH));
            for i in 0..batch {
                match self.take_chain(self.batch[i], sink) {
                    Ok(chain) => self.took(chain),
                    Err(Stop::Broken(violation)) if taken == 0 => {
                        sink.cancel();
                        return Err(self.mem.blame(violation));
                    }
                    Err(_) => {
                        sink.cancel();
                        return Ok(taken);
                    }
                }
                taken += 1;
            }
            if batch == 0 {
                break;
            }
        }
        Ok(taken)
    }

    /// Copies the head descriptors of the next chains, up to `max`, and brings near what they point
    /// to. Where a chain ends is known only of one that has a single descriptor, so the first
    /// longer one is the last.
    #[inline]
    fn copy_heads<S: Sink>(&mut self, max: usize) -> usize {
        let most = max.min(usize::from(self.size - self.held));
        let mut place = self.next;
        for i in 0..most {
            let flags = self.areas.flags(place.index).load(Ordering::Acquire);
            if !is_available(flags, place.wrap) {
                return i;
            }
            // The used descriptor is going to be written there, too.
            prefetch_write(
                self.areas.desc_at(place.forward(AHEAD.min(self.size), self.size).index),
            );
            let desc = self.areas.desc(place.index, flags);
            let at = self.mem.run(desc.addr, &mut self.hint);
            if let Some((host, _)) = at {
                S::ask(host.as_ptr());
                S::ask(host.as_ptr().wrapping_add(CACHE_LINE));
            }
            self.batch[i] = Head { desc, place: at };
            if flags & DESC_NEXT != 0 {
                return i + 1;
            }
            place = place.forward(1, self.size);
        }
        most
    }

    #[inline(always)]
    fn took(&mut self, chain: Taken) {
        let slot = self.next_chain as usize & (self.taken.len() - 1);
        self.taken[slot] = chain;
        self.next_chain = self.next_chain.wrapping_add(1);
        self.next = self.next.forward(chain.count, self.size);
        self.held += chain.count;
    }

    #[inline(always)]
    fn take_chain<S: Sink>(&mut self, head: Head, sink: &mut S) -> Result<Taken, Stop> {
        let Desc { len, flags, id, .. } = head.desc;
        let plain = if S::WRITABLE { DESC_WRITE } else { 0 };
        if let Some((host, left)) = head.place
            && flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == plain
            && left >= u64::from(len)
        {
            if !sink.push(Span { at: host, len }) {
                return Err(Stop::Full);
            }
            sink.close(len);
            return Ok(Taken { id, count: 1 });
        }
        self.walk_chain(head.desc, sink)
    }

    /// Follows a chain that begins with `desc` at `next` to its end: the following descriptors of
    /// the ring, and at most one indirect table. The buffer id is that of the last descriptor
    /// (virtio 1.2, 2.8.6).
    fn walk_chain<S: Sink>(&mut self, mut desc: Desc, sink: &mut S) -> Result<Taken, Stop> {
        let bound = u32::from(self.size).min(MAX_CHAIN) as u16;
        let mut place = self.next;
        let mut walk = Walk::new(&self.mem, &mut self.hint, sink);
        for count in 1..=bound {
            if count > self.size - self.held {
                return Err(Violation::Overrun.into());
            }
            if desc.flags & DESC_INDIRECT != 0 {
                if !self.indirect {
                    return Err(Violation::IndirectNotNegotiated.into());
                }
                if desc.flags & DESC_NEXT != 0 {
                    return Err(Violation::IndirectNext.into());
                }
                walk_table(&mut walk, &desc)?;
                walk.close()?;
                return Ok(Taken { id: desc.id, count });
            }
            walk.add(desc.addr, desc.len, desc.flags)?;
            if desc.flags & DESC_NEXT == 0 {
                walk.close()?;
                return Ok(Taken { id: desc.id, count });
            }
            place = place.forward(1, self.size);
            let flags = self.areas.flags(place.index).load(Ordering::Relaxed);
            if !is_available(flags, place.wrap) {
                return Err(Violation::ChainTorn.into());
            }
            desc = self.areas.desc(place.index, flags);
        }
        Err(Violation::ChainTooLong(u32::from(bound)).into())
    }
}

/// Whether `flags` make a descriptor available in the lap of the driver's wrap counter `wrap`.
#[inline(always)]
fn is_available(flags: u16, wrap: bool) -> bool {
    flags & (DESC_AVAIL | DESC_USED) == available_flags(wrap)
}

/// Goes through all entries of the indirect table that `desc` names: it has no links (virtio 1.2,
/// 2.8.7).
fn walk_table<S: Sink>(walk: &mut Walk<'_, S>, desc: &Desc) -> Result<(), Stop> {
    let table = walk.table(desc.addr, desc.len)?;
    for index in 0..table.entries() {
        let [addr, rest] = table.entry(index)?;
        let flags = (rest >> 48) as u16;
        if flags & DESC_INDIRECT != 0 {
            return Err(Violation::IndirectNested.into());
        }
        walk.add(addr, rest as u32, flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
