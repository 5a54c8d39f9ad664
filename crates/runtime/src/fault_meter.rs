//! A worker's page faults: how many, and what they cost.
//!
//! A front-end that punches holes into the memory of its guest makes the next touch of each page a
//! fault. Pipelines charge faults to the port or disk in whose memory they happen. Reading the
//! kernel's count is a system call, so bursts are measured only while there are many faults. A
//! worker samples the count ten times a second. After a sample that found many, the worker is alert
//! for a while: it samples each millisecond, and bursts are measured from a millisecond with many
//! faults until some time after the last one. So a guest that starts is measured for little longer
//! than it takes to touch each of its pages for the first time. A peer that pauses to end the
//! measuring gains a millisecond. A few faults matter, too, if they take long: bursts are measured
//! after a pass of a millisecond with faults, and after a measured fault that took long. Passes of
//! a guest that starts on a busy host are long, too. So this measuring time is short at first. It
//! doubles each time that such a pass follows soon after its end, up to the time for which a worker
//! is alert.
//!
//! A worker that loses its processor to another thread needs as long for a burst as one that waits
//! for a page. The kernel counts the two apart ([`ThreadUsage`]), and only the second is charged, or
//! makes a pass long. The worker's own sleeps make no pass long either. Otherwise each sleep of an
//! idle worker, together with any fault, would start a measurement, which costs three system calls
//! for each burst.

use std::time::{Duration, Instant};

use crate::pipeline::COST_PER_NS;
use crate::thread_usage::ThreadUsage;

/// The least cost of a page fault: about a microsecond.
pub const FAULT: u64 = 16 * 1024;

/// Time between two samples while few faults are expected.
const CALM_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two samples of an alert worker.
const ALERT_INTERVAL: Duration = Duration::from_millis(1);

/// Faults per millisecond above which faults count as many.
const FEW_PER_MS: u64 = 10;

/// The same rate while bursts are measured.
const FEW_PER_MS_MEASURED: u64 = 2;

/// The number of faults in unmeasured bursts that counts as many, however slowly they came. Those
/// faults cannot be attributed to a peer, so they have to be bounded.
const UNMEASURED: u64 = 4096;

/// How long a worker is alert after a sample that found many faults.
const ALERT: Duration = Duration::from_secs(10);

/// How long bursts are measured after a sample that found many faults, and at first after a fault
/// that took long.
const MEASURED_TIME: Duration = Duration::from_millis(20);

/// Time from one pass to the next in which a fault may have had to wait.
const LONG_PASS: Duration = Duration::from_millis(1);

/// Cost of a fault beyond which it has waited: about 8 us. Finding and clearing a page takes 1 or 2
/// us.
pub const SLOW_FAULT: u64 = 8 * FAULT;

/// Time after a slow fault after which the next slow fault counts as the first one again.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Faults, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How many.
    pub count: u64,
    /// Cost of the section in which they happened; 0 if there were no faults.
    pub cost: u64,
}

/// Counts a worker's page faults.
#[derive(Debug)]
pub struct FaultMeter {
    usage: fn() -> ThreadUsage,
    /// Bursts are measured.
    on: bool,
    /// When the last sample that found many was taken.
    many: Option<Instant>,
    /// When faults were last found that took long, or may have: after a long pass.
    slow: Option<Instant>,
    /// How long bursts are measured after that.
    slow_time: Duration,
    /// The pass before this one was long.
    is_long: bool,
    /// The worker has slept since the last tick.
    slept: bool,
    /// The worker has slept since the last sample.
    slept_since_sample: bool,
    /// The thread's usage at the last sample, and the time of that sample.
    sampled: (ThreadUsage, Instant),
    /// When the next sample is due.
    due: Instant,
    /// Faults in unmeasured bursts since bursts were last measured.
    unmeasured: u64,
    /// The thread's usage at the start of the present section.
    seen: ThreadUsage,
    since: Instant,
}

impl FaultMeter {
    /// A meter that reads the worker's faults so far from `usage`.
    pub fn new(usage: fn() -> ThreadUsage, now: Instant) -> Self {
        let sampled = (ThreadUsage::default(), now);
        FaultMeter {
            usage,
            on: false,
            many: None,
            slow: None,
            slow_time: MEASURED_TIME,
            is_long: false,
            slept: false,
            slept_since_sample: false,
            sampled,
            due: now,
            unmeasured: 0,
            seen: ThreadUsage::default(),
            since: now,
        }
    }

