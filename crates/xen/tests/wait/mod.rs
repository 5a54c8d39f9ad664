//! Waiting for what another thread does.

use std::time::{Duration, Instant};

/// Waits for a condition, for a minute at most.
#[track_caller]
pub fn wait(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for a minute in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}
