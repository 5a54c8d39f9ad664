//! Page faults in the memory of ports.
//!
//! A guest's memory is a file of its front-end. After the front-end punches a hole into the file,
//! the next touch makes the kernel find a page and clear it, which takes as long as copying some
//! ten thousand bytes. A hostile front-end can do so for every frame without using more memory. So
//! faults are charged to the port in whose memory they happen.
//!
//! The kernel counts the faults of a thread, and reading the count is a system call. A worker reads
//! it now and then ([`fault_meter`](runtime::fault_meter)), and bursts are measured one by one only
//! while there are many faults. In a measured burst, all pages of the sender's frames are touched
//! first, and faults up to then are the sender's cost. Faults while a receiver's buffers are filled
//! are the receiver's debt ([`receive_debt`](crate::receive_debt)). First touches of the pages of a
//! guest that has just started are no debt. A sender also waits for the time that its faults took
//! ([`fault_wait`](crate::fault_wait)), since others have waited for them.
//!
//! Each fault may also have allocated a page, which is charged to this process and not to the
//! front-end: ports have accounts for that ([`ring::MemoryAccount`]). Faults of bursts that were
//! not measured are charged to all ports whose memory has grown meanwhile, once there were many.

use runtime::fault_meter::{FAULT, Faults};

use crate::burst::Burst;
use crate::fault_wait::wait_cost;
use crate::handoff::HandoffBatch;
use crate::pipeline::FramePipeline;

impl FramePipeline {
    /// Samples the number of page faults.
    pub(crate) fn sample_faults(&mut self) {
        let unmeasured = self.faults.sample(self.clock.now);
        if unmeasured > 0 {
            self.slots.iter().for_each(|slot| slot.on.pair.settle_faults(unmeasured));
        }
    }

    /// Begins to measure a burst, if bursts are measured.
    #[inline]
    pub(crate) fn begin_measuring(&mut self) {
        if self.faults.is_on() {
            self.faults.begin();
        }
    }

    /// Charges the queue in slot `src` for the faults of fetching the present burst and touching
    /// its frames.
    #[inline]
    pub(crate) fn measure_sender(&mut self, src: usize) {
        if self.faults.is_on() {
            self.charge_sender(src);
        }
    }

    #[cold]
    fn charge_sender(&mut self, src: usize) {
        (0..self.burst.frames().len()).for_each(|i| self.burst.body(i).touch());
        let faults = self.faults.take();
        self.service.cost += faults.cost;
        self.burst.gather.faulted(faults.count);
        let wait = wait_for(&self.burst, faults);
        let Some(slot) = self.slots.get_mut(src) else { return };
        slot.on.counters.page_faults.add(faults.count);
        if wait > 0 {
            slot.charge_fault_wait(wait, self.clock.now);
        }
    }

    /// Adds the faults of putting frames on the ring in slot `dst` to the receiver's debt.
    #[inline]
    pub(crate) fn measure_receiver(&mut self, dst: usize) {
        if self.faults.is_on() {
            self.charge_receiver(dst);
        }
    }

    #[cold]
    fn charge_receiver(&mut self, dst: usize) {
        let faults = self.faults.take();
        let Some(slot) = self.slots.get_mut(dst).filter(|_| faults.count > 0) else { return };
        slot.on.counters.page_faults.add(faults.count);
        let excess = slot.on.pair.excess_faults(faults.count).min(faults.count);
        slot.receiving.debt.add(faults.cost / faults.count * excess, self.clock.now);
    }

    /// Charges the sender of a batch from another worker for the faults of touching its frames.
    /// Called before the batch is delivered.
    #[inline]
    pub(crate) fn measure_batch(&mut self, batch: &mut HandoffBatch) {
        if self.faults.is_on() {
            self.charge_batch(batch);
        }
    }

    #[cold]
    fn charge_batch(&mut self, batch: &mut HandoffBatch) {
        self.faults.begin();
        (batch.next..batch.burst.frames().len()).for_each(|i| batch.burst.body(i).touch());
        let faults = self.faults.take();
        batch.burst.gather.faulted(faults.count);
        batch.added += faults.cost;
        batch.fault_wait += wait_for(&batch.burst, faults);
    }
}

/// The cost for which the sender of a burst must wait after `faults` in its memory.
fn wait_for(burst: &Burst, faults: Faults) -> u64 {
    let delays = (faults.cost / FAULT).saturating_sub(faults.count);
    let gather = &burst.gather;
    let excess = gather.excess_faults(faults.count) + gather.excess_delays(delays);
    wait_cost(faults, FAULT * excess)
}

#[cfg(test)]
mod tests {
    use ring::Memory;
    use runtime::ThreadUsage;

    #[test]
    fn each_page_that_is_touched_first_is_a_fault() {
        const PAGES: usize = 64;
        let memory = Memory::shared(PAGES * 4096).unwrap().0;
        let before = ThreadUsage::now();
        for page in 0..PAGES as u64 {
            memory.write(page * 4096, &[1]).unwrap();
        }
        let faults = (ThreadUsage::now() - before).faults;
        assert!(faults >= PAGES as u64 / 16, "{faults} faults");
    }
}
