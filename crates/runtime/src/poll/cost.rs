//! The measured cost of sleeping on this machine.
//!
//! The cost differs by a factor of a hundred between a bare host and a virtual machine, so it
//! cannot be assumed.
//!
//! A worker measures the cost before it starts, and goes on learning from a few of its sleeps.
//! Times are in nanoseconds.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::watcher::{Signal, Watcher};

/// How often each kind of sleep is measured.
const TRIES: usize = 9;
/// Length of those sleeps, in which the CPU becomes idle.
const TRIED: Duration = Duration::from_micros(100);
/// A signal that takes longer than this is not used as a measurement.
const LIMIT: Duration = Duration::from_millis(100);
/// A figure moves by 1/`SLOWNESS` of itself towards a new one.
const SLOWNESS: u64 = 16;
/// The range of plausible figures.
const LEAST: u64 = 200;
const MOST: u64 = 1_000_000;
/// Time of polling, in ns, that shows more than any sleep.
const CLEAR: u64 = 5_000;

/// The cost of sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of a sleep that ends with a signal.
    pub sleep: u64,
    /// From before the signal is given until the worker runs.
    pub wake: u64,
    /// CPU time of a sleep that ends with a timer.
    pub nap: u64,
    /// How much later than its timer a sleep ends.
    pub late: u64,
    /// `wake` and `late` as they were measured first.
    first_wake: u64,
    first_late: u64,
}

/// The cost of one kind of sleep, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct SleepCost {
    /// CPU time.
    pub cpu: u64,
    /// From the signal, or the end of the timer, until the thread runs.
    pub delay: u64,
}

impl Default for Cost {
    /// Usual values of a bare host, for machines where the cost cannot be measured.
    fn default() -> Self {
        Cost::new(SleepCost { cpu: 3_000, delay: 8_000 }, SleepCost { cpu: 3_000, delay: 5_000 })
    }
}

impl Cost {
    /// The cost of sleeping, from sleeps that end with a signal and sleeps that end with a timer.
    pub(super) fn new(signalled: SleepCost, timed: SleepCost) -> Cost {
        let [sleep, wake, nap, late] = [signalled.cpu, signalled.delay, timed.cpu, timed.delay]
            .map(|time| time.clamp(LEAST, MOST));
        Cost { sleep, wake, nap, late, first_wake: wake, first_late: late }
    }

    /// Measures on the calling thread, which takes some milliseconds.
    pub fn measured() -> Cost {
        let (signalled, timed) = (by_signal(), by_timer());
        let usual = Cost::default();
        Cost::new(
            signalled.unwrap_or(SleepCost { cpu: usual.sleep, delay: usual.wake }),
            timed.unwrap_or(SleepCost { cpu: usual.nap, delay: usual.late }),
        )
    }

    /// Notes the CPU time of a sleep that ended with a signal or with a timer.
    pub fn spent(&mut self, timed: bool, cpu: u64) {
        move_towards(if timed { &mut self.nap } else { &mut self.sleep }, cpu);
    }

    /// Notes a sleep that ended `time` ns late. The delay of a signal cannot be measured. Its
    /// causes are those of a timer's delay, so both are assumed to grow and shrink alike, up to a
    /// factor of four.
    pub fn came_late(&mut self, time: u64) {
        move_towards(&mut self.late, time);
        let (wake, late) = (self.first_wake, self.first_late);
        self.wake = (wake * self.late / late).clamp(wake / 4, wake * 4);
    }

    /// How long a worker has to poll to see what a sleep would have hidden.
    pub fn hidden(&self) -> u64 {
        self.wake.max(2 * self.sleep).max(CLEAR)
    }
}

/// Moves a figure by a fixed part of itself, so that it stays where as many new figures are greater
/// as are smaller: at the median. In a virtual machine, some sleeps take fifty times as long as
/// most, because the host had other work. An average would follow these, from sleep to sleep.
fn move_towards(figure: &mut u64, new: u64) {
    let step = *figure / SLOWNESS;
    let least = figure.saturating_sub(step).max(LEAST);
    let most = figure.saturating_add(step).min(MOST);
    *figure = new.clamp(least, most);
}

/// CPU time of the calling thread, in ns. A system call.
pub fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time and length of what `sleep` does, in ns.
fn timed(sleep: impl FnOnce()) -> (u64, u64) {
    let (cpu, start) = (cpu_time(), Instant::now());
    sleep();
    let length = ns(start.elapsed());
    (cpu_time().saturating_sub(cpu), length)
}

