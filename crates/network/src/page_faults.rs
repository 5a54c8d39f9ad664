//! Page faults in the memory of ports.
//!
//! A guest's memory is a file of its front-end. Where that punches holes, the next touch makes the
//! kernel find a page and clear it, which takes as long as copying some ten thousand bytes; a
//! front-end can do so for each frame again, and the memory that it uses stays bounded. So faults
//! are charged to the port in whose memory they happen.
//!
//! The kernel counts faults of a thread, and tells by a system call. A worker asks ten times a second,
//! and only when there were many are bursts measured one by one, for a while: first all pages of the sender's frames are touched, and the faults up to then are the
//! sender's cost; those while a receiver's buffers are filled are the receiver's debt
//! ([`receive_debt`](crate::receive_debt)). A guest that has just started touches each page for the
//! first time: so many faults are no debt.

use std::time::{Duration, Instant};

use crate::handoff::HandoffBatch;
use crate::pipeline::FramePipeline;

/// What a fault costs at least: about a microsecond.
pub const FAULT: u64 = 16 * 1024;

/// What a worker does in a nanosecond, in units of cost.
const COST_PER_NS: u64 = 16;

/// More faults than so many from one sample to the next have bursts measured. A worker samples when
/// it rebalances flows, ten times a second.
const FEW: u64 = 1024;

/// For how long they are measured.
const HOLD: Duration = Duration::from_secs(10);

/// Faults, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How many.
    pub count: u64,
    /// What serving took meanwhile, in units of cost; nothing if there were none.
    pub cost: u64,
}

/// Counts a worker's page faults.
#[derive(Debug)]
pub struct FaultMeter {
    count: fn() -> u64,
    /// Bursts are measured.
    on: bool,
    until: Option<Instant>,
    /// How many there had been when last asked.
    sampled: u64,
    /// Where the present section began.
    seen: u64,
    since: Instant,
}

impl FaultMeter {
    /// With what says how many faults the worker has had so far.
    pub fn new(count: fn() -> u64, now: Instant) -> Self {
        FaultMeter { count, on: false, until: None, sampled: 0, seen: 0, since: now }
    }

    /// Whether bursts are measured.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Asks how many faults there were, and decides whether bursts are measured from now on.
    #[cold]
    pub fn sample(&mut self, now: Instant) {
        let count = (self.count)();
        let faults = count.saturating_sub(self.sampled);
        // What the thread did before its first bursts is no port's.
        if faults > FEW && self.sampled > 0 {
            self.until = Some(now + HOLD);
        }
        self.on = self.until.is_some_and(|until| now < until);
        self.sampled = count;
    }

    /// Begins a section.
    #[cold]
    pub fn begin(&mut self) {
        (self.seen, self.since) = ((self.count)(), Instant::now());
    }

    /// Ends a section, and begins the next one.
    #[cold]
    pub fn take(&mut self) -> Faults {
        let (seen, since) = (self.seen, self.since);
        self.begin();
        let count = self.seen.saturating_sub(seen);
        if count == 0 {
            return Faults::default();
        }
        // A fault may have to wait, for whoever changes the file at the time.
        let time = self.since.saturating_duration_since(since).as_nanos() as u64;
        Faults { count, cost: (count * FAULT).max(time.saturating_mul(COST_PER_NS)) }
    }
}

impl FramePipeline {
    /// Begins to measure a burst, if bursts are measured.
    #[inline]
    pub(crate) fn begin_measuring(&mut self) {
        if self.faults.is_on() {
            self.faults.begin();
        }
    }

    /// The present burst was fetched from the queue in slot `src`: charges the faults of that, and
    /// of touching its frames.
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
        if let Some(slot) = self.slots.get(src) {
            slot.on.counters.page_faults.add(faults.count);
        }
    }

    /// Frames were put on the ring in slot `dst`: what faulted is the receiver's debt.
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
        slot.receive_debt.add(faults.cost / faults.count * excess);
    }

    /// A batch of another worker is about to be delivered: its sender is charged for the faults of
    /// touching its frames.
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
        batch.added += self.faults.take().cost;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    thread_local! {
        static FAULTS: Cell<u64> = const { Cell::new(1) };
    }

    fn more(faults: u64) {
        FAULTS.set(FAULTS.get() + faults);
    }

    #[test]
    fn bursts_are_measured_while_there_are_many_faults() {
        let start = Instant::now();
        let mut meter = FaultMeter::new(|| FAULTS.get(), start);
        more(1000);
        meter.sample(start);
        assert!(!meter.is_on(), "what was before the first burst does not count");
        more(FEW);
        meter.sample(start + INTERVAL);
        assert!(!meter.is_on());
        more(FEW + 1);
        let many = start + 2 * INTERVAL;
        meter.sample(many);
        assert!(meter.is_on());
        meter.sample(many + HOLD / 2);
        assert!(meter.is_on());
        meter.sample(many + HOLD);
        assert!(!meter.is_on());
    }

    #[test]
    fn faults_belong_to_the_section_that_they_happen_in() {
        let mut meter = FaultMeter::new(|| FAULTS.get(), Instant::now());
        more(7);
        meter.begin();
        assert_eq!(meter.take(), Faults::default());
        more(3);
        let Faults { count, cost } = meter.take();
        assert_eq!(count, 3);
        assert!(cost >= 3 * FAULT);
        assert_eq!(meter.take(), Faults::default());
    }
}
