//! The available descriptors of a packed virtqueue: takes chains (virtio 1.2, 2.8.13, 2.8.21).
//!
//! A hostile driver can make any descriptor available, in any order and with any contents, link
//! more descriptors than the ring has, and change all of it meanwhile. So flags are read once,
//! before the rest of a descriptor, outstanding descriptors never exceed the ring, and the number
//! of descriptors of a chain is bounded.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::areas::Areas;
use super::{DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_USED, DESC_WRITE, Desc, available_flags};
use crate::copy::{CACHE_LINE, prefetch_write};
use crate::device::RingConfig;
use crate::driver_memory::DriverMemory;
use crate::gather::MAX_CHAIN;
use crate::notify::Place;
use crate::piece::Span;
use crate::region::Memory;
use crate::violation::Violation;
use crate::walk::{Sink, Stop, Walk, is_table};

/// Chains that are taken together.
const BATCH: usize = 64;

/// Descriptors that are prefetched ahead of the one that is taken: four cache lines of the ring.
const AHEAD: u16 = 16;

/// A chain's first descriptor, and the mapped place of its buffer.
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
pub(super) struct Taken {
    pub(super) id: u16,
    /// Descriptors of the ring that it occupies.
    pub(super) count: u16,
}

/// The driver's half of the ring, and how much of it was taken.
#[derive(Debug)]
pub(super) struct DescRing {
    pub(super) driver: DriverMemory<Areas>,
    /// The next descriptor to take.
    pub(super) next: Place,
    /// Descriptors that were taken and not given back yet: never more than the ring has.
    pub(super) outstanding: u16,
    /// Chains in flight or taken ahead, by their number modulo the length, a power of two.
    pub(super) taken: Box<[Taken]>,
    /// Free-running number of the next chain to take.
    pub(super) next_chain: u32,
    /// The batch that is being taken; meaningless between batches.
    batch: Box<[Head; BATCH]>,
}

impl DescRing {
    /// A ring from which nothing was taken yet.
    pub(super) fn new(mem: Arc<Memory>, areas: Areas, config: &RingConfig, start: Place) -> Self {
        let slots = usize::from(config.size).next_power_of_two();
        Self {
            driver: DriverMemory::new(mem, areas, config),
            next: start,
            outstanding: 0,
            taken: vec![Taken::default(); slots].into(),
            next_chain: 0,
            batch: Box::new([Head::EMPTY; BATCH]),
        }
    }

    /// Whether flags of the descriptor at `next` make it available (virtio 1.2, 2.8.1).
    #[inline(always)]
    pub(super) fn is_ready(&self, flags: u16) -> bool {
        is_available(flags, self.next.wrap) && self.outstanding < self.driver.size
    }

