//! A worker's page faults: how many, and what they cost.
//!
//! A front-end that punches holes into the memory of its guest makes the next touch of each page a
//! fault. Pipelines charge faults to the port or disk in whose memory they happen. Reading the
//! kernel's count is a system call, so bursts are measured only while there are many faults. A
//! worker samples the count ten times a second. After a sample that found many, the worker is alert
//! for a while: it samples each millisecond, and bursts are measured from a millisecond with many
//! faults until some time after the last one. So a guest that starts is measured for little longer
//! than it takes to touch each of its pages for the first time. A peer that pauses to end the
//! measuring gains a millisecond.
//!
//! A few faults matter, too, if they take long: bursts are measured after a pass of a millisecond
//! whose faults took long on average, and after a measured fault that took long. Passes of a guest
//! that starts on a busy host may take as long. So the measuring time after such a pass is short at
//! first. It doubles each time that another one follows soon after its end, up to the time for
//! which a worker is alert. A measured fault that took long only adds the short time: where the
//! host itself is slow, some faults always take long.
//!
//! A worker that loses its processor to another thread needs as long for a burst as one that waits
//! for a page. The kernel counts the two apart ([`ThreadUsage`]), and only the second is charged,
//! or makes a pass long. The worker's own sleeps make no pass long either, and are subtracted from
//! the kernel's count. Otherwise each sleep of an idle worker, together with any fault, would start
//! a measurement, which costs three system calls for each burst.

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

/// How long bursts are measured after a sample that found many faults, after a measured fault that
/// took long, and at first after a long pass.
const MEASURED_TIME: Duration = Duration::from_millis(20);

/// A call for a sleep that takes less has not slept.
const SLEPT: Duration = Duration::from_micros(5);

/// Time from one pass to the next in which a fault may have had to wait.
const LONG_PASS: Duration = Duration::from_millis(1);

/// Cost of a fault beyond which it has waited: about 8 us. Finding and clearing a page takes 1 or 2
/// us.
pub const SLOW_FAULT: u64 = 8 * FAULT;

/// Time after a long pass after which the next one counts as the first one again.
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
    /// When a measured fault last took long.
    slow: Option<Instant>,
    /// When faults were last found that may have taken long: in a long pass.
    long: Option<Instant>,
    /// How long bursts are measured after that.
    slow_time: Duration,
    /// How long the pass before this one took, if it was long.
    long_pass: Option<Duration>,
    /// When the worker began to sleep, since the last tick.
    slept: Option<Instant>,
    /// How often the worker has slept since the last sample.
    own_sleeps: u64,
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
            long: None,
            slow_time: MEASURED_TIME,
            long_pass: None,
            slept: None,
            own_sleeps: 0,
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
        let passed = now.saturating_duration_since(last);
        if let Some(slept) = self.slept.take() {
            self.own_sleeps += u64::from(now.saturating_duration_since(slept) >= SLEPT);
        } else if passed >= LONG_PASS {
            (self.long_pass, self.due) = (Some(passed), now);
        }
    }

    /// Notes that the worker is about to sleep after a pass, which began at `last` and ended at
    /// `now`.
    #[inline]
    pub fn sleeps(&mut self, last: Instant, now: Instant) {
        self.tick(last, now);
        self.slept = Some(now);
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
        // Sleeps that are not the worker's own are waits for pages.
        let sleeps = used.sleeps.saturating_sub(std::mem::take(&mut self.own_sleeps));
        let waited = ThreadUsage { sleeps, ..used }.waited();
        // As many faults as a guest's start causes may fill a pass without a wait.
        let explained = Duration::from_nanos(faults.saturating_mul(SLOW_FAULT) / COST_PER_NS);
        let was_slow = self.long_pass.take().is_some_and(|passed| passed >= explained);
        if was_slow && faults > 0 && waited {
            self.found_long(now);
        }
        let within = |since: Option<Instant>, time| since.is_some_and(|since| now < since + time);
        let are_slow = within(self.slow, MEASURED_TIME) || within(self.long, self.slow_time);
        self.on = within(self.many, MEASURED_TIME) || are_slow;
        self.due = now + if within(self.many, ALERT) { ALERT_INTERVAL } else { CALM_INTERVAL };
        self.sampled = (usage, now);
        if self.on { std::mem::take(&mut self.unmeasured) } else { 0 }
    }

    /// A pass with faults was long.
    fn found_long(&mut self, now: Instant) {
        let since = self.long.replace(now).map(|last| now.saturating_duration_since(last));
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
mod tests;
