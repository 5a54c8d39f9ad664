//! A worker's page faults: how many, and what they cost.
//!
//! A front-end that punches holes into the memory of its guest makes each next touch of a page a
//! fault. Pipelines charge faults to the port or disk in whose memory they happen. Reading the
//! kernel's count is a system call, so bursts are measured only while there are many faults. A
//! worker samples the count ten times a second. After a sample that found many, the worker is alert
//! for a while: it samples each millisecond, and bursts are measured from a millisecond with many faults until some time after the last one.
//! So a guest that starts, and touches each of its pages for the first time, is measured for
//! little longer than that takes, and a peer that pauses to end the measuring gains a millisecond.

use std::time::{Duration, Instant};

use crate::pipeline::COST_PER_NS;

/// The least cost of a page fault: about a microsecond.
pub const FAULT: u64 = 16 * 1024;

/// Time between two samples while few faults are expected.
const CALM_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two samples of an alert worker.
const ALERT_INTERVAL: Duration = Duration::from_millis(1);

/// A rate of faults in a millisecond above which faults count as many.
const FEW_PER_MS: u64 = 10;

/// The same rate while bursts are measured.
const FEW_PER_MS_MEASURED: u64 = 2;

/// A number of faults in unmeasured bursts that counts as many, however slowly they came: it is not
/// known in whose memory they happened.
const UNMEASURED: u64 = 4096;

/// How long a worker is alert after a sample that found many faults.
const ALERT: Duration = Duration::from_secs(10);

/// How long bursts are measured after a sample that found many faults.
const MEASURED_TIME: Duration = Duration::from_millis(20);

/// Faults, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How many.
    pub count: u64,
    /// Cost of serving meanwhile; 0 if there were no faults.
    pub cost: u64,
}

/// Counts a worker's page faults.
#[derive(Debug)]
pub struct FaultMeter {
    count: fn() -> u64,
    /// Bursts are measured.
    on: bool,
    /// When the last sample that found many was taken.
    many: Option<Instant>,
    /// How many there had been at the last sample, and when that was.
    sampled: (u64, Instant),
    /// When the next sample is due.
    due: Instant,
    /// Faults in bursts that were not measured, since some last were.
    unmeasured: u64,
    /// Where the present section began.
    seen: u64,
    since: Instant,
}

impl FaultMeter {
    /// With what says how many faults the worker has had so far.
    pub fn new(count: fn() -> u64, now: Instant) -> Self {
        let sampled = (0, now);
        FaultMeter {
            count,
            on: false,
            many: None,
            sampled,
            due: now,
            unmeasured: 0,
            seen: 0,
            since: now,
        }
    }

    /// Whether bursts are measured.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a sample is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Asks how many faults there were, and decides whether bursts are measured from now on. When
    /// that begins, returns how many faults there were in bursts that were not measured; otherwise
    /// nothing.
    #[cold]
    pub fn sample(&mut self, now: Instant) -> u64 {
        let (count, (before, last)) = ((self.count)(), self.sampled);
        let ms = now.saturating_duration_since(last).as_millis().clamp(1, 100) as u64;
        // What the thread did before its first bursts is no port's.
        let faults = if before > 0 { count.saturating_sub(before) } else { 0 };
        let few = if self.on { FEW_PER_MS_MEASURED } else { FEW_PER_MS };
        if !self.on {
            self.unmeasured += faults;
        }
        if faults > ms * few || self.unmeasured >= UNMEASURED {
            self.many = Some(now);
        }
        let within = |time| self.many.is_some_and(|many| now < many + time);
        self.on = within(MEASURED_TIME);
        self.due = now + if within(ALERT) { ALERT_INTERVAL } else { CALM_INTERVAL };
        self.sampled = (count, now);
        if self.on { std::mem::take(&mut self.unmeasured) } else { 0 }
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

    const MS: Duration = Duration::from_millis(1);

    thread_local! {
        static FAULTS: Cell<u64> = const { Cell::new(1) };
    }

    fn more(faults: u64) {
        FAULTS.set(FAULTS.get() + faults);
    }

    /// A meter whose worker has taken its first sample, and the time of that.
    fn calm() -> (FaultMeter, Instant) {
        let start = Instant::now();
        let mut meter = FaultMeter::new(|| FAULTS.get(), start);
        more(1_000_000);
        meter.sample(start);
        assert!(!meter.is_on(), "what was before the first burst does not count");
        (meter, start)
    }

    #[test]
    fn bursts_are_measured_while_there_are_many_faults() {
        let (mut meter, start) = calm();
        more(100 * FEW_PER_MS);
        assert!(!meter.is_due(start + 99 * MS));
        let calm = start + 100 * MS;
        assert!(meter.is_due(calm));
        meter.sample(calm);
        assert!(!meter.is_on());
        more(100 * FEW_PER_MS + 1);
        let many = calm + 100 * MS;
        meter.sample(many);
        assert!(meter.is_on());
        assert!(meter.is_due(many + MS));
        more(FEW_PER_MS);
        meter.sample(many + MEASURED_TIME - MS);
        assert!(meter.is_on());
        meter.sample(many + MEASURED_TIME);
        assert!(!meter.is_on());
    }

    #[test]
    fn an_alert_worker_finds_many_faults_within_a_millisecond() {
        let (mut meter, start) = calm();
        more(2000);
        let many = start + 100 * MS;
        meter.sample(many);
        meter.sample(many + MEASURED_TIME);
        assert!(!meter.is_on());
        more(FEW_PER_MS + 1);
        let again = many + MEASURED_TIME + MS;
        assert!(meter.is_due(again));
        meter.sample(again);
        assert!(meter.is_on());
        let last = again + ALERT;
        meter.sample(last);
        assert!(!meter.is_due(last + MS), "alert for too long");
    }

    #[test]
    fn faults_during_a_long_sleep_count_as_those_of_a_tenth_of_a_second() {
        let (mut meter, start) = calm();
        more(101 * FEW_PER_MS);
        meter.sample(start + 3600 * 1000 * MS);
        assert!(meter.is_on());
    }

    #[test]
    fn few_faults_are_measured_once_they_add_up_and_as_long_as_they_go_on() {
        let (mut meter, start) = calm();
        let mut now = start;
        let mut step = |faults, time| {
            more(faults);
            now += time;
            (meter.sample(now), meter.is_on())
        };
        let each = UNMEASURED / 8;
        (1..8).for_each(|_| assert_eq!(step(each, 100 * MS), (0, false)));
        assert_eq!(step(each, 100 * MS), (UNMEASURED, true));
        (0..100).for_each(|_| assert_eq!(step(FEW_PER_MS_MEASURED + 1, MS), (0, true)));
        let hold = MEASURED_TIME.as_millis();
        (1..hold).for_each(|_| assert_eq!(step(FEW_PER_MS_MEASURED, MS), (0, true)));
        assert_eq!(step(FEW_PER_MS_MEASURED, MS), (0, false));
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