/// Sleeps until a timer ends: CPU time, and time beyond.
fn by_timer() -> io::Result<SleepCost> {
    let watcher = Watcher::new()?;
    let tries: [_; TRIES] = std::array::from_fn(|_| timed(|| watcher.wait(Some(TRIED), |_| {})));
    Ok(SleepCost {
        cpu: quartile(tries.map(|(cpu, _)| cpu)),
        delay: quartile(tries.map(|(_, length)| length.saturating_sub(ns(TRIED)))),
    })
}

/// Sleeps until another thread signals: CPU time, and time from before the signal. Each sleep gets
/// its own signal: on a busy host, signals that came together would leave later sleeps without one.
/// The thread keeps its CPU meanwhile: the kernel may otherwise move it to that of the signals.
fn by_signal() -> io::Result<SleepCost> {
    let (own, allowed) = (sched_getcpu(), sched_getaffinity(None)?);
    only(&allowed, |cpu| cpu == own);
    let cost = signalled(|| only(&allowed, |cpu| cpu != own));
    // Where affinity may not be set, the thread was not kept either, and the figures are good.
    let _ = sched_setaffinity(None, &allowed);
    cost
}

/// The cost of sleeps that end with the signal of another thread, which `leave` moves to other CPUs
/// than the calling thread's: a peer's signals come from there. A signal from the worker's own CPU
/// wakes it in a tenth of the time.
fn signalled(leave: impl Fn() + Sync) -> io::Result<SleepCost> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let watcher = Watcher::new()?;
    watcher.add(fd.as_fd(), Signal::Doorbell)?;
    let (start, asked, given) = (Instant::now(), AtomicUsize::new(0), AtomicU64::new(0));
    let now = || ns(start.elapsed());
    let signaller = || {
        leave();
        for n in 1..=TRIES {
            while asked.load(Ordering::Acquire) < n && now() < ns(LIMIT) * TRIES as u64 {
                thread::sleep(TRIED / 4);
            }
            thread::sleep(TRIED);
            given.store(now(), Ordering::Release);
            // The counter holds a few signals at most, so it cannot be saturated.
            let _ = rustix::io::write(&fd, &1u64.to_ne_bytes());
        }
    };
    thread::scope(|scope| {
        thread::Builder::new().name("rm-signaller".into()).spawn_scoped(scope, signaller)?;
        let tries: [_; TRIES] = std::array::from_fn(|n| {
            asked.store(n + 1, Ordering::Release);
            let (cpu, _) = timed(|| watcher.wait(Some(LIMIT), |_| {}));
            (cpu, now().saturating_sub(given.load(Ordering::Acquire)))
        });
        Ok(SleepCost {
            cpu: quartile(tries.map(|(cpu, _)| cpu)),
            delay: quartile(tries.map(|(_, wake)| wake)),
        })
    })
}

/// Keeps the calling thread to those of the allowed CPUs for which `is_meant` holds. Where there
/// are none, the thread stays where it is, and the figures are those of one CPU.
fn only(allowed: &CpuSet, is_meant: impl Fn(usize) -> bool) {
    let mut cpus = CpuSet::new();
    let meant = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu) && is_meant(*cpu));
    meant.for_each(|cpu| cpus.set(cpu));
    // The kernel refuses an empty set.
    let _ = sched_setaffinity(None, &cpus);
}

/// The first quartile of the tries. A busy host, as when all of its guests start, only lengthens
/// tries, so the short ones are closest to the cost.
fn quartile(mut of: [u64; TRIES]) -> u64 {
    of.sort_unstable();
    of[TRIES / 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_costs_something_here() {
        let Cost { sleep, wake, nap, late, .. } = Cost::measured();
        for figure in [sleep, wake, nap, late] {
            assert!((LEAST..=MOST).contains(&figure), "{figure}");
        }
    }

    #[test]
    fn what_is_learnt_replaces_what_was_believed_and_a_single_figure_does_not() {
        let mut cost = Cost::default();
        cost.spent(false, u64::MAX);
        assert!(cost.sleep < 2 * Cost::default().sleep, "{cost:?}");
        (0..100).for_each(|_| cost.spent(false, 20_000));
        (0..100).for_each(|_| cost.spent(true, 0));
        assert!(cost.sleep.abs_diff(20_000) < 100 && cost.nap < 300, "{cost:?}");
    }

    #[test]
    fn signals_are_slow_when_timers_are() {
        let mut cost = Cost::default();
        (0..100).for_each(|_| cost.came_late(15_000));
        assert!(cost.wake.abs_diff(24_000) < 200, "{cost:?}");
        (0..100).for_each(|_| cost.came_late(0));
        assert_eq!(cost.wake, 2_000, "there is a limit to what is believed");
        assert!(cost.hidden() >= CLEAR);
    }
}
