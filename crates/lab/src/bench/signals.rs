//! Who interrupts a guest that sleeps, side by side: the worker, or another thread at its request.
//!
//! An interrupt is a write to an eventfd that wakes a thread of the guest on another CPU. The
//! writer pays for the wake-up. The comparison shows how much time a worker saves if another thread
//! writes, and how much later the guest then runs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use load::cpu::{GENERATOR_CPU, WORKER_CPU, pin};
use rustix::event::{EventfdFlags, eventfd};

use crate::bench::BenchError;
use crate::statistics::{Summary, digits, turns};
use crate::table::aligned;

/// Rounds, in each of which all signallers have their turn.
const ROUNDS: u32 = 10;
/// Longest wait for a guest that was interrupted.
const LIMIT: Duration = Duration::from_secs(10);

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Interrupts in each of ten rounds, for each kind of signaller
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub interrupts: u32,

    /// Microseconds for which the guest sleeps between two interrupts
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gap: u32,
}

/// The thread that writes the guest's eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signaller {
    Worker,
    /// A thread that sleeps until the worker wakes it.
    Asleep,
    /// A thread that polls a flag that the worker sets.
    Polling,
}

impl Signaller {
    const ALL: [Signaller; 3] = [Signaller::Worker, Signaller::Asleep, Signaller::Polling];

    fn name(self) -> &'static str {
        match self {
            Signaller::Worker => "the worker",
            Signaller::Asleep => "a thread that sleeps",
            Signaller::Polling => "a thread that polls",
        }
    }
}

/// What the worker, the signaller and the guest share.
struct Shared {
    start: Instant,
    /// Wakes the guest.
    guest: OwnedFd,
    /// Wakes the signaller.
    signaller: OwnedFd,
    /// Interrupts that the worker asked for.
    asked: AtomicU64,
    /// When the guest last ran, in ns from the start, and how often it was interrupted.
    ran_at: AtomicU64,
    interrupts: AtomicU64,
    ends: AtomicBool,
}

/// Times of interrupts by one signaller, in us.
#[derive(Clone, Debug, Default)]
struct Times {
    /// Of the worker.
    worker: Vec<f64>,
    /// From before the worker acts until the guest runs.
    delay: Vec<f64>,
}

/// Measures, and shows the medians of all signallers.
///
/// # Errors
/// When this machine does not have two CPUs, or a thread cannot be started.
pub fn table(args: &Args) -> Result<String, BenchError> {
    let failed = |source| BenchError::Start { what: "interrupt a guest", source };
    // The thread of the worker is bound to its CPU, and the caller is not.
    let times = thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, || measure(args))?;
        worker.join().map_err(|_| io::Error::other("the worker has ended"))?
    });
    let times = times.map_err(failed)?;
    let heads = ["who writes the eventfd", "worker, us", "until the guest runs, us"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(Signaller::ALL.into_iter().zip(times).map(|(signaller, times)| {
        let [worker, delay] = [times.worker, times.delay].map(median);
        [signaller.name().to_owned(), worker, delay]
    }));
    let cpus = match free_cpu() {
        Some(cpu) => format!("the other threads have CPU {cpu}"),
        None => "the other threads share the guest's CPU, because no CPU is free".to_owned(),
    };
    Ok(format!(
        "{}worker on CPU {WORKER_CPU}, guest on CPU {GENERATOR_CPU}; {cpus}\n",
        aligned(&rows)
    ))
}

fn median(times: Vec<f64>) -> String {
    Summary::of(times).map_or("-".into(), |times| digits(times.median))
}

/// A CPU that neither the worker nor the guest uses.
pub(super) fn free_cpu() -> Option<usize> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    (0..cpus).find(|cpu| ![WORKER_CPU, GENERATOR_CPU].contains(cpu))
}

/// The CPU of a thread that interrupts guests for a worker: a free one, or else that of the guests.
pub(super) fn thread_cpu() -> usize {
    free_cpu().unwrap_or(GENERATOR_CPU)
}

