//! Cheap time stamps for profiling.
//!
//! Ticks are not a clock: their length is not known beforehand, and two CPUs may differ by some
//! ticks. A comparison with a clock over a while ([`Ratio`]) converts them to nanoseconds.

use std::time::{Duration, Instant};

/// Ticks that have passed since some moment.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86-64 has this instruction, and Linux lets programs use it unless they ask it
    // not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Ticks that have passed since some moment.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn now() -> u64 {
    // Without a system call wherever the kernel offers that.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// How long a tick is.
#[derive(Clone, Copy, Debug)]
pub struct Ratio(f64);

impl Ratio {
    /// The shortest time over which the ratio is exact enough.
    const LEAST: Duration = Duration::from_millis(20);

    /// The ratio since a moment of the past, given in ticks and by the clock. Waits for a little
    /// while if that moment is too recent.
    pub fn since((ticks, at): (u64, Instant)) -> Ratio {
        std::thread::sleep(Self::LEAST.saturating_sub(at.elapsed()));
        let passed = now().saturating_sub(ticks).max(1);
        Ratio(at.elapsed().as_nanos() as f64 / passed as f64)
    }

    /// Converts ticks to nanoseconds.
    pub fn nanoseconds(self, ticks: u64) -> u64 {
        (ticks as f64 * self.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        let ratio = Ratio::since((now(), Instant::now()));
        let (ticks, at) = (now(), Instant::now());
        std::thread::sleep(Duration::from_millis(30));
        let (passed, least) =
            (ratio.nanoseconds(now() - ticks), Duration::from_millis(25).as_nanos() as u64);
        let most = 2 * at.elapsed().as_nanos() as u64;
        assert!((least..most).contains(&passed), "{passed}");
    }
}
