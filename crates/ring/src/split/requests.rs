//! A split virtqueue whose requests complete in any order (virtio 1.2, 2.7).
//!
//! A request's token is the number of its first descriptor. The driver cannot use that descriptor
//! for another request before it got this one back; a driver that does is detected.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::areas::{Areas, desc_of};
use super::log::UsedLog;
use super::look_ahead::LookAhead;
use super::position::Position;
use super::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Desc, MAX_SIZE};
use crate::device::{Recovery, RingConfig};
use crate::gather::MAX_CHAIN;
use crate::inflight::RingRecord;
use crate::io_chain::IoChain;
use crate::notify;
use crate::region::Memory;
use crate::request_ring::RequestRing;
use crate::violation::Violation;
use crate::walk::Table;

/// The requests in flight, and the record of them for a back-end that comes after this one.
#[derive(Debug)]
struct InFlight {
    /// Whether each descriptor is the head of a request in flight.
    heads: Box<[bool]>,
    count: usize,
    /// Heads of requests that a back-end before this one had in flight, to be taken first.
    again: VecDeque<u16>,
    record: Option<RingRecord>,
    /// Number of the next request, for the record.
    counter: u64,
}

impl InFlight {
    fn new(size: usize, record: Option<RingRecord>) -> Self {
        let heads = vec![false; size].into();
        InFlight { heads, count: 0, again: VecDeque::new(), record, counter: 1 }
    }

    /// Checks that a request may begin at `head`.
    fn check(&self, head: u16) -> Result<(), Violation> {
        match self.heads.get(usize::from(head)) {
            None => {
                let table = self.heads.len() as u32;
                Err(Violation::DescriptorIndex { index: head, table })
            }
            Some(true) => Err(Violation::HeadInFlight(head)),
            Some(false) => Ok(()),
        }
    }

    /// Records a request that no back-end has had.
    fn record(&mut self, head: u16) {
        if let Some(record) = &self.record {
            record.begin_head(head, self.counter);
            self.counter = self.counter.wrapping_add(1);
        }
    }

    fn begin(&mut self, head: u16) {
        self.heads[usize::from(head)] = true;
        self.count += 1;
    }

    /// Ends the request at `head`. False: no request in flight begins there.
    fn end(&mut self, head: u16) -> bool {
        let Some(taken) = self.heads.get_mut(usize::from(head)).filter(|taken| **taken) else {
            return false;
        };
        *taken = false;
        self.count -= 1;
        true
    }
}

/// The device side of a split virtqueue of requests.
#[derive(Debug)]
pub struct SplitRequests {
    memory: Arc<Memory>,
    areas: Areas,
    config: RingConfig,
    hint: usize,
    /// Next entry of the available ring to take, and the available index when it was last read.
    next: Position,
    seen: Position,
    /// Next element of the used ring to write, and the used index as the driver sees it.
    used: Position,
    published: Position,
    /// Which requests behind `next` were looked at.
    look_ahead: LookAhead,
    in_flight: InFlight,
    /// Heads of the requests that were completed since the last publication.
    completed: Vec<u16>,
    /// An interrupt decision was made before. Only then does the used event show what the driver
    /// has seen.
    notified: bool,
    /// The log of writes to the used ring, if they are logged.
    used_log: Option<UsedLog>,
}

// SAFETY: the areas are mapped for the whole process as long as the ring holds its memory, and are
// only reached through raw copies and atomics.
unsafe impl Send for SplitRequests {}

impl RequestRing for SplitRequests {
    fn start(
        memory: Arc<Memory>,
        config: &RingConfig,
        record: Option<RingRecord>,
    ) -> Result<(Self, Recovery), Violation> {
        if !config.size.is_power_of_two() || config.size > MAX_SIZE {
            return Err(Violation::QueueSize(config.size));
        }
        let told = u16::try_from(config.start).map_err(|_| Violation::Start(config.start))?;
        let areas = Areas::find(&memory, config)?;
        let (size, start) = (usize::from(config.size), Position::of(told));
        let used = areas.used_index().load(Ordering::Acquire);
        let mut ring = SplitRequests {
            memory,
            areas,
            config: *config,
            hint: 0,
            next: start,
            seen: start,
            used: start,
            published: start,
            look_ahead: LookAhead::new(told),
            in_flight: InFlight::new(size, record),
            completed: Vec::with_capacity(size),
            notified: false,
            used_log: None,
        };
        let recovery = ring.recover(told, used)?;
        Ok((ring, recovery))
    }

    fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), Violation> {
        self.areas = Areas::find(&memory, &self.config)?;
        self.memory = memory;
        Ok(())
    }

    fn set_used_log(&mut self, addr: Option<u64>) {
        self.used_log = addr.map(|addr| UsedLog::new(addr, &self.config));
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn take(&mut self, chain: &mut IoChain) -> Result<Option<u16>, Violation> {
        let taken = self.take_next(chain);
        taken.map_err(|violation| self.memory.root_cause(violation))
    }

    fn has_next(&mut self) -> Result<bool, Violation> {
        let index = self.areas.avail_index().load(Ordering::Acquire);
        self.see(index).map_err(|violation| self.memory.root_cause(violation))?;
        Ok(index != self.next.get() || !self.in_flight.again.is_empty())
    }

    fn in_flight(&self) -> usize {
        self.in_flight.count
    }

    fn complete(&mut self, token: u16, len: u32) {
        if !self.in_flight.end(token) {
            return;
        }
        self.areas.write_used(self.areas.slot(self.used.get()), token, len);
        self.used.advance(1);
        self.completed.push(token);
        if let Some(record) = &self.in_flight.record {
            record.link_head(token);
        }
    }

    fn publish(&mut self) -> Option<bool> {
        let (old, new) = (self.published.get(), self.used.get());
        if old == new {
            return None;
        }
        self.published = self.used;
        #[cfg(test)]
        if !crate::kill::survives() {
            return Some(false);
        }
        let areas = &self.areas;
        let wanted = if self.config.event_idx {
            let wanted =
                notify::publish_with_event(areas.used_index(), new, old, areas.used_event());
            wanted | !std::mem::replace(&mut self.notified, true)
        } else {
            notify::publish_with_flags(areas.used_index(), new, areas.avail_flags())
        };
        if let Some(record) = &self.in_flight.record {
            self.completed.iter().for_each(|head| record.end_head(*head));
            record.set_used_index(new);
        }
        self.completed.clear();
        if let Some(log) = &self.used_log {
            log.published(&self.memory, old, new);
        }
        Some(wanted)
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        let index = if self.config.event_idx {
            notify::arm_event(self.areas.avail_event(), self.next.get(), self.areas.avail_index())
        } else {
            notify::arm_flags(self.areas.used_flags(), self.areas.avail_index())
        };
        self.log_suppression();
        self.see(index).map_err(|violation| self.memory.root_cause(violation))?;
        if self.memory.is_faulted() {
            return Err(Violation::MemoryTruncated);
        }
        Ok(index != self.next.get() || !self.in_flight.again.is_empty())
    }

    fn disarm(&mut self) {
        if !self.config.event_idx {
            notify::disarm_flags(self.areas.used_flags());
            self.log_suppression();
        }
    }

    fn position(&self) -> u32 {
        self.next.get().into()
    }
}

impl SplitRequests {
    fn log_suppression(&self) {
        if let Some(log) = &self.used_log {
            log.suppressed(&self.memory);
        }
    }

