//! A limit on a wait that ends processes that hang, and not those that a busy machine slows down.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How often the threads' times are read while a wait lasts.
const STEP: Duration = Duration::from_secs(1);
/// At least one part in this many of each step counts, so that every wait ends.
const LEAST_PART: u32 = 8;

/// A limit on a wait for processes that this one started: a guest, a daemon.
///
/// Time during which one of their threads, or of this process, was ready to run but had no
/// processor does not count. The kernel keeps that time for each thread, in
/// `/proc/PID/task/TID/schedstat`.
#[derive(Debug)]
pub struct Deadline {
    limit: Duration,
    counted: Duration,
    last_step: Instant,
    /// How long each thread had waited for a processor at the last step, in nanoseconds.
    delays: HashMap<u32, u64>,
}

impl Deadline {
    /// A limit that begins now.
    pub fn new(limit: Duration) -> Deadline {
        Deadline {
            limit,
            counted: Duration::ZERO,
            last_step: Instant::now(),
            delays: HashMap::new(),
        }
    }

    /// Whether the limit is exceeded.
    pub fn is_over(&mut self) -> bool {
        let passed = self.last_step.elapsed();
        if passed >= STEP {
            self.last_step = Instant::now();
            let delay = self.longest_delay();
            self.counted += counted(passed, delay);
        }
        // Less than a step: how much of it counts is not known yet.
        self.counted >= self.limit
    }

    /// The longest time since the last step that one thread waited for a processor.
    fn longest_delay(&mut self) -> Duration {
        let mut delays = HashMap::new();
        collect_delays(std::process::id(), &mut delays);
        let new = |(thread, delay): (&u32, &u64)| {
            // A thread that is new has no value for the last step.
            delay.saturating_sub(self.delays.get(thread).copied().unwrap_or(*delay))
        };
        let longest = delays.iter().map(new).max().unwrap_or(0);
        self.delays = delays;
        Duration::from_nanos(longest)
    }
}

/// How much of a time counts, in which a thread waited for a processor that long.
fn counted(passed: Duration, delay: Duration) -> Duration {
    passed.saturating_sub(delay).max(passed / LEAST_PART)
}

/// Adds the delays of a process's threads, and of those of all processes below it.
fn collect_delays(process: u32, delays: &mut HashMap<u32, u64>) {
    // A process that has just ended has no threads.
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for task in tasks.flatten() {
        let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Time on a processor, time spent waiting for one, and the number of turns.
        if let Some(delay) = words::<u64>(&task.path().join("schedstat")).get(1) {
            delays.insert(thread, *delay);
        }
        for child in words(&task.path().join("children")) {
            collect_delays(child, delays);
        }
    }
}

fn words<T: FromStr>(path: &Path) -> Vec<T> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_without_a_processor_does_not_count() {
        assert_eq!(counted(SECOND, Duration::ZERO), SECOND);
        assert_eq!(counted(SECOND, SECOND / 4), SECOND * 3 / 4);
        assert_eq!(counted(SECOND, SECOND * 2), SECOND / 8);
    }

    #[test]
    fn a_wait_for_something_idle_ends() {
        let mut deadline = Deadline::new(SECOND);
        let start = Instant::now();
        while !deadline.is_over() {
            std::thread::sleep(SECOND / 20);
        }
        assert!(start.elapsed() >= SECOND);
        assert!(Deadline::new(Duration::ZERO).is_over());
    }

    #[test]
    fn the_threads_of_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut delays = HashMap::new();
        collect_delays(std::process::id(), &mut delays);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(delays.contains_key(&std::process::id()) && delays.contains_key(&child.id()));
    }
}
