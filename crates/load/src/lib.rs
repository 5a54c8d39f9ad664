//! The traffic generator: simulates guests.
//!
//! The generator is the driver side of vhost-user for pairs of guests. It sends numbered frames
//! from one to the other through any back-end, and checks every frame that arrives. One thread
//! simulates all guests by default, so that the generator uses one CPU and the back-end has the
//! others.
//!
//! `packet`, `order`, `pool`, `gaps` and `time` are pure; `endpoint` moves frames between them and
//! the rings; `engine` is the loop. The back-end is not trusted: every mistake of a back-end ends
//! in an [`Error`] or in a count of the [`Report`].

#![forbid(unsafe_code)]

mod args;
mod connect;
pub mod cpu;
mod device;
mod direction_counters;
mod endpoint;
mod engine;
mod error;
mod gaps;
mod guests;
mod lengths;
mod order;
mod packet;
mod plan;
mod pool;
mod port;
mod receive;
mod report;
mod shapes;
mod time;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ring::driver::DriverRing;
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;

pub use args::{Args, Directions, HeaderPlace, Layout, Sources, Verify};
pub use error::Error;
pub use gaps::GapDistribution;
pub use gaps::Gaps;
pub use packet::mac;
pub use port::Port;
pub use report::{Direction, Latency, Report, Shares};

use cpu::Snapshot;
pub use device::Device;
pub use endpoint::Endpoint;
use engine::{Engine, Outcome, Phases};
pub use guests::{Guests, connect_guests};
pub use time::Clock;

/// Connects, sends, receives and reports, as `args` say.
///
/// # Errors
/// When there is nothing to report: options, sockets, negotiation, silence, or a back-end that
/// breaks the protocol.
pub fn run(args: &Args) -> Result<Report, Error> {
    run_until(args, &AtomicBool::new(false))
}

/// Like [`run`], but ends early, with a report up to then, when `stop` becomes true.
///
/// # Errors
/// As [`run`].
pub fn run_until(args: &Args, stop: &AtomicBool) -> Result<Report, Error> {
    run_together(std::slice::from_ref(args), stop)?.pop().ok_or(Error::Interrupted)
}

/// Runs several generators in turn on the same threads, so that pairs of guests can send different
/// traffic. Each generator has guest numbers of its own. Times, threads, CPUs, interrupts and the
/// kind of rings are those of the first one. Returns a report for each.
///
/// # Errors
/// As [`run`].
pub fn run_together(all: &[Args], stop: &AtomicBool) -> Result<Vec<Report>, Error> {
    all.iter().try_for_each(Args::check)?;
    match all {
        [] => Ok(Vec::new()),
        [first, ..] if first.packed => run_generators::<PackedDriver>(all, first, stop),
        [first, ..] => run_generators::<SplitDriver>(all, first, stop),
    }
}

fn run_generators<R: DriverRing>(
    all: &[Args],
    first: &Args,
    stop: &AtomicBool,
) -> Result<Vec<Report>, Error> {
    let clock = Clock::start();
    let (mut endpoints, mut devices) = (Vec::new(), Vec::new());
    for args in all {
        let guests = connect_guests::<R>(args, clock, stop)?;
        endpoints.extend(guests.endpoints);
        devices.extend(guests.device);
    }
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let patient = all.iter().all(|args| !args.is_open());
    let phases = Phases { warm: ns(first.warm_up), measured: ns(first.duration), patient };
    let (mut outcomes, cpu) = run_threads((endpoints, devices), first, clock, phases, stop)?;
    let of = |args: &Args| {
        let all = std::mem::take(&mut outcomes);
        let (own, others) =
            all.into_iter().partition(|outcome| args.numbers().contains(&outcome.role.number));
        outcomes = others;
        report(args, own, cpu)
    };
    Ok(all.iter().map(of).collect())
}

