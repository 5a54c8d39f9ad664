//! CPU time of single processes, and of the whole host.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ring::ticks::{self, Ratio};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The CPU of a daemon with one worker.
pub const WORKER_CPU: usize = 1;
/// The CPU of a generator beside it.
pub const GENERATOR_CPU: usize = 0;

/// Binds the calling thread to one CPU.
///
/// # Errors
/// When there is no such CPU, or it is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// CPU time that a process's threads have used so far; zero when it is gone. Threads that ended
/// count only for this process.
pub fn used(pid: u32) -> Duration {
    if pid == std::process::id() {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        return Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32);
    }
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let names = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    Duration::from_nanos(names.filter_map(|thread| time_on_cpu(pid, thread)).sum())
}

/// CPU time that threads of a process have used so far; zero for those that are gone.
pub fn used_by(pid: u32, threads: &[u32]) -> Duration {
    let times = threads.iter().filter_map(|thread| time_on_cpu(pid, thread));
    Duration::from_nanos(times.sum())
}

fn time_on_cpu(pid: u32, thread: impl std::fmt::Display) -> Option<u64> {
    // "time on a CPU in ns, time waiting for one in ns, number of time slices"
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Cycles in a nanosecond, as CPUs count them for time stamps. `None` if their rate is not constant
/// and equal on all CPUs.
pub fn cycles_per_nanosecond() -> Option<f64> {
    const MANY: u64 = 1_000_000_000;
    static PACE: OnceLock<Option<f64>> = OnceLock::new();
    *PACE.get_or_init(|| {
        let steady = is_steady(&std::fs::read_to_string("/proc/cpuinfo").ok()?);
        let pace = || Ratio::since((ticks::now(), Instant::now())).nanoseconds(MANY).max(1);
        steady.then(|| MANY as f64 / pace() as f64)
    })
}

/// Reads /proc/cpuinfo.
fn is_steady(text: &str) -> bool {
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["constant_tsc", "nonstop_tsc"]
        .iter()
        .all(|flag| flags.split_whitespace().any(|word| word == *flag))
}

/// The CPU times of some processes and of the host, at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Instant,
    used: Vec<Duration>,
    host: Host,
}

/// The CPU time used between two times, in CPUs: 0.5 is half of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// The share of each process asked about, in that order.
    pub of: Vec<f64>,
    /// The share of everything else on the host, interrupts and the kernel's own threads included.
    pub others: f64,
    /// Time that a hypervisor below gave to others (steal); not included in `others`.
    pub stolen: f64,
}

impl Shares {
    /// CPUs that were busy with any work.
    pub fn busy(&self) -> f64 {
        self.of.iter().sum::<f64>() + self.others
    }
}

/// Ticks of the host's clock, summed over its CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Host {
    busy: u64,
    stolen: u64,
    all: u64,
    cpus: u32,
}

impl Snapshot {
    /// A snapshot of the present.
    pub fn now(pids: &[u32]) -> Snapshot {
        let host = Host::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
        Snapshot { at: Instant::now(), used: pids.iter().map(|pid| used(*pid)).collect(), host }
    }

    /// The CPU time since an earlier snapshot of the same processes.
    pub fn since(&self, earlier: &Snapshot) -> Shares {
        let wall = (self.at - earlier.at).as_secs_f64().max(1e-9);
        let of: Vec<f64> = self
            .used
            .iter()
            .zip(&earlier.used)
            .map(|(now, then)| now.saturating_sub(*then).as_secs_f64() / wall)
            .collect();
        let all = self.host.all.saturating_sub(earlier.host.all).max(1);
        let share = |now: u64, then: u64| {
            now.saturating_sub(then) as f64 / all as f64 * f64::from(self.host.cpus)
        };
        let busy = share(self.host.busy, earlier.host.busy);
        let stolen = share(self.host.stolen, earlier.host.stolen);
        Shares { others: (busy - of.iter().sum::<f64>()).max(0.0), stolen, of }
    }
}

impl Host {
    /// Reads /proc/stat.
    fn parse(text: &str) -> Host {
        let mut host = Host::default();
        for line in text.lines().filter(|line| line.starts_with("cpu")) {
            let mut words = line.split_whitespace();
            if words.next() != Some("cpu") {
                host.cpus += 1;
                continue;
            }
            // user nice system idle iowait irq softirq steal; guest time is part of user time
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            host.all = ticks.iter().sum();
            host.stolen = ticks.get(7).copied().unwrap_or(0);
            host.busy = host.all - host.stolen - ticks.iter().skip(3).take(2).sum::<u64>();
        }
        host
    }
}

/// The name of this machine's CPU; empty where the kernel does not say.
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    name.trim_start_matches([' ', '\t', ':']).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_not_used_by_a_process_is_used_by_others() {
        let host = |busy, all| Host { busy, stolen: busy / 2, all, cpus: 4 };
        let at = Instant::now();
        let then = Snapshot { at, used: vec![Duration::from_secs(1)], host: host(100, 1000) };
        let now = Snapshot {
            at: at + Duration::from_secs(2),
            used: vec![Duration::from_secs(2)],
            host: host(500, 1800),
        };
        assert_eq!(now.since(&then), Shares { of: vec![0.5], others: 1.5, stolen: 1.0 });
    }

    #[test]
    fn idle_iowait_and_steal_are_not_busy() {
        let text = "cpu  10 1 5 70 10 1 2 1 0 0\ncpu0 5 0 3 35 5 0 1 1 0 0\ncpu1 5 1 2 35 5 1 1 0 0 0\nintr 5\n";
        assert_eq!(Host::parse(text), Host { busy: 19, stolen: 1, all: 100, cpus: 2 });
    }

    #[test]
    fn cycles_are_known_only_where_they_are_steady() {
        assert!(is_steady("processor : 0\nflags : fpu constant_tsc nonstop_tsc\n"));
        assert!(!is_steady("flags : fpu tsc constant_tsc\n") && !is_steady(""));
        assert!(cycles_per_nanosecond().is_none_or(|cycles| (0.1..20.0).contains(&cycles)));
    }

    #[test]
    fn this_process_has_used_some() {
        let start = Instant::now();
        while used(std::process::id()).is_zero() && start.elapsed() < Duration::from_secs(60) {
            std::hint::black_box(start.elapsed());
        }
        assert!(used(std::process::id()) > Duration::ZERO);
        assert_eq!(used(u32::MAX), Duration::ZERO);
    }
}
