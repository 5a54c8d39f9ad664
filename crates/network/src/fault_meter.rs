//! A worker's page faults: how many, and what they cost.
//!
//! Reading the kernel's count is a system call, so bursts are measured only for a while after a
//! sample that found many: see [`page_faults`](crate::page_faults).

use std::time::{Duration, Instant};

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
