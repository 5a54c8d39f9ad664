//! The traffic generator: simulates guests.
//!
//! The generator is the driver side of vhost-user for pairs of guests. It sends numbered frames
//! from one to the other through any back-end, and checks every frame that arrives. One thread
//! simulates all guests by default, so that the generator uses one CPU and the back-end has the
//! others.
//!
//! `packet`, `order`, `pool`, `gaps` and `time` are pure; `endpoint` moves frames between them and
//! the rings; `engine` is the loop. The back-end is not trusted: every mistake
//! of a back-end ends in an [`Error`] or in a count of the [`Report`].

mod args;
mod connect;
mod direction_counters;
mod endpoint;
mod engine;
mod gaps;
mod order;
mod packet;
mod plan;
mod pool;
mod receive;
mod report;
mod time;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ring::Violation;
use ring::driver::{BadUsed, DriverRing};
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use vhost_user_driver::DriverError;

pub use args::{Args, Directions, HeaderPlace, Layout, Port, Sources, Verify};
pub use gaps::GapDistribution;
pub(crate) use gaps::Gaps;
pub use packet::mac;
pub use report::{Direction, Latency, Report, Shares};

use crate::cpu::{self, Snapshot};
use connect::Door;
use direction_counters::DirectionCounters;
pub(crate) use endpoint::Endpoint;
use endpoint::{Role, Sender};
use engine::{Engine, Outcome, Phases};
use packet::{Ends, Shape};
use receive::Receiver;
pub(crate) use time::Clock;
use time::Pace;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that contradict each other, or the back-end.
    #[error("{0}")]
    Options(String),
    /// A socket could not be opened.
    #[error("socket {path}: {error}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Negotiation with the back-end failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The guest's memory is not accessible at an address.
    #[error("guest memory: {0}")]
    Memory(#[from] Violation),
    /// The back-end broke the ring protocol.
    #[error("the back-end broke the protocol on a {ring} ring of guest {guest}: {error}")]
    Used {
        /// Number of the guest.
        guest: u16,
        /// Tx or Rx.
        ring: &'static str,
        /// The error of the device.
        error: BadUsed,
    },
    /// Nothing came through.
    #[error(
        "no frame came to guest {guest} within {seconds} s: does the back-end connect the sockets?"
    )]
    Silence {
        /// Number of the guest.
        guest: u16,
        /// The time waited, in seconds.
        seconds: f64,
    },
    /// Sleeping failed.
    #[error("waiting for interrupts: {0}")]
    Wait(io::Error),
    /// A CPU to run on does not exist.
    #[error("running on CPU {cpu}: {error}")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// The system's error.
        error: io::Error,
    },
    /// The run was interrupted before anything was measured.
    #[error("interrupted")]
    Interrupted,
}

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
        [first, ..] if first.packed => play::<PackedDriver>(all, first, stop),
        [first, ..] => play::<SplitDriver>(all, first, stop),
    }
}

fn play<R: DriverRing>(
    all: &[Args],
    first: &Args,
    stop: &AtomicBool,
) -> Result<Vec<Report>, Error> {
    let clock = Clock::start();
    let mut endpoints = Vec::new();
    for args in all {
        endpoints.extend(meet::<R>(args, clock, stop)?);
    }
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let patient = all.iter().all(|args| !args.is_open());
    let phases = Phases { warm: ns(first.warm_up), measured: ns(first.duration), patient };
    let (mut outcomes, cpu) = run_threads(endpoints, first, clock, phases, stop)?;
    let of = |args: &Args| {
        let all = std::mem::take(&mut outcomes);
        let (own, others) =
            all.into_iter().partition(|outcome| args.numbers().contains(&outcome.role.number));
        outcomes = others;
        report(args, own, cpu)
    };
    Ok(all.iter().map(of).collect())
}

/// Connects the guests of `args`, and waits until the announcements of all have arrived. Returns
/// the guests ready to send.
///
/// # Errors
/// As [`run`].
pub(crate) fn meet<R: DriverRing>(
    args: &Args,
    clock: Clock,
    stop: &AtomicBool,
) -> Result<Vec<Endpoint<R>>, Error> {
    let deadline = Instant::now() + Duration::from_secs_f64(args.wait);
    let doors = args.ports.iter().map(|port| Door::new(&port.path, args.listens(port)));
    let doors = doors.collect::<Result<Vec<_>, Error>>()?;
    let mut places: Vec<_> = roles(args).into_iter().zip(&doors).collect();
    // The first guest of each pair connects before the second ones: a back-end that assigns guests
    // to its workers in order of connection then gives both of a pair to the same worker.
    places.sort_by_key(|(role, _)| (role.number % 2, role.number));
    let mut endpoints = Vec::new();
    for (role, door) in places {
        endpoints.push(Endpoint::<R>::new(args, role, door.open(deadline)?)?);
    }
    endpoints.sort_by_key(Endpoint::number);
    greet(&mut endpoints, args, clock, stop)?;
    endpoints.iter_mut().for_each(Endpoint::prepare);
    Ok(endpoints)
}