    /// Whether bursts are measured.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Notes that a pass that began at `last` has ended, perhaps with a [sleep](Self::sleeps) after
    /// it.
    #[inline]
    pub fn tick(&mut self, last: Instant, now: Instant) {
        let slept = std::mem::take(&mut self.slept);
        if !slept && now.saturating_duration_since(last) >= LONG_PASS {
            (self.is_long, self.due) = (true, now);
        }
    }

    /// Notes that the worker is about to sleep after a pass, which began at `last` and ended at
    /// `now`.
    #[inline]
    pub fn sleeps(&mut self, last: Instant, now: Instant) {
        self.tick(last, now);
        (self.slept, self.slept_since_sample) = (true, true);
    }

    /// Whether a sample is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Reads the number of faults, and decides whether bursts are measured from now on. When
    /// measuring begins, returns the number of faults in unmeasured bursts; otherwise zero.
    #[cold]
    pub fn sample(&mut self, now: Instant) -> u64 {
        let (usage, (before, last)) = ((self.usage)(), self.sampled);
        let used = usage - before;
        let ms = now.saturating_duration_since(last).as_millis().clamp(1, 100) as u64;
        // Faults before the thread's first bursts belong to no port.
        let faults = if before.faults > 0 { used.faults } else { 0 };
        let few = if self.on { FEW_PER_MS_MEASURED } else { FEW_PER_MS };
        if !self.on {
            self.unmeasured += faults;
        }
        if faults > ms * few || self.unmeasured >= UNMEASURED {
            self.many = Some(now);
        }
        // Sleeps that are not the worker's own are waits for pages. After one of its own, they
        // cannot be told apart.
        let own_sleeps = std::mem::take(&mut self.slept_since_sample);
        let may_have_waited = used.waited() || own_sleeps;
        if std::mem::take(&mut self.is_long) && faults > 0 && may_have_waited {
            self.found_slow(now);
        }
        let within = |since: Option<Instant>, time| since.is_some_and(|since| now < since + time);
        self.on = within(self.many, MEASURED_TIME) || within(self.slow, self.slow_time);
        self.due = now + if within(self.many, ALERT) { ALERT_INTERVAL } else { CALM_INTERVAL };
        self.sampled = (usage, now);
        if self.on { std::mem::take(&mut self.unmeasured) } else { 0 }
    }

    /// A pass with faults was long.
    fn found_slow(&mut self, now: Instant) {
        let since = self.slow.replace(now).map(|last| now.saturating_duration_since(last));
        self.slow_time = match since {
            Some(since) if since < self.slow_time => self.slow_time,
            Some(since) if since < FORGOTTEN => (2 * self.slow_time).min(ALERT),
            _ => MEASURED_TIME,
        };
    }

    /// Begins a section.
    #[cold]
    pub fn begin(&mut self) {
        (self.seen, self.since) = ((self.usage)(), Instant::now());
    }