/// Times of all signallers, which take turns.
fn measure(args: &Args) -> io::Result<[Times; Signaller::ALL.len()]> {
    pin(WORKER_CPU)?;
    let mut all: [Times; Signaller::ALL.len()] = Default::default();
    for round in 0..ROUNDS {
        for (signaller, times) in turns(Signaller::ALL.into_iter().zip(&mut all).collect(), round) {
            interrupt(signaller, args, times)?;
        }
    }
    Ok(all)
}

/// Interrupts a guest by one signaller, and notes the times.
fn interrupt(signaller: Signaller, args: &Args, times: &mut Times) -> io::Result<()> {
    let shared = Shared::new()?;
    thread::scope(|scope| {
        let guest = thread::Builder::new().spawn_scoped(scope, || shared.run_guest())?;
        let other = thread::Builder::new().spawn_scoped(scope, || shared.run_signaller(signaller));
        let worked = match &other {
            Ok(_) => shared.run_worker(signaller, args, times),
            Err(_) => Ok(()),
        };
        shared.end();
        let ended = |thread: ScopedJoinHandle<'_, io::Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has ended")))
        };
        // If a thread has failed, the worker has waited for it in vain.
        ended(guest).and(ended(other?)).and(worked)
    })
}

impl Shared {
    fn new() -> io::Result<Shared> {
        Ok(Shared {
            start: Instant::now(),
            guest: eventfd(0, EventfdFlags::CLOEXEC)?,
            signaller: eventfd(0, EventfdFlags::CLOEXEC)?,
            asked: AtomicU64::new(0),
            ran_at: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The worker, which stays awake while the guest sleeps.
    fn run_worker(&self, signaller: Signaller, args: &Args, times: &mut Times) -> io::Result<()> {
        let gap = u64::from(args.gap) * 1000;
        for number in 1..=u64::from(args.interrupts) {
            let begin = self.now();
            while self.now() < begin + gap {
                std::hint::spin_loop();
            }
            let before = self.now();
            match signaller {
                Signaller::Worker => signal(&self.guest)?,
                Signaller::Asleep => signal(&self.signaller)?,
                Signaller::Polling => self.asked.store(number, Ordering::Release),
            }
            let after = self.now();
            while self.interrupts.load(Ordering::Acquire) < number {
                if self.now() > after + LIMIT.as_nanos() as u64 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::hint::spin_loop();
            }
            let ran_at = self.ran_at.load(Ordering::Relaxed);
            let us = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e3;
            times.worker.push(us(before, after));
            times.delay.push(us(before, ran_at));
        }
        Ok(())
    }

    fn run_guest(&self) -> io::Result<()> {
        pin(GENERATOR_CPU)?;
        loop {
            wait(&self.guest)?;
            if self.ends.load(Ordering::Acquire) {
                return Ok(());
            }
            self.ran_at.store(self.now(), Ordering::Relaxed);
            self.interrupts.fetch_add(1, Ordering::Release);
        }
    }

    fn run_signaller(&self, signaller: Signaller) -> io::Result<()> {
        pin(thread_cpu())?;
        let mut done = 0;
        loop {
            let asked = match signaller {
                Signaller::Worker => return Ok(()),
                Signaller::Asleep => wait(&self.signaller).map(|()| done + 1)?,
                Signaller::Polling => self.asked.load(Ordering::Acquire),
            };
            if self.ends.load(Ordering::Acquire) {
                return Ok(());
            }
            if asked != done {
                done = asked;
                signal(&self.guest)?;
            }
            std::hint::spin_loop();
        }
    }

    /// Ends the threads.
    fn end(&self) {
        self.ends.store(true, Ordering::Release);
        for asleep in [&self.guest, &self.signaller] {
            // A counter that is full wakes as well.
            let _ = signal(asleep);
        }
    }
}

fn signal(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::write(fd, &1u64.to_ne_bytes()).map(drop)?)
}

/// Sleeps until the eventfd is written.
fn wait(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::read(fd, &mut [0; 8]).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signaller_interrupts_the_guest() {
        let args = Args { interrupts: 2, gap: 1 };
        let text = table(&args).unwrap();
        for signaller in Signaller::ALL {
            let row = text.lines().find(|line| line.contains(signaller.name())).unwrap();
            assert!(!row.contains('-'), "{text}");
        }
        assert!(text.contains("guest on CPU 0"), "{text}");
    }
}
