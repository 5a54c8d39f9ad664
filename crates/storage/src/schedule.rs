//! How the runtime drives the block pipeline.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use runtime::pipeline::{Failed, Wakers};
use runtime::{Attached, ClassId, Departure, Pipeline, RunCounters, Served, Status, Waits};

use crate::pipeline::{BlockPipeline, QUANTUM};
use crate::slot::{Attachment, Slot};

/// Interval at which requests that the kernel did not take are handed over again.
const RETRY: Duration = Duration::from_millis(1);

impl Pipeline for BlockPipeline {
    type Queue = Box<Attachment>;
    type Topology = ();
    type Request = ();

    const QUANTUM: u64 = QUANTUM;

    fn counters(&self) -> &RunCounters {
        &self.run
    }

    #[inline]
    fn tick(&mut self, now: Instant) {
        self.now = now;
    }

    fn attach(&mut self, queue: Box<Attachment>) -> Attached {
        let (class, policy, failed) = (ClassId(queue.class), queue.policy, queue.failed);
        let slot = self.slots.insert(Slot::new(*queue));
        Attached { slot, class, policy, failed }
    }

    fn depart(&mut self, slot: usize, _: Departure) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.leaving = true;
        }
    }

    fn is_drained(&self, slot: usize) -> bool {
        self.slots.get(slot).is_none_or(|slot| slot.in_flight == 0)
    }

    fn resume(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.leaving = false;
        }
    }

    fn detach(&mut self, slot: usize) -> Option<Box<Attachment>> {
        let mut slot = self.slots.try_remove(slot)?;
        slot.flush();
        slot.cancel_reservation();
        self.empty_pool();
        Some(Box::new(slot.on))
    }

    /// Follows changed limits of disks.
    fn follow(&mut self, (): &()) {
        self.slots.iter_mut().for_each(|(_, slot)| slot.follow_limits());
    }

    fn request(&mut self, (): ()) {}

    #[inline]
    fn begin(&mut self) -> bool {
        self.in_flight > 0 && self.complete_finished()
    }

    fn serve(&mut self, slot: usize, quantum: u64) -> Served {
        self.carry(slot, quantum)
    }

    #[inline]
    fn end(&mut self) {
        if self.faults.is_due(self.now) {
            self.sample_faults();
        }
    }

    fn status(&self, slot: usize) -> Status {
        self.slots.get(slot).map_or(Status::Failed, Slot::status)
    }

    fn pending(&self, waits: &mut Waits) {
        if self.engine.has_unsubmitted() {
            waits.until = waits.until.into_iter().chain([self.now + RETRY]).min();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.engine.has_unsubmitted().then(|| self.now + RETRY)
    }

    fn has_mail(&self) -> bool {
        false
    }

    fn arm(&mut self, slot: usize, _: bool) -> Result<bool, Failed> {
        let slot = self.slots.get_mut(slot).filter(|slot| !slot.on.failed).ok_or(Failed)?;
        slot.on.queue.arm().map_err(|error| {
            slot.fail(error);
            Failed
        })
    }

    fn disarm(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot).filter(|slot| !slot.on.failed) {
            slot.on.queue.disarm();
        }
    }

    fn woken(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            slot.on.counters.kicks.add(1);
        }
        self.disarm(slot);
    }

    fn wakers(&self, slot: usize) -> Wakers<'_> {
        let work = self.slots.get(slot).and_then(|slot| slot.on.queue.waker());
        Wakers { work, ..Wakers::default() }
    }

    fn owner(&self, slot: usize) -> Option<String> {
        self.slots.get(slot).map(|slot| format!("disk {}", slot.on.name))
    }

    fn completions(&self) -> Option<BorrowedFd<'_>> {
        Some(self.engine.completions())
    }

    fn sleeping(&mut self, _: bool) {}
}
