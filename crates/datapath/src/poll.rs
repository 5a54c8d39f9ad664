//! How long an idle worker looks before it sleeps.
//!
//! Sleeping costs the peer a kick and us a wake-up, looking costs CPU time. The window follows what happened: a sleep
//! that was cut short says that looking a little longer would have been cheaper, a long one that it would have been
//! in vain (the rule of Linux' haltpoll governor). A host where nothing happens soon does not spin at all.

use std::time::Duration;

/// Longest that is worth looking: about ten times what sleeping and waking costs.
pub const MAX: Duration = Duration::from_micros(50);
const FIRST: Duration = Duration::from_micros(5);

/// One worker's window.
#[derive(Debug)]
pub struct Window(Duration);

impl Default for Window {
    fn default() -> Self {
        Window(MAX)
    }
}

impl Window {
    /// How long a queue is looked at after something was last found. A worker that is kept awake by other queues
    /// anyway looks longer: that costs little, and saves the peer its kicks.
    pub fn of(&self, others_busy: bool) -> Duration {
        if others_busy { MAX } else { self.0 }
    }

    /// The worker slept for so long, until something came.
    pub fn slept(&mut self, time: Duration) {
        self.0 = if time < MAX { (self.0 * 2).clamp(FIRST, MAX) } else { self.0 / 2 };
        if self.0 < FIRST / 2 {
            self.0 = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sleeps_end_the_looking_and_short_ones_bring_it_back() {
        let mut window = Window::default();
        for _ in 0..10 {
            window.slept(Duration::from_millis(10));
        }
        assert_eq!(window.of(false), Duration::ZERO);
        assert_eq!(window.of(true), MAX);
        window.slept(Duration::from_micros(20));
        assert_eq!(window.of(false), FIRST);
        for _ in 0..10 {
            window.slept(Duration::from_micros(20));
        }
        assert_eq!(window.of(false), MAX);
    }
}
