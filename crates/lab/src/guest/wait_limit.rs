//! Limits of waits for a guest, by the clock that tells its progress.
//!
//! An emulated machine that counts instructions makes progress exactly as fast as QEMU uses CPU
//! time, so limits on it are counted in that. A machine that uses none has stopped. Waits for other
//! guests leave out the time without a free processor.

use super::Deadline;
use load::cpu;
use std::time::{Duration, Instant};

/// A process that uses no CPU time for so long has stopped.
const STALLED: Duration = Duration::from_secs(120);
/// Less CPU time than this is no progress.
const PROGRESS: Duration = Duration::from_millis(10);

/// The clock that limits are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Time that passes while a processor is free.
    Wall,
    /// CPU time of the process with this id.
    Process(u32),
}

/// A limit on a wait.
#[derive(Debug)]
pub(crate) enum WaitLimit {
    /// The limit counts elapsed time.
    Wall(Deadline),
    /// The limit counts CPU time.
    CpuTime(CpuTimeLimit),
}

impl WaitLimit {
    /// A limit that begins now.
    pub(crate) fn after(limit: Duration, clock: Clock) -> WaitLimit {
        match clock {
            Clock::Wall => WaitLimit::Wall(Deadline::new(limit)),
            Clock::Process(id) => WaitLimit::CpuTime(CpuTimeLimit::after(limit, id)),
        }
    }

    /// Whether the wait is over.
    pub(crate) fn is_over(&mut self) -> bool {
        match self {
            WaitLimit::Wall(deadline) => deadline.is_over(),
            WaitLimit::CpuTime(limit) => limit.is_over_at(Instant::now(), cpu::used(limit.process)),
        }
    }
}

/// A limit on the CPU time that a process uses.
#[derive(Debug)]
pub(crate) struct CpuTimeLimit {
    process: u32,
    limit: Duration,
    /// CPU time that the process had used at the beginning.
    began: Duration,
    /// The last progress: when, and how much CPU time the process had used by then.
    progress: (Instant, Duration),
}

impl CpuTimeLimit {
    fn after(limit: Duration, process: u32) -> CpuTimeLimit {
        let began = cpu::used(process);
        CpuTimeLimit { process, limit, began, progress: (Instant::now(), began) }
    }

    fn is_over_at(&mut self, now: Instant, used: Duration) -> bool {
        if used.saturating_sub(self.progress.1) >= PROGRESS {
            self.progress = (now, used);
        }
        let stalled = now.saturating_duration_since(self.progress.0) >= STALLED;
        stalled || used.saturating_sub(self.began) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    fn limit() -> (CpuTimeLimit, Instant, Duration) {
        let limit = CpuTimeLimit::after(LIMIT, std::process::id());
        let (now, used) = limit.progress;
        (limit, now, used)
    }

    #[test]
    fn a_wait_counts_the_cpu_time_of_the_process() {
        let (mut limit, now, used) = limit();
        // An hour in which it used a minute of CPU time, seen every minute.
        for minute in 1..=60 {
            let second = Duration::from_secs(1) * minute;
            assert!(!limit.is_over_at(now + 60 * second, used + second));
        }
        assert!(limit.is_over_at(now + Duration::from_secs(3600), used + LIMIT));
    }

    #[test]
    fn waiting_ends_with_a_stopped_process() {
        let (mut limit, now, used) = limit();
        assert!(!limit.is_over_at(now + STALLED / 2, used));
        assert!(limit.is_over_at(now + STALLED, used));
    }
}
