//! Page faults in the memory of guests with disks.
//!
//! A hostile front-end can free pages of its guest's memory before each request, or name new ones,
//! in the descriptor table, the header, the data and the status byte. Each page is then a fault of
//! the worker, or of the kernel on the worker's behalf, and takes as long as copying some ten
//! thousand bytes. While there are many faults ([`fault_meter`](runtime::fault_meter)), faults of a
//! burst are charged to the burst, and faults of a completion to the queue's next burst.
//!
//! Each fault may also have allocated a page that is charged to this process. Disks have accounts
//! for that ([`ring::MemoryAccount`]). Faults that were not measured are charged to all disks whose
//! memory has grown meanwhile, once there were many.

use crate::pipeline::BlockPipeline;
use crate::request::Finished;

impl BlockPipeline {
    /// Samples the number of page faults.
    #[cold]
    pub(crate) fn sample_faults(&mut self) {
        let unmeasured = self.faults.sample(self.now);
        if unmeasured > 0 {
            self.slots.iter().for_each(|(_, slot)| slot.on.queue.note_faults(unmeasured));
        }
    }

    /// Begins to measure work for one queue, if bursts are measured.
    #[inline]
    pub(crate) fn begin_measuring(&mut self) {
        if self.faults.is_on() {
            self.faults.begin();
        }
    }

    /// Ends a measurement of work for the queue in slot `at`. Returns the cost of its page faults.
    #[inline]
    pub(crate) fn measured(&mut self, at: usize) -> u64 {
        if self.faults.is_on() { self.count_faults(at) } else { 0 }
    }

    /// Continues a request whose step is done. Its page faults are charged to the next burst.
    #[inline]
    pub(crate) fn finish_measured(&mut self, finished: Finished) {
        let at = finished.0.slot;
        self.begin_measuring();
        self.finish(finished);
        let cost = self.measured(at);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.debt = slot.debt.saturating_add(cost);
        }
    }

    #[cold]
    fn count_faults(&mut self, at: usize) -> u64 {
        let faults = self.faults.take();
        if let Some(slot) = self.slots.get(at).filter(|_| faults.count > 0) {
            slot.on.counters.page_faults.add(faults.count);
            slot.on.queue.note_faults(faults.count);
        }
        faults.cost
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use runtime::fault_meter::FAULT;
    use runtime::{Pipeline, ThreadUsage};

    use super::*;
    use crate::engine::ThreadEngine;
    use crate::idle_queue::{Idle, attachment};
    use crate::image::ImageOptions;
    use crate::pipeline::QUANTUM;
    use crate::{Disk, Image};

    thread_local! {
        static USAGE: Cell<ThreadUsage> =
            const { Cell::new(ThreadUsage { faults: 1, sleeps: 0, preemptions: 0 }) };
    }

    fn more(faults: u64) {
        let usage = USAGE.get();
        USAGE.set(ThreadUsage { faults: usage.faults + faults, ..usage });
    }

    #[test]
    fn page_faults_are_charged_to_the_disk_that_causes_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let options = ImageOptions::new(file.path().to_owned());
        let disk = Arc::new(Disk::new(Arc::new(Image::open(&options).unwrap()), "x"));
        let engine = Box::new(ThreadEngine::new().unwrap());
        let mut pipeline = BlockPipeline::new(engine, || USAGE.get());
        let slots = [(); 2].map(|()| {
            let queue = Idle { on_take: Some(|| more(7)), ..Idle::default() };
            let noted = Arc::clone(&queue.noted);
            let queue = attachment(queue, Arc::clone(&disk));
            (pipeline.attach(Box::new(queue)).slot, noted)
        });
        let noted = |n: usize| slots[n].1.load(Ordering::Relaxed);
        let start = Instant::now();
        pipeline.tick(start);
        pipeline.end();
        assert_eq!(pipeline.serve(slots[0].0, QUANTUM).cost, 0, "there were few");
        more(1 << 20);
        pipeline.tick(start + Duration::from_secs(1));
        pipeline.end();
        let unmeasured = (1 << 20) + 7;
        assert_eq!([noted(0), noted(1)], [unmeasured; 2]);
        assert!(pipeline.serve(slots[0].0, QUANTUM).cost >= 7 * FAULT);
        assert_eq!([noted(0), noted(1)], [unmeasured + 7, unmeasured]);
        let faults = |n: usize| pipeline.slots[slots[n].0].on.counters.page_faults.get();
        assert_eq!([faults(0), faults(1)], [7, 0]);
    }
}
