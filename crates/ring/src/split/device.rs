//! The device side of a split virtqueue (virtio 1.2, 2.7).
//!
//! Completion is in order: element `n` of the used ring answers entry `n` of the available ring, so
//! one position is the whole state of the ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::MAX_SIZE;
use super::areas::Areas;
use super::avail::AvailRing;
use super::log::UsedLog;
use super::position::Position;
use crate::device::{Recovery, RingConfig};
use crate::driver_memory::DriverMemory;
use crate::inflight::RingRecord;
use crate::layout::Layout;
use crate::notify;
use crate::region::Memory;
use crate::violation::Violation;
use crate::virtqueue::Virtqueue;
use crate::walk::Sink;

/// The device side of a split virtqueue.
pub type SplitDevice = Virtqueue<SplitLayout>;

/// A split ring in the driver's memory.
#[derive(Debug)]
pub struct SplitLayout {
    avail: AvailRing,
    config: RingConfig,
    /// Next element of the used ring to write; behind `AvailRing::next` by the number of
    /// outstanding chains.
    done: Position,
    /// An interrupt decision was made before. Only then does the used event show what the driver
    /// has seen.
    notified: bool,
    /// The front-end's record of the used index.
    record: Option<RingRecord>,
    /// The log of writes to the used ring, if they are logged.
    used_log: Option<UsedLog>,
}

// SAFETY: the areas that `AvailRing` points to are mapped for the whole process as long as it holds
// its memory, and are only reached through raw copies and atomics.
unsafe impl Send for SplitLayout {}

impl Layout for SplitLayout {
    fn attach(mem: Arc<Memory>, config: &RingConfig) -> Result<Self, Violation> {
        if !config.size.is_power_of_two() || config.size > MAX_SIZE {
            return Err(Violation::QueueSize(config.size));
        }
        let start = u16::try_from(config.start).map_err(|_| Violation::Start(config.start))?;
        let start = Position::of(start);
        let areas = Areas::find(&mem, config)?;
        let avail = AvailRing {
            driver: DriverMemory::new(mem, areas, config),
            next: start,
            seen: start,
            published: start,
            heads: vec![0; usize::from(config.size)].into(),
        };
        let (config, record, used_log) = (*config, None, None);
        Ok(Self { avail, config, done: start, notified: false, record, used_log })
    }

    fn set_memory(&mut self, mem: Arc<Memory>, untaken: usize) -> Result<(), Violation> {
        let areas = Areas::find(&mem, &self.config)?;
        self.untake(untaken);
        self.avail.driver.areas = areas;
        self.avail.driver.mem = mem;
        Ok(())
    }

    fn set_used_log(&mut self, addr: Option<u64>) {
        self.used_log = addr.map(|addr| UsedLog::new(addr, &self.config));
    }

    #[inline(always)]
    fn memory(&self) -> &Arc<Memory> {
        &self.avail.driver.mem
    }

    fn recover(&mut self, record: Option<RingRecord>) -> Recovery {
        let recovery = self.find_position();
        self.record = record;
        if let Some(record) = &self.record {
            record.set_used_index(self.done.get());
        }
        recovery
    }

    #[inline(always)]
    fn ready(&mut self, max: usize) -> Result<usize, Violation> {
        self.avail.ready(max)
    }

    #[inline(always)]
    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<usize, Violation> {
        self.avail.take(max, sink)
    }

    #[inline(always)]
    fn look_ahead(&self) {
        self.avail.look_ahead();
    }

    #[inline(always)]
    fn outstanding(&self) -> usize {
        usize::from(self.avail.next.get().wrapping_sub(self.done.get()))
    }

    fn untake(&mut self, n: usize) {
        self.avail.next.retreat(n);
    }

    #[inline(always)]
    fn give_back(&mut self, len: u32) {
        self.write_used(self.done.get(), len);
        self.done.advance(1);
    }

    fn next_used(&self) -> u16 {
        self.done.get()
    }

