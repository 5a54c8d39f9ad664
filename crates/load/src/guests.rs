//! The guests of a run: their roles, their connections, and their announcements.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ring::driver::DriverRing;

use super::args::{Args, Directions};
use super::connect::PortSocket;
use super::device::Device;
use super::direction_counters::SenderCounters;
use super::endpoint::{Endpoint, Role, Sender};
use super::error::Error;
use super::gaps::Gaps;
use super::packet::{Ends, Shape};
use super::receive::{Incoming, Receiver};
use super::shapes::Shapes;
use super::time::{Clock, Pace, Progress};

/// The senders and receivers of a run.
pub struct Guests<R> {
    /// The guests.
    pub endpoints: Vec<Endpoint<R>>,
    /// The device that sends to them, if they do not send to each other.
    pub device: Option<Device>,
}

/// Connects the guests of `args`, and waits until the announcements of all have arrived. Returns
/// the guests ready to send.
///
/// # Errors
/// As [`run`](super::run).
pub fn connect_guests<R: DriverRing>(
    args: &Args,
    clock: Clock,
    stop: &AtomicBool,
) -> Result<Guests<R>, Error> {
    let deadline = Instant::now() + Duration::from_secs_f64(args.wait);
    let sockets = args.ports.iter().map(|port| PortSocket::new(&port.path, args.listens(port)));
    let sockets = sockets.collect::<Result<Vec<_>, Error>>()?;
    let (roles, sender) = roles(args);
    let mut places: Vec<_> = roles.into_iter().zip(&sockets).collect();
    // The first guest of each pair connects before the second ones: a back-end that assigns guests
    // to its workers in order of connection then gives both of a pair to the same worker.
    places.sort_by_key(|(role, _)| (role.number % 2, role.number));
    let mut endpoints = Vec::new();
    for (role, socket) in places {
        endpoints.push(Endpoint::<R>::new(args, role, socket.open(deadline)?)?);
    }
    endpoints.sort_by_key(Endpoint::number);
    let open = |(name, sender): (&String, _)| {
        Device::open(name, (args.numbers().end, sender), args.burst, args.largest())
    };
    let device = args.from.as_ref().zip(sender).map(open).transpose()?;
    let mut guests = Guests { endpoints, device };
    exchange_announcements(&mut guests, args, clock, stop)?;
    guests.endpoints.iter_mut().for_each(Endpoint::prepare);
    Ok(guests)
}

/// Who sends, and to whom, as indices of ports. Guests come in pairs, and each sends to the other
/// of its pair or, alone, to itself. Or the first one sends to all others. Or a device sends to
/// all; its index is behind the last port's.
fn directions(args: &Args) -> Vec<(usize, Range<usize>)> {
    let count = args.ports.len();
    if args.from.is_some() {
        return vec![(count, 0..count)];
    }
    if args.fan_out {
        return vec![(0, 1..count)];
    }
    let to = |from: usize| if count == 1 { from } else { from ^ 1 };
    let both = args.direction == Directions::Both || count == 1;
    let senders = (0..count).filter(|from| both || *from < to(*from));
    senders.map(|from| (from, to(from)..to(from) + 1)).collect()
}

/// The roles of the guests, and the sender that is none of them.
fn roles(args: &Args) -> (Vec<Role>, Option<Sender>) {
    // Frames of another run, or of another generator, must not pass.
    let key =
        u64::from(std::process::id()) << 32 ^ Instant::now().elapsed().as_nanos() as u64 ^ now_ns();
    let number = |index: usize| args.number + index as u16;
    let role = |number| Role { number, silent: Vec::new(), sender: None, receiver: None };
    let mut roles: Vec<Role> = args.numbers().map(role).collect();
    let mut device = None;
    for (from, to) in directions(args) {
        let make = |receiver: u32, length| {
            let ends = Ends { from: number(from), to: number(to.start + receiver as usize) };
            Shape::new(ends, length, args.tso.then_some(args.mss), args.verify, key)
                .with_sources(args.sources)
        };
        let shapes = Shapes::new(args.lengths(), args.receivers(), make);
        let counters = SenderCounters::new(args.receivers());
        let pace = pace(args, from as u64);
        for ((index, receiver), counters) in to.clone().zip(0..).zip(counters.each()) {
            let (shapes, counters) = (shapes.clone(), Arc::clone(counters));
            let (from, flows) = (number(from), args.flows());
            let incoming = Incoming { from, receiver, shapes, counters, flows };
            if let Some(role) = roles.get_mut(index) {
                role.receiver = Some(Receiver::new(incoming, !pace.is_open()));
                role.silent.push(from);
            }
        }
        let flows = vec![0; args.flows() as usize].into();
        let sender = Sender { shapes, counters, pace, flows, bursts: 0, full: 0 };
        match roles.get_mut(from) {
            Some(role) => {
                role.sender = Some(sender);
                role.silent.extend(to.map(number));
            }
            None => device = Some(sender),
        }
    }
    (roles, device)
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
    Guests { endpoints, device }: &mut Guests<R>,
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
            device.iter().try_for_each(Device::announce)?;
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
