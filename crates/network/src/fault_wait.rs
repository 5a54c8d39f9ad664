//! Senders that wait for the time that page faults in their memory took.
//!
//! A page fault may make a worker wait in the kernel: for a page, or for a process that changes the
//! file at the time. No other port is served meanwhile, and a smaller share of later rounds does
//! not give that time back to frames that were due. A hostile front-end can cause such a wait for
//! each frame, by punching holes into the memory that its guest sends from.
//!
//! So the port waits after the faults of a burst, for a multiple of the time that the faults took:
//! [`EXPECTED`] times for memory that is used for the first time, [`EXCESS`] times for further
//! faults ([`ring::Memory::excess_faults`]), and [`SLOW`] times for the part of those that took
//! longer than faults need. Bursts of the queue then begin with one frame, so that few frames can
//! fault in one burst.
//!
//! A kernel that balances memory between NUMA nodes causes a steady stream of short faults: an
//! honest guest may have tens of thousands in a second.
//!
//! A wait is the port's: a queue that goes and comes waits on, and more queues gain nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use runtime::fault_meter::{Faults, SLOW_FAULT};
use runtime::pipeline::COST_PER_NS;

/// Faults of memory that is used for the first time may take a quarter of the time. A guest that
/// starts loses little by that, and how much memory a sparse file will ever have cannot be known.
const EXPECTED: u64 = 3;

/// Other faults may take an eleventh of the time.
const EXCESS: u64 = 10;

/// Other faults that had to wait may take a hundredth of the time.
const SLOW: u64 = 100;

/// The longest wait. A fault may also be slow because of the host, so the guest must not be cut off
/// for it.
const LONGEST: Duration = Duration::from_secs(1);

/// Until when no queue of a port is fetched from.
#[derive(Debug)]
pub struct FaultWait {
    /// In nanoseconds since `start`; 0: not at all.
    until: AtomicU64,
    start: Instant,
}

impl Default for FaultWait {
    fn default() -> Self {
        FaultWait { until: AtomicU64::new(0), start: Instant::now() }
    }
}

impl FaultWait {
    /// Whether there may be a wait.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) > 0
    }

    /// Extends the wait by the time of this [cost](wait_cost).
    pub fn charge(&self, cost: u64, now: Instant) {
        let wait = cost / COST_PER_NS;
        let now = self.since_start(now);
        let longer = |until: u64| {
            let until = until.max(now).saturating_add(wait);
            Some(until.min(now.saturating_add(LONGEST.as_nanos() as u64)))
        };
        let _ = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
    }

    /// Until when the port waits; `None`: it does not.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        let until = self.until.load(Ordering::Relaxed);
        if until > self.since_start(now) {
            return Some(self.start + Duration::from_nanos(until));
        }
        // Another worker may have made a new wait meanwhile.
        let _ = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        None
    }

    fn since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

/// The cost for which the port must wait after `faults`. `excess` is the part of their cost that
/// first use of memory does not explain.
pub fn wait_cost(faults: Faults, excess: u64) -> u64 {
    let slow = faults.cost.saturating_sub(faults.count.saturating_mul(SLOW_FAULT)).min(excess);
    let parts =
        [(faults.cost.saturating_sub(excess), EXPECTED), (excess - slow, EXCESS), (slow, SLOW)];
    parts.iter().fold(0, |sum: u64, (cost, times)| sum.saturating_add(cost.saturating_mul(*times)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// So many faults that took so long.
    fn faults(count: u64, time: Duration) -> Faults {
        Faults { count, cost: time.as_nanos() as u64 * COST_PER_NS }
    }

    #[test]
    fn slow_faults_without_need_take_a_hundredth_of_the_time() {
        let (wait, now) = (FaultWait::default(), Instant::now());
        assert!(!wait.is_on() && wait.until(now).is_none());
        let mut time = now;
        for _ in 0..100 {
            let slow = faults(0, 10 * US);
            wait.charge(wait_cost(slow, slow.cost), time);
            assert!(wait.is_on());
            assert_eq!(wait.until(time + 999 * US), Some(time + 1000 * US));
            time += 1000 * US;
            assert_eq!(wait.until(time), None);
            assert!(!wait.is_on());
        }
    }

    #[test]
    fn faults_of_a_start_take_a_quarter_of_the_time() {
        let (wait, now) = (FaultWait::default(), Instant::now());
        wait.charge(wait_cost(faults(1, 10 * US), 0), now);
        assert_eq!(wait.until(now), Some(now + 30 * US));
    }

    #[test]
    fn short_faults_are_waited_for_ten_times_as_long() {
        let short = faults(10, 20 * US);
        assert_eq!(wait_cost(short, short.cost), 10 * short.cost);
        // Half of it is explained.
        assert_eq!(wait_cost(short, short.cost / 2), 13 * short.cost / 2);
        let slow = faults(1, 108 * US);
        let (needed, rest) = (SLOW_FAULT, slow.cost - SLOW_FAULT);
        assert_eq!(wait_cost(slow, slow.cost), 10 * needed + 100 * rest);
    }

    #[test]
    fn faults_of_several_queues_add_up_to_the_longest_wait() {
        let (wait, now) = (FaultWait::default(), Instant::now());
        (0..3).for_each(|_| wait.charge(1_000_000 * COST_PER_NS, now));
        assert_eq!(wait.until(now), Some(now + 3000 * US));
        wait.charge(u64::MAX, now);
        assert_eq!(wait.until(now), Some(now + LONGEST));
    }
}
