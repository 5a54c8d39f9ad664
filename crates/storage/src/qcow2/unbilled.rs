//! Processor time of the thread of an image.
//!
//! A guest determines how much work its image's thread has: a read of a sector may require
//! decompressing a cluster. The thread runs beside the workers, so its time is charged to the
//! requests that cause it, and their queues pay for it from their share of a worker.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::job::Job;

/// Processor time of the calling thread so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The part of the calling thread's processor time that no job was charged for.
pub(super) struct Unbilled {
    billed: Duration,
}

impl Unbilled {
    /// A meter that begins now.
    pub fn new() -> Unbilled {
        Unbilled { billed: processor_time() }
    }

    /// Charges a job for all unbilled time.
    pub fn bill(&mut self, mut job: Box<dyn Job>) -> Box<dyn Job> {
        let now = processor_time();
        let spent = now.saturating_sub(self.billed);
        self.billed = now;
        job.charge(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX));
        job
    }
}