    fn invalidate(&mut self, first: u16, count: u16) {
        let published = self.avail.published.get();
        let unpublished = self.done.get().wrapping_sub(published);
        for number in (0..count).map(|i| first.wrapping_add(i)) {
            if number.wrapping_sub(published) < unpublished {
                self.write_used(number, 0);
            }
        }
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let (old, done, areas) =
            (self.avail.published.get(), self.done.get(), &self.avail.driver.areas);
        if old == done {
            return false;
        }
        self.avail.published = self.done;
        let wanted = if self.config.event_idx {
            let wanted =
                notify::publish_with_event(areas.used_index(), done, old, areas.used_event());
            wanted | !std::mem::replace(&mut self.notified, true)
        } else {
            notify::publish_with_flags(areas.used_index(), done, areas.avail_flags())
        };
        if let Some(record) = &self.record {
            record.set_used_index(done);
        }
        if let Some(log) = &self.used_log {
            log.published(&self.avail.driver.mem, old, done);
        }
        wanted
    }

    fn arm(&mut self) -> Result<bool, Violation> {
        let (next, areas) = (self.avail.next.get(), &self.avail.driver.areas);
        let index = if self.config.event_idx {
            notify::arm_event(areas.avail_event(), next, areas.avail_index())
        } else {
            notify::arm_flags(areas.used_flags(), areas.avail_index())
        };
        self.log_suppression();
        self.avail.check_index(index)?;
        if self.avail.driver.mem.is_faulted() {
            return Err(Violation::MemoryTruncated);
        }
        Ok(index != next)
    }

    fn disarm(&mut self) {
        if !self.config.event_idx {
            notify::disarm_flags(self.avail.driver.areas.used_flags());
            self.log_suppression();
        }
    }

    fn position(&self) -> u32 {
        u32::from(self.done.get())
    }

    /// The used index in the lower half, the driver's used event in the upper one.
    fn mark(&self) -> u32 {
        let event = self.avail.driver.areas.used_event().load(Ordering::Acquire);
        u32::from(self.done.get()) | u32::from(event) << 16
    }

    fn has_consumed(&self, mark: u32) -> bool {
        let (mark, before) = (mark as u16, (mark >> 16) as u16);
        let areas = &self.avail.driver.areas;
        let posted = areas.avail_index().load(Ordering::Acquire).wrapping_sub(mark);
        if posted >= self.config.size {
            return true;
        }
        // An event index that the driver has not changed since may be old, unless it is the mark
        // itself. Zero is ambiguous: Linux writes zero while it has interrupts disabled, whatever
        // it has consumed.
        let event = areas.used_event().load(Ordering::Acquire);
        let since = self.done.get().wrapping_sub(mark);
        let is_recent =
            event != 0 && (event == mark || event != before && event.wrapping_sub(mark) <= since);
        self.config.event_idx && is_recent
    }
}

impl SplitLayout {
    /// Takes the position from the used index in the ring. If the configured position lies ahead of
    /// it, the entries in between were in flight when the last back-end ended, and are taken again.
    fn find_position(&mut self) -> Recovery {
        let told = self.done.get();
        let used = self.avail.driver.areas.used_index().load(Ordering::Acquire);
        let added =
            self.avail.driver.areas.avail_index().load(Ordering::Acquire).wrapping_sub(used);
        let skipped = told.wrapping_sub(used);
        if skipped == 0 || added > self.avail.driver.size || skipped > added {
            return Recovery::AsTold;
        }
        let start = Position::of(used);
        (self.avail.next, self.avail.seen, self.avail.published) = (start, start, start);
        self.done = start;
        Recovery::Moved { told: told.into(), found: used.into() }
    }

    fn log_suppression(&self) {
        if let Some(log) = &self.used_log {
            log.suppressed(&self.avail.driver.mem);
        }
    }

    /// Writes used element number `number`: it answers the available entry of that number.
    #[inline(always)]
    fn write_used(&mut self, number: u16, len: u32) {
        let slot = usize::from(number & (self.avail.driver.size - 1));
        self.avail.driver.areas.write_used(slot, self.avail.heads[slot], len);
    }
}

#[cfg(test)]
mod tests;
