//! The guests of a run: their roles, their connections, and their announcements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ring::driver::DriverRing;

use super::args::{Args, Directions};
use super::connect::PortSocket;
use super::direction_counters::DirectionCounters;
use super::endpoint::{Endpoint, Role, Sender};
use super::error::Error;
use super::gaps::Gaps;
use super::packet::{Ends, Shape};
use super::receive::Receiver;
use super::time::{Clock, Pace, Progress};

/// Connects the guests of `args`, and waits until the announcements of all have arrived. Returns
/// the guests ready to send.
///
/// # Errors
/// As [`run`](super::run).
pub fn connect_guests<R: DriverRing>(
    args: &Args,
    clock: Clock,
    stop: &AtomicBool,
) -> Result<Vec<Endpoint<R>>, Error> {
    let deadline = Instant::now() + Duration::from_secs_f64(args.wait);
    let sockets = args.ports.iter().map(|port| PortSocket::new(&port.path, args.listens(port)));
    let sockets = sockets.collect::<Result<Vec<_>, Error>>()?;
    let mut places: Vec<_> = roles(args).into_iter().zip(&sockets).collect();
    // The first guest of each pair connects before the second ones: a back-end that assigns guests
    // to its workers in order of connection then gives both of a pair to the same worker.
    places.sort_by_key(|(role, _)| (role.number % 2, role.number));
    let mut endpoints = Vec::new();
    for (role, socket) in places {
        endpoints.push(Endpoint::<R>::new(args, role, socket.open(deadline)?)?);
    }
    endpoints.sort_by_key(Endpoint::number);
    exchange_announcements(&mut endpoints, args, clock, stop)?;
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
        (Some(frames), _) => Pace::Window { frames, progress: Progress::default() },
        (_, Some(0)) => Pace::Rate { pps: 0, since: 0, spent: 0 },
        (_, Some(pps)) => match Gaps::new(args.gaps, 1e9 / pps as f64, from + 1) {
            Some(gaps) => Pace::Gaps { gaps, next: 0, ready: 0 },
            None => Pace::Rate { pps, since: 0, spent: 0 },
        },
        _ => Pace::Open,
    }
}

/// Makes every guest announce itself until all announcements have arrived. The back-end is then
/// ready, and knows all guests.
fn exchange_announcements<R: DriverRing>(
    endpoints: &mut [Endpoint<R>],
    args: &Args,
    clock: Clock,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let deadline = clock.now() + (args.wait * 1e9) as u64;
    // A back-end that distributes flows over queues learns during this time that the last queues
    // are idle. Flows that began sooner would all stay on the first queue.
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
