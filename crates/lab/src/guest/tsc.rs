//! The rate of the time stamp counter that guests see under emulation: this machine's own.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ring::ticks;

/// Time between two readings. They are right to a microsecond, so the rate is to 20 ppm.
const APART: Duration = Duration::from_millis(50);
/// Readings, of which the one that took the shortest time counts.
const TRIES: usize = 20;

/// The rate in kHz. None where the emulator does not show guests the machine's own counter.
pub(super) fn kilohertz() -> Option<u64> {
    static RATE: OnceLock<u64> = OnceLock::new();
    cfg!(target_arch = "x86_64").then(|| *RATE.get_or_init(measure))
}

fn measure() -> u64 {
    let (first, began) = read();
    std::thread::sleep(APART);
    let (second, ended) = read();
    let microseconds = u64::try_from((ended - began).as_micros()).unwrap_or(u64::MAX).max(1);
    // Ticks per microsecond are MHz.
    second.wrapping_sub(first).saturating_mul(1000) / microseconds
}

/// The counter and the clock, at the same moment, also on a busy machine.
fn read() -> (u64, Instant) {
    let once = |_| {
        let before = Instant::now();
        let ticks = ticks::now();
        (before.elapsed(), ticks, before)
    };
    let best = (0..TRIES).map(once).min_by_key(|(took, ..)| *took);
    best.map_or_else(|| (ticks::now(), Instant::now()), |(_, ticks, at)| (ticks, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let (first, second) = (measure(), measure());
        assert!(first > 0 && first.abs_diff(second) < first / 100, "{first} {second}");
    }
}