/// Runs the guests on their threads, and watches the CPUs meanwhile. Devices send on the first one.
fn run_threads<R: DriverRing>(
    (endpoints, mut devices): (Vec<Endpoint<R>>, Vec<Device>),
    args: &Args,
    clock: Clock,
    phases: Phases,
    stop: &AtomicBool,
) -> Result<(Vec<Outcome>, Shares), Error> {
    let mut groups: Vec<Vec<Endpoint<R>>> = (0..args.threads).map(|_| Vec::new()).collect();
    // In a closed loop, a sender that sleeps is woken by what its own thread receives: a pair stays
    // together where that is possible.
    let together = if args.threads * 2 <= endpoints.len() { 2 } else { 1 };
    for (i, endpoint) in endpoints.into_iter().enumerate() {
        groups[i / together % args.threads].push(endpoint);
    }
    thread::scope(|scope| {
        let start = |(i, group): (usize, Vec<Endpoint<R>>)| {
            let (cpu, devices) = (args.cpu.get(i).copied(), std::mem::take(&mut devices));
            scope.spawn(move || {
                cpu.map_or(Ok(()), pin)?;
                Engine::new(group, devices, clock, args.interrupts)?.run(phases, stop)
            })
        };
        let threads: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        let done = || stop.load(Relaxed) || threads.iter().any(|t| t.is_finished());
        sleep(phases.warm, done);
        let pids: Vec<u32> = [std::process::id()].into_iter().chain(args.backend_pid).collect();
        let before = Snapshot::now(&pids);
        sleep(phases.measured, done);
        let shares = Shares::of(&Snapshot::now(&pids).since(&before));
        let mut outcomes = Vec::new();
        for thread in threads {
            outcomes
                .extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        outcomes.sort_by_key(|outcome| outcome.role.number);
        Ok((outcomes, shares))
    })
}

/// Sleeps for `ns`, or until `done`.
fn sleep(ns: u64, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_nanos(ns);
    while !done() {
        match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left.min(Duration::from_millis(50))),
            _ => return,
        }
    }
}

fn pin(cpu: usize) -> Result<(), Error> {
    cpu::pin(cpu).map_err(|error| Error::Cpu { cpu, error })
}

fn report(args: &Args, outcomes: Vec<Outcome>, cpu: Shares) -> Report {
    let (mut directions, mut seconds) = (Vec::new(), 0.0f64);
    let (mut kicks, mut interrupts, mut strays) = (0, 0, 0);
    let (mut bursts, mut full) = (0, 0);
    for Outcome { role, doorbells, marks: [warm, end] } in outcomes {
        kicks += doorbells.kicks;
        interrupts += doorbells.interrupts;
        strays += doorbells.strays;
        if let Some(sender) = &role.sender {
            bursts += sender.bursts;
            full += sender.full;
        }
        let Some(receiver) = role.receiver else { continue };
        let measured = end.time.saturating_sub(warm.time).max(1) as f64 / 1e9;
        seconds = seconds.max(measured);
        let (counts, sent) = (receiver.counts(), receiver.counters().sent());
        let mpps = (end.counts.good - warm.counts.good) as f64 / measured / 1e6;
        let gbps = mpps * receiver.mean_len() * 8.0 / 1e3;
        let from = receiver.from();
        let (latency, first_fault) = receiver.into_parts();
        directions.push(Direction {
            from,
            to: role.number,
            mpps,
            gbps,
            sent,
            received: counts.good,
            lost: sent.saturating_sub(counts.good + counts.corrupt),
            corrupt: counts.corrupt,
            reordered: counts.reordered,
            duplicate: counts.duplicate,
            latency: Latency::of(&latency),
            first_fault,
        });
    }
    Report {
        size: args.largest(),
        queues: args.queues,
        flows: args.flows(),
        seconds,
        mpps: directions.iter().map(|d| d.mpps).sum(),
        gbps: directions.iter().map(|d| d.gbps).sum(),
        directions,
        kicks,
        interrupts,
        full: full as f64 / (bursts + full).max(1) as f64 * 100.0,
        strays,
        cpu,
        disturbed: cpu.others > args.disturbed_above || cpu.stolen > args.disturbed_above,
    }
}
