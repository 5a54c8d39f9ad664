//! Time, and the pace of sending.

use std::time::Instant;

use super::direction_counters::SenderCounters;
use super::gaps::Gaps;

/// Nanoseconds since the generator started: the time in tags.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at 0.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Now, in ns.
    #[inline]
    pub fn now(self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// If nothing comes back for this long, a window counts the frames under way as lost.
const STALL_NS: u64 = 1_000_000_000;

/// A sender that falls behind its rate by more frames than this does not try to catch up.
const BACKLOG: u64 = 1024;

/// The times at which the next frames may be sent.
#[derive(Clone, Debug)]
pub enum Pace {
    /// As soon as the ring has room.
    Open,
    /// A bounded number of frames is under way.
    Window {
        /// The number of frames.
        frames: u64,
        /// The last frames that came back.
        progress: Progress,
    },
    /// A fixed rate, in frames per second.
    Rate {
        /// The number of frames a second.
        pps: u64,
        /// Since when, in ns.
        since: u64,
        /// Frames of that time already sent.
        spent: u64,
    },
    /// At random, with a mean rate.
    Gaps {
        /// The gaps.
        gaps: Gaps,
        /// When the next frame is due, in ns; 0 before the first look.
        next: u64,
        /// Frames that are due and not sent.
        ready: u64,
    },
}

/// When frames of a window came back last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Frames that have come back.
    received: u64,
    /// When that number was noticed, in ns.
    since: u64,
}

impl Pace {
    /// Frames that may go at `now`.
    #[inline]
    pub fn budget(&mut self, now: u64, counters: &SenderCounters) -> u64 {
        match self {
            Self::Open => u64::MAX,
            Self::Window { frames, progress } => {
                let left = frames.saturating_sub(counters.under_way());
                if left == 0 {
                    stalled(progress, now, counters);
                }
                left
            }
            Self::Rate { pps, since, spent } => {
                let due = (u128::from(now.saturating_sub(*since)) * u128::from(*pps)
                    / 1_000_000_000) as u64;
                if due > *spent + BACKLOG {
                    (*since, *spent) = (now, 0);
                    return 1;
                }
                due.saturating_sub(*spent)
            }
            Self::Gaps { gaps, next, ready } => {
                if *next == 0 || *ready >= BACKLOG {
                    (*next, *ready) = (now.max(1), 1);
                }
                while *next <= now && *ready < BACKLOG {
                    *next += gaps.draw();
                    *ready += 1;
                }
                *ready
            }
        }
    }

    /// Counts `n` sent frames.
    #[inline]
    pub fn spend(&mut self, n: u64) {
        match self {
            Self::Rate { spent, .. } => *spent += n,
            Self::Gaps { ready, .. } => *ready = ready.saturating_sub(n),
            Self::Open | Self::Window { .. } => {}
        }
    }

    /// Whether frames are sent as soon as the ring has room.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// ns from `now` until a frame is due, if that is known.
    pub fn due_in(&self, now: u64) -> Option<u64> {
        match self {
            Self::Rate { pps, since, spent } if *pps > 0 => {
                let due =
                    since + (u128::from(*spent + 1) * 1_000_000_000 / u128::from(*pps)) as u64;
                Some(due.saturating_sub(now))
            }
            Self::Gaps { ready: 1.., .. } => Some(0),
            Self::Gaps { next, .. } => Some(next.saturating_sub(now)),
            Self::Open | Self::Window { .. } | Self::Rate { .. } => None,
        }
    }
}

/// Counts the frames of a full window as lost if nothing has come back for too long.
fn stalled(progress: &mut Progress, now: u64, counters: &SenderCounters) {
    let received = counters.received();
    if progress.received != received {
        *progress = Progress { received, since: now };
    } else if now.saturating_sub(progress.since) > STALL_NS {
        counters.abandon();
        progress.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaps::GapDistribution;

    #[test]
    fn a_window_limits_frames_and_gives_up_lost_ones() {
        let counters = SenderCounters::new(1);
        let mut pace = Pace::Window { frames: 4, progress: Progress::default() };
        assert_eq!(pace.budget(1, &counters), 4);
        let direction = counters.each().next().unwrap();
        direction.add_sent(4);
        assert_eq!(pace.budget(2, &counters), 0);
        direction.set_received(1);
        assert_eq!(pace.budget(3, &counters), 1);
        direction.add_sent(1);
        assert_eq!(pace.budget(4, &counters), 0);
        assert_eq!(pace.budget(4 + STALL_NS, &counters), 0);
        assert_eq!(pace.budget(6 + STALL_NS, &counters), 0, "gives up now");
        assert_eq!(pace.budget(7 + STALL_NS, &counters), 4);
    }

    #[test]
    fn a_rate_is_kept_without_making_up_for_lost_time() {
        let counters = SenderCounters::new(1);
        let mut pace = Pace::Rate { pps: 1_000_000, since: 0, spent: 0 };
        assert_eq!(pace.budget(10_000, &counters), 10);
        pace.spend(10);
        assert_eq!(pace.budget(10_000, &counters), 0);
        assert_eq!(pace.due_in(10_000), Some(1000));
        assert_eq!(pace.budget(10_000_000_000, &counters), 1);
        assert_eq!(pace.budget(10_000_005_000, &counters), 5);
    }

    #[test]
    fn a_rate_of_zero_sends_nothing() {
        let mut pace = Pace::Rate { pps: 0, since: 0, spent: 0 };
        assert_eq!(pace.budget(u64::MAX, &SenderCounters::new(1)), 0);
        assert_eq!(pace.due_in(10_000), None);
    }

    #[test]
    fn random_gaps_keep_their_rate_and_lost_time_is_not_made_up() {
        let counters = SenderCounters::new(1);
        let gaps = Gaps::new(GapDistribution::Random, 1000.0, 1).unwrap();
        let mut pace = Pace::Gaps { gaps, next: 0, ready: 0 };
        let mut sent = 0;
        for now in 1..10_000 {
            let due = pace.budget(now * 1000, &counters);
            assert!(due == 0 || pace.due_in(now * 1000) == Some(0));
            pace.spend(due);
            sent += due;
        }
        assert!((9_000..11_000).contains(&sent), "{sent}");
        assert!(pace.due_in(10_000_000).is_some_and(|due| due < 100_000));
        assert_eq!(pace.budget(10_000_000_000, &counters), BACKLOG);
        assert!(pace.budget(10_000_000_000, &counters) < 10, "the rest is given up");
    }
}
