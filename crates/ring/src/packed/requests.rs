//! A packed virtqueue whose requests complete in any order (virtio 1.2, 2.8).
//!
//! Used descriptors are written in the order of completion, over descriptors of requests that may
//! still be in flight, so the needed fields of those are kept here: a list of as many entries as
//! the ring has descriptors. A request takes as many entries as it has descriptors, and the number
//! of the first is its token. The in-flight record has the same list.
//!
//! Entries of completed requests are free only after the publication: until then, a back-end that
//! comes after this one may need what the record has in them.

mod restart;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::areas::Areas;
use super::log::PackedLog;
use super::{
    DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_USED, DESC_WRITE, Desc, MAX_SIZE, available_flags,
    marked_used, used_word,
};
use crate::device::{Recovery, RingConfig};
use crate::gather::MAX_CHAIN;
use crate::inflight::RingRecord;
use crate::io_chain::IoChain;
use crate::notify::{self, Place};
use crate::region::Memory;
use crate::request_ring::RequestRing;
use crate::violation::Violation;
use crate::walk::Table;

/// The fields that the used descriptor of a request needs, by the first entry of the request.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The next entry of the request, or of the list of free entries.
    next: u16,
    /// The last entry of a request in flight, the number of its descriptors, and its buffer id.
    /// With a count of zero, no request in flight begins here.
    last: u16,
    count: u16,
    id: u16,
}

/// All entries, and the list of free ones.
#[derive(Debug)]
struct EntryList {
    entries: Box<[Entry]>,
    /// The first free entry.
    free: u16,
}

/// Requests that were completed since the last publication.
#[derive(Debug)]
struct UsedBatch {
    /// The places of the next used descriptor, and of the first one of the batch.
    used: Place,
    published: Place,
    /// The second half of the first used descriptor, which is written last.
    first_word: u64,
    /// The first and the last entry of each request.
    completed: Vec<(u16, u16)>,
}

/// The descriptors and entries of the request that is being taken.
#[derive(Debug)]
struct Taken {
    descs: Vec<Desc>,
    entries: Vec<u16>,
}

/// The device side of a packed virtqueue of requests.
#[derive(Debug)]
pub struct PackedRequests {
    memory: Arc<Memory>,
    areas: Areas,
    config: RingConfig,
    hint: usize,
    /// The next descriptor to take.
    next: Place,
    batch: UsedBatch,
    /// Descriptors that the driver has not got back.
    outstanding: u16,
    list: EntryList,
    in_flight: usize,
    /// Requests that a back-end before this one had in flight, to be taken first.
    again: VecDeque<u16>,
    taken: Taken,
    record: Option<RingRecord>,
    /// Number of the next request, for the record.
    counter: u64,
    /// The log of writes to the ring, if they are logged.
    log: Option<PackedLog>,
}

// SAFETY: the areas are mapped for the whole process as long as the ring holds its memory, and are
// only reached through raw copies and atomics.
unsafe impl Send for PackedRequests {}

impl RequestRing for PackedRequests {
    fn start(
        memory: Arc<Memory>,
        config: &RingConfig,
        record: Option<RingRecord>,
    ) -> Result<(Self, Recovery), Violation> {
        let size = config.size;
        if size == 0 || size > MAX_SIZE {
            return Err(Violation::QueueSize(size));
        }
        let (available, used) = (config.start as u16, (config.start >> 16) as u16);
        let told = Place::from_word(if used == 0 { available } else { used });
        if told.index >= size {
            return Err(Violation::Start(config.start));
        }
        let areas = Areas::find(&memory, config)?;
        let entry = |i| Entry { next: i + 1, ..Entry::default() };
        let list = EntryList { entries: (0..size).map(entry).collect(), free: 0 };
        let count = usize::from(size);
        let completed = Vec::with_capacity(count);
        let batch = UsedBatch { used: told, published: told, first_word: 0, completed };
        let taken = Taken { descs: Vec::with_capacity(count), entries: Vec::with_capacity(count) };
        let mut ring = PackedRequests {
            memory,
            areas,
            config: *config,
            hint: 0,
            next: told,
            batch,
            outstanding: 0,
            list,
            in_flight: 0,
            again: VecDeque::new(),
            taken,
            record,
            counter: 1,
            log: None,
        };
        let recovery = ring.recover(told)?;
        Ok((ring, recovery))
    }

    fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), Violation> {
        self.areas = Areas::find(&memory, &self.config)?;
        self.memory = memory;
        Ok(())
    }

    fn set_used_log(&mut self, addr: Option<u64>) {
        let was_logged = self.log.is_some();
        self.log = addr.map(|addr| PackedLog::new(&self.config, addr));
        if let Some(log) = self.log.as_ref().filter(|_| !was_logged) {
            // The descriptors of requests that are taken again were written at the start.
            log.written(&self.memory, self.batch.used, self.outstanding);
        }
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, Violation> {
        chain.begin(&self.memory);
        let taken = match self.again.front() {
            Some(&first) => self.take_again(first, chain).map(Some),
            None => self.take_next(chain),
        };
        taken.map_err(|violation| self.memory.root_cause(violation))
    }

    fn has_next(&mut self) -> Result<bool, Violation> {
        let flags = self.areas.flags(self.next.index).load(Ordering::Acquire);
        Ok(self.is_ready(flags) || !self.again.is_empty())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn complete(&mut self, token: u16, len: u32) {
        let entry = self.list.entries.get_mut(usize::from(token)).filter(|entry| entry.count > 0);
        let Some(entry) = entry else { return };
        if self.again.contains(&token) {
            return;
        }
        let Entry { last, count, id, .. } = *entry;
        entry.count = 0;
        self.in_flight -= 1;
        let word = used_word(len, id, self.batch.used.wrap);
        match self.batch.completed.is_empty() {
            true => self.batch.first_word = word,
            false => self.areas.store_word(self.batch.used.index, word),
        }
        // Marks for a recovery that looks for the ring's position in its descriptors.
        for i in 1..count {
            let place = self.batch.used.forward(i, self.config.size);
            let flags = self.areas.flags(place.index).load(Ordering::Relaxed);
            self.areas.store_flags(place.index, marked_used(flags, place.wrap));
        }
        self.batch.used = self.batch.used.forward(count, self.config.size);
        self.batch.completed.push((token, last));
    }

    fn publish(&mut self) -> Option<bool> {
        if self.batch.completed.is_empty() {
            return None;
        }
        for &(first, last) in &self.batch.completed {
            if let Some(record) = &self.record {
                record.free_entries(first, last, self.list.free);
            }
            self.list.entries[usize::from(last)].next = self.list.free;
            self.list.free = first;
        }
        let (old, new, size) = (self.batch.published, self.batch.used, self.config.size);
        let count = distance(old, new, size);
        if let Some(record) = &self.record {
            record.set_positions(old, new);
        }
        let wanted = notify::publish_packed(
            || self.areas.store_word(old.index, self.batch.first_word),
            self.areas.driver_event(),
            new,
            count,
            size,
            self.config.event_idx,
        );
        if let Some(record) = &self.record {
            self.batch.completed.iter().for_each(|(first, _)| record.end_entry(*first));
            record.commit_free(self.list.free);
            record.set_positions(new, new);
        }
        if let Some(log) = &self.log {
            log.written(&self.memory, old, count);
        }
        self.batch.published = new;
        self.outstanding -= count;
        self.batch.completed.clear();
        Some(wanted)
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        let flags = notify::arm_packed(
            self.areas.device_event(),
            self.next,
            self.config.event_idx,
            self.areas.flags(self.next.index),
        );
        self.log_suppression();
        if self.memory.is_faulted() {
            return Err(Violation::MemoryTruncated);
        }
        Ok(self.is_ready(flags) || !self.again.is_empty())
    }

    fn disarm(&mut self) {
        notify::disarm_packed(self.areas.device_event());
        self.log_suppression();
    }

    fn position(&self) -> u32 {
        let word = u32::from(self.next.to_word());
        word | word << 16
    }
}

impl PackedRequests {
    fn log_suppression(&self) {
        if let Some(log) = &self.log {
            log.suppressed(&self.memory);
        }
    }

    /// Whether `flags` of the descriptor at `next` make it available.
    fn is_ready(&self, flags: u16) -> bool {
        flags & (DESC_AVAIL | DESC_USED) == available_flags(self.next.wrap)
            && self.outstanding < self.config.size
    }

    /// Takes a request from the record.
    fn take_again(&mut self, first: u16, chain: &mut IoChain) -> Result<u16, Violation> {
        let record = self.record.clone().ok_or(Violation::InFlightRecord)?;
        let mut at = first;
        for _ in 0..self.list.entries[usize::from(first)].count {
            let desc = record.desc(at).ok_or(Violation::InFlightRecord)?;
            self.add(&desc, chain)?;
            at = self.list.entries[usize::from(at)].next;
        }
        self.again.pop_front();
        self.in_flight += 1;
        Ok(first)
    }

    fn take_next(&mut self, chain: &mut IoChain) -> Result<Option<u16>, Violation> {
        if !self.is_ready(self.areas.flags(self.next.index).load(Ordering::Acquire)) {
            return Ok(None);
        }
        self.copy_descs()?;
        for i in 0..self.taken.descs.len() {
            let desc = self.taken.descs[i];
            self.add(&desc, chain)?;
        }
        self.taken.entries.clear();
        let mut at = self.list.free;
        for _ in 0..self.taken.descs.len() {
            self.taken.entries.push(at);
            at = self.list.entries[usize::from(at)].next;
        }
        let (first, last) =
            (self.taken.entries[0], self.taken.entries[self.taken.entries.len() - 1]);
        let count = self.taken.entries.len() as u16;
        let id = self.taken.descs.last().map_or(0, |desc| desc.id);
        let entry = &mut self.list.entries[usize::from(first)];
        (entry.last, entry.count, entry.id) = (last, count, id);
        self.list.free = at;
        if let Some(record) = &self.record {
            record.begin_entries(&self.taken.entries, &self.taken.descs, self.counter, at);
            self.counter = self.counter.wrapping_add(1);
        }
        self.next = self.next.forward(count, self.config.size);
        self.outstanding += count;
        self.in_flight += 1;
        Ok(Some(first))
    }

    /// Copies the descriptors of the request at `next`, the first of which is available. None of
    /// them is a descriptor that the driver has not got back, because their number is limited to
    /// that of free entries.
    fn copy_descs(&mut self) -> Result<(), Violation> {
        self.taken.descs.clear();
        let bound = u32::from(self.config.size).min(MAX_CHAIN) as u16;
        for i in 0..bound {
            if i >= self.config.size - self.outstanding {
                return Err(Violation::Overrun);
            }
            let place = self.next.forward(i, self.config.size);
            let flags = self.areas.flags(place.index).load(Ordering::Acquire);
            if flags & (DESC_AVAIL | DESC_USED) != available_flags(place.wrap) {
                return Err(Violation::ChainTorn);
            }
            self.taken.descs.push(self.areas.desc(place.index, flags));
            if flags & DESC_NEXT == 0 {
                return Ok(());
            }
        }
        Err(Violation::ChainTooLong(bound.into()))
    }

    /// Adds the buffers of a descriptor of the ring to a chain.
    fn add(&mut self, desc: &Desc, chain: &mut IoChain) -> Result<(), Violation> {
        if desc.flags & DESC_INDIRECT == 0 {
            return chain.add(desc.addr, desc.len, desc.flags & DESC_WRITE != 0, &mut self.hint);
        }
        if !self.config.indirect {
            return Err(Violation::IndirectNotNegotiated);
        }
        if desc.flags & DESC_NEXT != 0 {
            return Err(Violation::IndirectNext);
        }
        let table = Table::open(&self.memory, &mut self.hint, desc.addr, desc.len)?;
        for index in 0..table.entries() {
            let [addr, rest] = table.entry(index)?;
            let flags = (rest >> 48) as u16;
            if flags & DESC_INDIRECT != 0 {
                return Err(Violation::IndirectNested);
            }
            chain.add(addr, rest as u32, flags & DESC_WRITE != 0, &mut self.hint)?;
        }
        Ok(())
    }
}

/// Descriptors from `from` up to `to`, which is at most a whole ring ahead.
fn distance(from: Place, to: Place, size: u16) -> u16 {
    match (from.wrap == to.wrap, to.index.checked_sub(from.index)) {
        (true, Some(count)) => count,
        _ => to.index + (size - from.index),
    }
}
