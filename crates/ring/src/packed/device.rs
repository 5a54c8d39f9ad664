//! The device side of a packed virtqueue (virtio 1.2, 2.8).
//!
//! Descriptors are taken in the order of the ring and given back in the same order, one used
//! descriptor for each chain, so the outstanding descriptors are one stretch of the ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::areas::Areas;
use super::avail::DescRing;
use super::log::PackedLog;
use super::used::{Unpublished, UsedDescs};
use super::{DESC_AVAIL, MAX_SIZE, recovery};
use crate::device::{Recovery, RingConfig};
use crate::inflight::RingRecord;
use crate::layout::Layout;
use crate::notify::{self, Place};
use crate::region::Memory;
use crate::violation::Violation;
use crate::virtqueue::Virtqueue;
use crate::walk::Sink;

/// The device side of a packed virtqueue.
pub type PackedDevice = Virtqueue<PackedLayout>;

/// A packed ring in the driver's memory.
#[derive(Debug)]
pub struct PackedLayout {
    ring: DescRing,
    config: RingConfig,
    used: UsedDescs,
    /// The front-end's record of the used position.
    record: Option<RingRecord>,
    /// The log of writes to the ring, if they are logged.
    log: Option<PackedLog>,
}

// SAFETY: the areas that `DescRing` points to are mapped for the whole process as long as it holds
// its memory, and are only reached through raw copies and atomics.
unsafe impl Send for PackedLayout {}

impl Layout for PackedLayout {
    fn attach(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation> {
        if config.size == 0 || config.size > MAX_SIZE {
            return Err(Violation::QueueSize(config.size));
        }
        let start = start_of(config)?;
        let areas = Areas::find(&mem, config)?;
        let ring = DescRing::new(mem, areas, config, start);
        let used = UsedDescs { next: start, chain: 0, unpublished: None };
        Ok(Self { ring, config: *config, used, record: None, log: None })
    }

    fn set_memory(&mut self, mem: Arc<Memory>, untaken: usize) -> Result<(), Violation> {
        let areas = Areas::find(&mem, &self.config)?;
        self.ring.untake(untaken);
        self.ring.driver.areas = areas;
        self.ring.driver.mem = mem;
        Ok(())
    }

    fn set_used_log(&mut self, addr: Option<u64>) {
        self.log = addr.map(|addr| PackedLog::new(&self.config, addr));
    }

    #[inline(always)]
    fn memory(&self) -> &Arc<Memory> {
        &self.ring.driver.mem
    }

    fn recover(&mut self, record: Option<RingRecord>) -> Recovery {
        let recovery = self.find_position(record.as_ref());
        self.record = record;
        if let Some(record) = &self.record {
            record.set_positions(self.used.next, self.used.next);
        }
        recovery
    }

    #[inline(always)]
    fn ready(&mut self, max: usize) -> Result<usize, Violation> {
        Ok(if self.ring.ready() { max } else { 0 })
    }

    /// No check is needed here: taking chains looks at every descriptor's flags anyway.
    #[inline(always)]
    fn ready_at_most(&mut self, max: usize) -> Result<usize, Violation> {
        Ok(max)
    }

    #[inline(always)]
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<usize, Violation> {
        self.ring.take(max, sink)
    }

    #[inline(always)]
    fn outstanding(&self) -> usize {
        self.ring.next_chain.wrapping_sub(self.used.chain) as usize
    }

    fn untake(&mut self, n: usize) {
        self.ring.untake(n);
    }

    #[inline(always)]
    fn give_back(&mut self, len: u32) {
        self.used.give_back(&self.ring, len);
    }

    fn next_used(&self) -> u16 {
        self.used.chain as u16
    }

    fn invalidate(&mut self, first: u16, count: u16) {
        self.used.invalidate(&self.ring, first, count);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let Some(Unpublished { at, word, count }) = self.used.unpublished.take() else {
            return false;
        };
        self.ring.outstanding -= count;
        let (areas, size, next) = (&self.ring.driver.areas, self.ring.driver.size, self.used.next);
        if let Some(record) = &self.record {
            record.set_positions(next.back(count, size), next);
        }
        let wanted = notify::publish_packed(
            || areas.store_word(at, word),
            areas.driver_event(),
            next,
            count,
            size,
            self.config.event_idx,
        );
        if let Some(record) = &self.record {
            record.set_positions(next, next);
        }
        if let Some(log) = &self.log {
            log.written(&self.ring.driver.mem, next.back(count, size), count);
        }
        wanted
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        let (next, areas) = (self.ring.next, &self.ring.driver.areas);
        let flags = notify::arm_packed(
            areas.device_event(),
            next,
            self.config.event_idx,
            areas.flags(next.index),
        );
        self.log_suppression();
        if self.ring.driver.mem.is_faulted() {
            return Err(Violation::MemoryTruncated);
        }
        Ok(self.ring.is_ready(flags))
    }

    fn disarm(&mut self) {
        notify::disarm_packed(self.ring.driver.areas.device_event());
        self.log_suppression();
    }

    fn position(&self) -> u32 {
        let word = u32::from(self.used.next.to_word());
        word | word << 16
    }

    fn mark(&self) -> u32 {
        u32::from(self.used.next.to_word())
    }

    /// The last descriptor before the mark decides: if the driver has taken it, it has made it
    /// available again, under the other value of its wrap counter.
    fn has_consumed(&self, mark: u32) -> bool {
        let size = self.config.size;
        let mark = Place::from_word(mark as u16);
        let last = if mark.index == 0 {
            Place { index: size - 1, wrap: !mark.wrap }
        } else {
            Place { index: (mark.index - 1).min(size - 1), ..mark }
        };
        let flags = self.ring.driver.areas.flags(last.index).load(Ordering::Acquire);
        (flags & DESC_AVAIL != 0) != last.wrap
    }
}

impl PackedLayout {
    fn log_suppression(&self) {
        if let Some(log) = &self.log {
            log.suppressed(&self.ring.driver.mem);
        }
    }

    fn find_position(&mut self, record: Option<&RingRecord>) -> Recovery {
        let (told, areas, size) = (self.used.next, &self.ring.driver.areas, self.ring.driver.size);
        let recorded = || recovery::recorded(areas, size, record?);
        let Some(place) = recovery::recover(areas, size, told).or_else(recorded) else {
            return Recovery::Unclear;
        };
        (self.used.next, self.ring.next) = (place, place);
        match told == place {
            true => Recovery::AsTold,
            false => Recovery::Moved { told: told.to_word().into(), found: place.to_word().into() },
        }
    }
}

/// The position at which a ring starts. Nothing is in flight then, so the available and the used
/// position are the same.
fn start_of(config: &RingConfig) -> Result<Place, Violation> {
    let (available, used) = (config.start as u16, (config.start >> 16) as u16);
    let place = Place::from_word(if used == 0 { available } else { used });
    if place.index < config.size { Ok(place) } else { Err(Violation::Start(config.start)) }
}

#[cfg(test)]
mod tests;