    #[inline(always)]
    pub(super) fn ready(&self) -> bool {
        self.is_ready(self.driver.areas.flags(self.next.index).load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn taken_at(&self, chain: u32) -> Taken {
        self.taken[chain as usize & (self.taken.len() - 1)]
    }

    /// Puts back the newest `n` chains.
    pub(super) fn untake(&mut self, n: usize) {
        for _ in 0..n {
            self.next_chain = self.next_chain.wrapping_sub(1);
            let count = self.taken_at(self.next_chain).count;
            self.next = self.next.back(count, self.driver.size);
            self.outstanding -= count;
        }
    }

    /// Takes up to `max` chains into `sink`: fewer when there are fewer, when the sink is full, or
    /// when a broken chain follows. A broken chain is an error only if it comes first.
    #[inline]
    pub(super) fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<usize, Violation> {
        let mut taken = 0;
        while taken < max {
            let batch = self.copy_heads::<S>((max - taken).min(BATCH));
            for i in 0..batch {
                match self.take_chain(self.batch[i], sink) {
                    Ok(chain) => self.took(chain),
                    Err(Stop::Broken(violation)) if taken == 0 => {
                        sink.cancel();
                        return Err(self.driver.mem.root_cause(violation));
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

    /// Copies the head descriptors of the next chains, up to `max`, and prefetches their buffers.
    /// The end of a chain is known only if it has a single descriptor, so the first longer one is
    /// the last.
    #[inline]
    fn copy_heads<S: Sink>(&mut self, max: usize) -> usize {
        let most = max.min(usize::from(self.driver.size - self.outstanding));
        let mut place = self.next;
        for i in 0..most {
            let flags = self.driver.areas.flags(place.index).load(Ordering::Acquire);
            if !is_available(flags, place.wrap) {
                return i;
            }
            // The used descriptor will also be written there.
            prefetch_write(
                self.driver
                    .areas
                    .desc_at(place.forward(AHEAD.min(self.driver.size), self.driver.size).index),
            );
            let desc = self.driver.areas.desc(place.index, flags);
            let at = self.driver.mem.run(desc.addr, &mut self.driver.hint);
            if let Some((host, _)) = at {
                S::prefetch(host.as_ptr());
                S::prefetch(host.as_ptr().wrapping_add(CACHE_LINE));
            }
            self.batch[i] = Head { desc, place: at };
            if flags & DESC_NEXT != 0 {
                return i + 1;
            }
            place = place.forward(1, self.driver.size);
        }
        most
    }

    #[inline(always)]
    fn took(&mut self, chain: Taken) {
        let slot = self.next_chain as usize & (self.taken.len() - 1);
        self.taken[slot] = chain;
        self.next_chain = self.next_chain.wrapping_add(1);
        self.next = self.next.forward(chain.count, self.driver.size);
        self.outstanding += chain.count;
    }

    #[inline(always)]
    fn take_chain<S: Sink>(&mut self, head: Head, sink: &mut S) -> Result<Taken, Stop> {
        let Desc { len, flags, id, .. } = head.desc;
        let plain = if S::WRITABLE { DESC_WRITE } else { 0 };
        if let Some((host, left)) = head.place
            && flags & (DESC_NEXT | DESC_WRITE | DESC_INDIRECT) == plain
            && left >= u64::from(len)
        {
            let is_taken = sink.push_alone(Span { at: host, len });
            return is_taken.then_some(Taken { id, count: 1 }).ok_or(Stop::Full);
        }
        self.walk_chain(head.desc, sink)
    }

    /// Follows a chain that begins with `desc` at `next` to its end: the following descriptors of
    /// the ring, and at most one indirect table. The buffer id is that of the last descriptor
    /// (virtio 1.2, 2.8.6).
    #[inline(never)]
    fn walk_chain<S: Sink>(&mut self, mut desc: Desc, sink: &mut S) -> Result<Taken, Stop> {
        let bound = u32::from(self.driver.size).min(MAX_CHAIN) as u16;
        let mut place = self.next;
        let mut walk = Walk::new(&self.driver.mem, &mut self.driver.hint, sink);
        for count in 1..=bound {
            if count > self.driver.size - self.outstanding {
                return Err(Violation::Overrun.into());
            }
            if is_table(desc.flags, self.driver.indirect)? {
                walk_table(&mut walk, &desc)?;
                walk.close()?;
                return Ok(Taken { id: desc.id, count });
            }
            walk.add(desc.addr, desc.len, desc.flags)?;
            if desc.flags & DESC_NEXT == 0 {
                walk.close()?;
                return Ok(Taken { id: desc.id, count });
            }
            place = place.forward(1, self.driver.size);
            let flags = self.driver.areas.flags(place.index).load(Ordering::Relaxed);
            if !is_available(flags, place.wrap) {
                return Err(Violation::ChainTorn.into());
            }
            desc = self.driver.areas.desc(place.index, flags);
        }
        Err(Violation::ChainTooLong(u32::from(bound)).into())
    }
}

/// Whether `flags` make a descriptor available while the driver's wrap counter is `wrap`.
#[inline(always)]
fn is_available(flags: u16, wrap: bool) -> bool {
    flags & (DESC_AVAIL | DESC_USED) == available_flags(wrap)
}

/// Visits all entries of the indirect table that `desc` names. The table has no links (virtio 1.2,
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
