//! Who took how much CPU while something was measured.

use std::fs;
use std::time::Instant;

use serde::Serialize;

/// CPU time so far, in clock ticks, by who took it.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    when: Instant,
    /// Everybody in this machine.
    all: u64,
    /// Whoever else runs on the machine below this one.
    stolen: u64,
    own: u64,
    backend: u64,
}

/// CPU time over a run, in percent of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// The generator.
    pub own: f64,
    /// The back-end, if its process was named.
    pub backend: Option<f64>,
    /// Everybody else, the kernel's interrupts included.
    pub others: f64,
    /// Taken by the hypervisor for other machines.
    pub stolen: f64,
}

impl Snapshot {
    /// Now. What cannot be read counts as 0.
    pub fn take(backend: Option<u32>) -> Self {
        let (all, stolen) = machine(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let process = |name: String| process(&fs::read_to_string(format!("/proc/{name}/stat")).unwrap_or_default());
        Self {
            when: Instant::now(),
            all,
            stolen,
            own: process("self".into()),
            backend: backend.map_or(0, |pid| process(pid.to_string())),
        }
    }

    /// What was taken since `before`; `backend` says whether its process was named.
    pub fn since(&self, before: &Self, backend: bool) -> Shares {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let seconds = self.when.duration_since(before.when).as_secs_f64().max(1e-9);
        let percent = |now: u64, then: u64| now.saturating_sub(then) as f64 / ticks / seconds * 100.0;
        let (own, served) = (percent(self.own, before.own), percent(self.backend, before.backend));
        Shares {
            own,
            backend: backend.then_some(served),
            others: (percent(self.all, before.all) - own - served).max(0.0),
            stolen: percent(self.stolen, before.stolen),
        }
    }
}

/// From `/proc/stat`: ticks of all CPUs that were spent here, and that were stolen.
fn machine(text: &str) -> (u64, u64) {
    let line = text.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map(|n| n.parse().unwrap_or(0)).collect();
    // user nice system idle iowait irq softirq steal; what guests take is part of user and nice.
    let at = |i: usize| ticks.get(i).copied().unwrap_or(0);
    ([0, 1, 2, 5, 6].map(at).iter().sum(), at(7))
}

/// From `/proc/PID/stat`: ticks of all threads. The command's name may hold anything, so fields count from its end.
fn process(text: &str) -> u64 {
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let at = |i: usize| fields.get(i).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    at(11) + at(12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        assert_eq!(machine("cpu  1 2 4 800 1600 8 16 32 64 128\ncpu0 9 9 9 9 9 9 9 9\n"), (31, 32));
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 55 1 2";
        assert_eq!(process(stat), 42);
        assert_eq!(process(""), 0);
    }

    #[test]
    fn own_time_is_not_taken_for_somebody_elses() {
        let before = Snapshot::take(None);
        let mut sum = 0u64;
        while before.when.elapsed().as_millis() < 50 {
            sum = std::hint::black_box(sum + 1);
        }
        let mut after = Snapshot::take(None);
        (after.own, after.all) = (before.own + 5, before.all + 7);
        let shares = after.since(&before, false);
        assert!(shares.own > 0.0 && shares.others > 0.0 && shares.others < shares.own);
        assert_eq!(shares.backend, None);
    }
}
