//! The restart of a packed virtqueue of requests, by its in-flight record.

use std::sync::atomic::Ordering;

use super::{Entry, PackedRequests};
use crate::device::Recovery;
use crate::inflight::{Recorded, RingRecord};
use crate::notify::Place;
use crate::packed::{DESC_AVAIL, DESC_USED, available_flags, marked_available, recovery};
use crate::violation::Violation;

impl PackedRequests {
    /// Finds the position. With requests in flight, the record has the used position. Without any,
    /// the ring looks as if it had completed in order, and its descriptors show the position.
    pub(super) fn recover(&mut self, told: Place) -> Result<Recovery, Violation> {
        let size = self.config.size;
        let Some(record) = self.record.clone() else { return Ok(Recovery::AsTold) };
        let [old, new] = record.positions().ok_or(Violation::InFlightRecord)?;
        if old.index >= size || new.index >= size {
            return Err(Violation::InFlightRecord);
        }
        let published = old != new && !self.is_available_at(old);
        let state = record.packed_state(size, published).ok_or(Violation::InFlightRecord)?;
        let found = match state.in_flight.is_empty() {
            // Nothing was ever recorded, so the positions are meaningless.
            true if !state.was_used => recovery::recover(&self.areas, size, told).unwrap_or(told),
            true => recovery::recover(&self.areas, size, told).unwrap_or(if published {
                new
            } else {
                old
            }),
            false if published => new,
            false => old,
        };
        (self.batch.used, self.batch.published, self.next) = (found, found, found);
        self.restore(&record, &state.free, &state.in_flight)?;
        record.set_positions(found, found);
        Ok(match self.next == told {
            true => Recovery::AsTold,
            false => {
                Recovery::Moved { told: told.to_word().into(), found: self.next.to_word().into() }
            }
        })
    }

    /// Takes over the list of entries and the requests in flight.
    fn restore(
        &mut self,
        record: &RingRecord,
        free: &[u16],
        in_flight: &[Recorded],
    ) -> Result<(), Violation> {
        let size = self.config.size;
        let link = |entries: &mut [Entry], list: &[u16], end: u16| {
            let next = list.iter().skip(1).copied().chain([end]);
            list.iter().zip(next).for_each(|(at, next)| entries[usize::from(*at)].next = next);
            list.first().copied().unwrap_or(end)
        };
        self.list.free = link(&mut self.list.entries, free, size);
        for recorded in in_flight {
            let first = link(&mut self.list.entries, &recorded.entries, size);
            let last = recorded.entries.last().copied().unwrap_or(first);
            let id = record.desc(last).ok_or(Violation::InFlightRecord)?.id;
            let entry = &mut self.list.entries[usize::from(first)];
            (entry.last, entry.count, entry.id) = (last, recorded.entries.len() as u16, id);
            self.counter = self.counter.max(recorded.counter.wrapping_add(1));
            self.outstanding += entry.count;
            self.again.push_back(first);
        }
        self.next = self.batch.used.forward(self.outstanding, size);
        // Used descriptors of an unpublished batch must not be found behind those of the next one.
        for i in 0..self.outstanding {
            let place = self.batch.used.forward(i, size);
            let flags = self.areas.flags(place.index).load(Ordering::Relaxed);
            self.areas.store_flags(place.index, marked_available(flags, place.wrap));
        }
        Ok(())
    }

    /// Whether the descriptor at `place` is available to the device.
    fn is_available_at(&self, place: Place) -> bool {
        let flags = self.areas.flags(place.index).load(Ordering::Acquire);
        flags & (DESC_AVAIL | DESC_USED) == available_flags(place.wrap)
    }
}