    /// Finds the position. With a record, the position is behind the used requests and those in
    /// flight. Without one, the requests in flight are unknown, and the front-end's position is
    /// used.
    fn recover(&mut self, told: u16, used: u16) -> Result<Recovery, Violation> {
        if told.wrapping_sub(used) <= self.config.size {
            self.used = Position::of(used);
            self.published = self.used;
        }
        let Some(record) = &self.in_flight.record else {
            return Ok(if told == used { Recovery::AsTold } else { Recovery::Unclear });
        };
        let in_flight = record.heads_in_flight(self.config.size, used);
        let added = self.areas.avail_index().load(Ordering::Acquire).wrapping_sub(used);
        let taken = in_flight.len() as u16;
        if taken > 0 && (added > self.config.size || taken > added) {
            return Err(Violation::InFlightRecord);
        }
        record.set_used_index(used);
        let last = in_flight.last().map_or(0, |(counter, _)| *counter);
        self.in_flight.counter = last.wrapping_add(1).max(1);
        self.in_flight.again = in_flight.into_iter().map(|(_, head)| head).collect();
        let next = used.wrapping_add(taken);
        (self.next, self.seen) = (Position::of(next), Position::of(next));
        (self.used, self.published) = (Position::of(used), Position::of(used));
        Ok(match next == told {
            true => Recovery::AsTold,
            false => Recovery::Moved { told: told.into(), found: next.into() },
        })
    }

    fn take_next(&mut self, chain: &mut IoChain) -> Result<Option<u16>, Violation> {
        chain.begin(&self.memory);
        if let Some(&head) = self.in_flight.again.front() {
            self.fill(head, chain)?;
            self.in_flight.again.pop_front();
            self.in_flight.begin(head);
            return Ok(Some(head));
        }
        let next = self.next.get();
        if next == self.seen.get() {
            self.see(self.areas.avail_index().load(Ordering::Acquire))?;
            if next == self.seen.get() {
                return Ok(None);
            }
        }
        let seen = self.seen.get();
        self.look_ahead.prefetch(&self.areas, &self.memory, self.hint, next, seen);
        let head = self.areas.head(self.areas.slot(next));
        self.in_flight.check(head)?;
        self.fill(head, chain)?;
        self.in_flight.record(head);
        self.in_flight.begin(head);
        self.next.advance(1);
        Ok(Some(head))
    }

    /// Accepts an available index if it is possible.
    fn see(&mut self, index: u16) -> Result<(), Violation> {
        let published = self.published.get();
        let (ahead, size) = (index.wrapping_sub(published), self.config.size);
        if ahead > size || ahead < self.next.get().wrapping_sub(published) {
            return Err(Violation::AvailableJump { index, ahead, size });
        }
        self.seen = Position::of(index);
        Ok(())
    }

    /// Follows the chain that begins at descriptor `head`.
    fn fill(&mut self, head: u16, chain: &mut IoChain) -> Result<(), Violation> {
        let size = self.config.size;
        let bound = u32::from(size).min(MAX_CHAIN);
        let mut index = head;
        for _ in 0..bound {
            let desc = self.areas.desc(index);
            if desc.flags & DESC_INDIRECT != 0 {
                return self.fill_indirect(&desc, chain);
            }
            chain.add(desc.addr, desc.len, desc.flags & DESC_WRITE != 0, &mut self.hint)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(());
            }
            if desc.next >= size {
                return Err(Violation::DescriptorIndex { index: desc.next, table: size.into() });
            }
            index = desc.next;
        }
        Err(Violation::ChainTooLong(bound))
    }

    /// Follows the links of an indirect table from its entry 0.
    fn fill_indirect(&mut self, desc: &Desc, chain: &mut IoChain) -> Result<(), Violation> {
        if !self.config.indirect {
            return Err(Violation::IndirectNotNegotiated);
        }
        if desc.flags & DESC_NEXT != 0 {
            return Err(Violation::IndirectNext);
        }
        let table = Table::open(&self.memory, &mut self.hint, desc.addr, desc.len)?;
        let mut index = 0;
        for _ in 0..table.entries() {
            let desc = desc_of(table.entry(index)?);
            if desc.flags & DESC_INDIRECT != 0 {
                return Err(Violation::IndirectNested);
            }
            chain.add(desc.addr, desc.len, desc.flags & DESC_WRITE != 0, &mut self.hint)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(());
            }
            index = u32::from(desc.next);
        }
        Err(Violation::ChainTooLong(table.entries()))
    }
}