    /// Ends a section, and begins the next one.
    #[cold]
    pub fn take(&mut self) -> Faults {
        let (seen, since) = (self.seen, self.since);
        self.begin();
        let used = self.seen - seen;
        let count = used.faults;
        if count == 0 {
            return Faults::default();
        }
        let most = if used.waited() { u64::MAX } else { count * SLOW_FAULT };
        let time = self.since.saturating_duration_since(since).as_nanos() as u64;
        let cost = (count * FAULT).max(time.saturating_mul(COST_PER_NS)).min(most);
        if cost > count * SLOW_FAULT {
            self.slow = Some(self.since);
        }
        Faults { count, cost }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    thread_local! {
        static USAGE: Cell<ThreadUsage> =
            const { Cell::new(ThreadUsage { faults: 1, sleeps: 0, preemptions: 0 }) };
    }

    fn more(faults: u64) {
        let usage = USAGE.get();
        USAGE.set(ThreadUsage { faults: usage.faults + faults, ..usage });
    }

    /// Sets how often the thread has slept, and lost its CPU.
    fn switched(sleeps: u64, preemptions: u64) {
        let usage = USAGE.get();
        let (sleeps, preemptions) = (usage.sleeps + sleeps, usage.preemptions + preemptions);
        USAGE.set(ThreadUsage { sleeps, preemptions, ..usage });
    }

    /// A meter whose worker has taken its first sample, and the time of that.
    fn calm() -> (FaultMeter, Instant) {
        let start = Instant::now();
        let mut meter = FaultMeter::new(|| USAGE.get(), start);
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
    fn a_fault_in_a_long_pass_is_enough() {
        let (mut meter, start) = calm();
        let pass = |meter: &mut FaultMeter, faults, from, to| {
            more(faults);
            meter.tick(from, to);
            let due = meter.is_due(to);
            if due {
                meter.sample(to);
            }
            (due, meter.is_on())
        };
        assert_eq!(pass(&mut meter, 1, start, start + MS / 2), (false, false));
        assert_eq!(pass(&mut meter, 0, start + MS / 2, start + 2 * MS), (true, true));
        // A sample has seen that fault.
        let later = start + 2 * MS + MEASURED_TIME;
        assert_eq!(pass(&mut meter, 0, start + 2 * MS, later), (true, false));
        assert_eq!(pass(&mut meter, 0, later, later + 2 * MS), (true, false));
        assert_eq!(pass(&mut meter, 1, later + 2 * MS, later + 40 * MS), (true, true));
    }

    #[test]
    fn sleeps_and_preemptions_make_no_pass_long() {
        let (mut meter, start) = calm();
        // Sleeps, with a fault before each.
        for n in 0..3u32 {
            let begin = start + n * 5 * MS;
            more(1);
            switched(1, 0);
            meter.sleeps(begin, begin + MS / 2);
            meter.tick(begin, begin + 5 * MS);
            assert!(!meter.is_due(begin + 5 * MS));
        }
        meter.sample(start + 100 * MS);
        assert!(!meter.is_on());
        // A pass in which another thread had the processor.
        let mut pass = |begin, sleeps, preemptions| {
            more(1);
            switched(sleeps, preemptions);
            meter.tick(begin, begin + 2 * MS);
            assert!(meter.is_due(begin + 2 * MS));
            meter.sample(begin + 2 * MS);
            meter.is_on()
        };
        assert!(!pass(start + 100 * MS, 0, 1));
        assert!(pass(start + 200 * MS, 1, 1));
    }

    #[test]
    fn a_pass_that_is_long_before_a_sleep_counts() {
        let (mut meter, start) = calm();
        more(1);
        meter.sleeps(start, start + 2 * MS);
        meter.tick(start, start + 50 * MS);
        assert!(meter.is_due(start + 50 * MS));
        meter.sample(start + 50 * MS);
        assert!(meter.is_on());
    }

    #[test]
    fn faults_that_take_long_again_and_again_are_measured_for_longer_each_time() {
        let (mut meter, mut now) = calm();
        let mut slow_fault = |after: Duration| {
            let next = now + after + MS;
            more(1);
            meter.tick(now + after, next);
            meter.sample(next);
            now = next;
            assert!(meter.is_on());
            meter.slow_time
        };
        assert_eq!(slow_fault(MS), MEASURED_TIME);
        // While bursts are measured, faults do not escape.
        assert_eq!(slow_fault(MS), MEASURED_TIME);
        for doubled in 1..9 {
            let time = MEASURED_TIME * (1 << doubled);
            assert_eq!(slow_fault(time / 2), time);
        }
        assert_eq!(slow_fault(ALERT), ALERT);
        assert_eq!(slow_fault(ALERT), ALERT);
        assert_eq!(slow_fault(FORGOTTEN), MEASURED_TIME);
    }

    #[test]
    fn a_measured_fault_that_takes_long_lengthens_the_time() {
        let (mut meter, start) = calm();
        meter.begin();
        more(1);
        let long = Duration::from_nanos(SLOW_FAULT / COST_PER_NS + 1);
        meter.since -= long;
        assert!(meter.take().cost > SLOW_FAULT);
        let found = meter.slow.expect("the fault took long");
        meter.sample(start.max(found) + MEASURED_TIME / 2);
        assert!(meter.is_on());
    }

    #[test]
    fn time_without_a_cpu_is_no_cost_of_a_fault() {
        let (mut meter, _) = calm();
        let long = Duration::from_nanos(SLOW_FAULT / COST_PER_NS + 1);
        let mut cost = |sleeps, preemptions| {
            meter.begin();
            more(1);
            switched(sleeps, preemptions);
            meter.since -= long;
            let cost = meter.take().cost;
            (cost, meter.slow.take().is_some())
        };
        assert_eq!(cost(0, 1), (SLOW_FAULT, false));
        for (sleeps, preemptions) in [(0, 0), (1, 0), (1, 1)] {
            let (cost, slow) = cost(sleeps, preemptions);
            assert!(cost > SLOW_FAULT && slow, "{sleeps} sleeps, {preemptions} preemptions");
        }
    }

    #[test]
    fn faults_belong_to_the_section_that_they_happen_in() {
        let mut meter = FaultMeter::new(|| USAGE.get(), Instant::now());
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