/// The roles of the guests: guests come in pairs, and each sends to the other of its pair or,
/// alone, to itself.
fn roles(args: &Args) -> Vec<Role> {
    // Frames of another run, or of another generator, must not pass.
    let key =
        u64::from(std::process::id()) << 32 ^ Instant::now().elapsed().as_nanos() as u64 ^ now_ns();
    let alone = args.ports.len() == 1;
    let peer = |number: u16| if alone { number } else { number ^ 1 };
    let role = |number| Role { number, peer: peer(number), sender: None, receiver: None };
    let mut roles: Vec<Role> = args.numbers().map(role).collect();
    for from in 0..roles.len() {
        let to = if alone { from } else { from ^ 1 };
        if !alone && from > to && args.direction == Directions::One {
            continue;
        }
        let ends = Ends { from: args.number + from as u16, to: args.number + to as u16 };
        let shape = Shape::new(ends, args.size, args.tso.then_some(args.mss), args.verify, key);
        let shape = shape.with_sources(args.sources);
        let counters = Arc::new(DirectionCounters::default());
        let pace = pace(args, from as u64);
        let receiver =
            Receiver::new(shape.clone(), counters.clone(), args.flows(), !pace.is_open());
        let flows = vec![0; args.flows() as usize].into();
        if let Some(role) = roles.get_mut(to) {
            role.receiver = Some(receiver);
        }
        if let Some(role) = roles.get_mut(from) {
            role.sender = Some(Sender { shape, counters, pace, flows, bursts: 0, full: 0 });
        }
    }
    roles
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// The pace of sender number `from`. Two senders have different gaps.
fn pace(args: &Args, from: u64) -> Pace {
    match (args.window, args.rate) {
        (Some(frames), _) => Pace::Window { frames, progress: (0, 0) },
        (_, Some(0)) => Pace::Rate { pps: 0, since: 0, spent: 0 },
        (_, Some(pps)) => match Gaps::new(args.gaps, 1e9 / pps as f64, from + 1) {
            Some(gaps) => Pace::Gaps { gaps, next: 0, ready: 0 },
            None => Pace::Rate { pps, since: 0, spent: 0 },
        },
        _ => Pace::Open,
    }
}

/// Has every guest announce itself until all announcements have arrived: the back-end is then
/// ready, and knows all guests.
fn greet<R: DriverRing>(
    endpoints: &mut [Endpoint<R>],
    args: &Args,
    clock: Clock,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let deadline = clock.now() + (args.wait * 1e9) as u64;
    // A back-end that distributes flows over queues learns from the frames of this time that the
    // queues which came last are idle. Flows that began sooner would all stay on the first queue.
    let enough = clock.now() + if args.queues > 1 { 400_000_000 } else { 0 };
    let mut next = 0;
    loop {
        let (now, silent) = (clock.now(), endpoints.iter().position(|e| !e.is_greeted()));
        if silent.is_none() && now >= enough {
            return wait_until_idle(endpoints, clock);
        }
        if stop.load(Relaxed) {
            return Err(Error::Interrupted);
        }
        if let Some(guest) = silent.filter(|_| now > deadline) {
            return Err(Error::Silence { guest: guest as u16, seconds: args.wait });
        }
        if now >= next {
            endpoints.iter_mut().try_for_each(Endpoint::announce)?;
            next = now + 50_000_000;
        }
        for endpoint in endpoints.iter_mut() {
            endpoint.receive(clock)?;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Announcements that are still in the rings must be gone before their buffers are used for frames.
fn wait_until_idle<R: DriverRing>(
    endpoints: &mut [Endpoint<R>],
    clock: Clock,
) -> Result<(), Error> {
    let end = clock.now() + 20_000_000;
    while clock.now() < end || endpoints.iter().any(|e| e.is_sending()) {
        for endpoint in endpoints.iter_mut() {
            endpoint.receive(clock)?;
            endpoint.reclaim()?;
        }
        if clock.now() > end + 1_000_000_000 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Runs the guests on their threads, and watches the CPUs meanwhile.
fn run_threads<R: DriverRing>(
    endpoints: Vec<Endpoint<R>>,
    args: &Args,
    clock: Clock,
    phases: Phases,
    stop: &AtomicBool,
) -> Result<(Vec<Outcome>, Shares), Error> {
    let mut hands: Vec<Vec<Endpoint<R>>> = (0..args.threads).map(|_| Vec::new()).collect();
    for (i, endpoint) in endpoints.into_iter().enumerate() {
        hands[i % args.threads].push(endpoint);
    }
    thread::scope(|scope| {
        let start = |(i, hand): (usize, Vec<Endpoint<R>>)| {
            let cpu = args.cpu.get(i).copied();
            scope.spawn(move || {
                cpu.map_or(Ok(()), pin)?;
                Engine::new(hand, clock, args.interrupts)?.run(phases, stop)
            })
        };
        let threads: Vec<_> = hands.into_iter().enumerate().map(start).collect();
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
        let gbps = mpps * f64::from(receiver.frame_len()) * 8.0 / 1e3;
        let (latency, first_fault) = receiver.into_parts();
        directions.push(Direction {
            from: role.peer,
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
        size: args.size,
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
