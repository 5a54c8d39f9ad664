//! The program whose instructions are counted: guests and a worker, on one thread.
//!
//! The guests are the generator's, the ports real vhost-user devices, fabric and switch the
//! daemon's; but this program drives the worker, one round after each burst, and simulates its
//! time. So each run executes the same instructions.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use frame::{Mac, Prefix};
use load::{Args, Clock, Device, Endpoint, Guests};
use network::capture::{Capture, CaptureSpec};
use network::fabric::{Fabric, Workers};
use network::manual::ManualWorker;
use network::restrictions::{Restrictions, RestrictionsTemplate};
use network::token_bucket::{Rate, Unit};
use ring::driver::DriverRing;
use ring::packed::driver::PackedDriver;
use ring::split::driver::SplitDriver;
use switch::{PortId, PortRule, SourceGuard};
use vhost_user::net::{Port, PortConfig};

use super::case::{Case, Setting};
use crate::error::InstructionsError as Error;
use crate::tap;

/// Time of a round by the worker's clock, without its frames.
const ROUND: Duration = Duration::from_micros(1);
/// The idle time before the first burst, which is longer than an empty queue is polled.
const IDLE: Duration = Duration::from_millis(100);
/// Time of a frame.
const FRAME: Duration = Duration::from_nanos(50);

/// One round of the worker that is counted: counting begins when this function is entered, and ends
/// when it is left. Its name is known to [`super::callgrind`].
#[inline(never)]
fn counted_round(worker: &mut ManualWorker, now: Instant) -> bool {
    std::hint::black_box(worker).run_once(now)
}

/// Runs `case`. Returns how many frames the counted rounds carried.
///
/// # Errors
/// When a port cannot be started, or when a round did not carry exactly the frames that were sent.
pub fn run_case(case: &Case) -> Result<u64, Error> {
    let began = Instant::now();
    let dir = tempfile::Builder::new()
        .prefix("ringmain-")
        .tempdir()
        .map_err(|e| Error::system("make a folder", e))?;
    let sockets: Vec<PathBuf> =
        (0..case.guests).map(|number| dir.path().join(number.to_string())).collect();
    let ports: Vec<_> = sockets.iter().map(|socket| socket.display().to_string()).collect();
    let from = if case.tap { format!("--from {}", tap::NAME) } else { String::new() };
    let line = format!("--ports {} {from} {}", ports.join(","), case.options);
    let args = Args::from_words(line.split_whitespace())
        .map_err(|e| load::Error::Options(e.to_string()))?;
    let workers = Workers { count: 1, ..Workers::default() };
    let (fabric, workers) =
        Fabric::manual(&workers).map_err(|e| Error::system("make a worker", e))?;
    let fabric = Arc::new(fabric);
    let mut worker = workers.into_iter().next().ok_or(Error::Stuck { sent: 0, left: 0 })?;
    if case.tap {
        tap::enter_network()?;
    }
    let start_tap = || case.tap.then(|| tap::start(&fabric)).transpose();
    let tap = worker.run_while(start_tap)?;
    let devices = worker.run_while(|| {
        let config = |socket: &Path, number| PortConfig {
            restrictions: restrictions(case.setting),
            rule: rule(case.setting, number),
            ..PortConfig::new(socket, args.queues)
        };
        let start = |(socket, number): (&PathBuf, u16)| {
            Port::start(Arc::clone(&fabric), config(socket, number))
        };
        sockets.iter().zip(0..).map(start).collect::<Result<Vec<_>, _>>()
    })?;
    let ports = devices.iter().map(Port::port).collect();
    let capture = worker.run_while(|| capture(case.setting, &fabric, ports));
    let outcome = capture.and_then(|mut capture| {
        let counted = match args.packed {
            true => traffic::<PackedDriver>(case, &args, &mut worker, capture.as_mut(), began),
            false => traffic::<SplitDriver>(case, &args, &mut worker, capture.as_mut(), began),
        };
        // Captures can also be ended only while the worker runs.
        worker.run_while(|| drop(capture));
        counted
    });
    // With or without an error: ports can be removed only while the worker runs.
    worker.run_while(|| drop((devices, tap)));
    outcome
}

/// Restrictions that hold nothing back: a terabit and a thousand million frames per second, and all
/// addresses that the generator uses (10.76.0.0/16).
fn restrictions(setting: Setting) -> Restrictions {
    const RATES: [(Unit, Rate); 2] = [
        (Unit::Bytes, Rate { per_second: 125_000_000_000, burst: 1 << 30 }),
        (Unit::Items, Rate { per_second: 1_000_000_000, burst: 10_000_000 }),
    ];
    let mut template = RestrictionsTemplate::default();
    match setting {
        Setting::None | Setting::Capture => {}
        Setting::Rate => template.transmit = RATES[..1].to_vec(),
        Setting::Rates => {
            (template.transmit, template.receive) = (RATES.to_vec(), RATES.to_vec());
        }
        Setting::Addresses | Setting::Guard => {
            let addresses = Prefix::new(IpAddr::from([10, 76, 0, 0]), 16);
            template.guard = Some(Arc::new(SourceGuard::new(addresses.into_iter().collect())));
        }
    }
    template.instantiate()
}

/// The rule of the port of the generator's guest `number`.
fn rule(setting: Setting, number: u16) -> PortRule {
    let mac = (setting == Setting::Guard).then(|| Mac(load::mac(number)));
    PortRule { mac, ..PortRule::default() }
}

/// The capture of these ports, if the setting is one.
fn capture(
    setting: Setting,
    fabric: &Arc<Fabric>,
    ports: Vec<PortId>,
) -> Result<Option<Capture>, Error> {
    if setting != Setting::Capture {
        return Ok(None);
    }
    let spec = CaptureSpec { ports, snaplen: u32::MAX, filter: None };
    Ok(Some(fabric.capture(&spec)?))
}

fn traffic<R: DriverRing>(
    case: &Case,
    args: &Args,
    worker: &mut ManualWorker,
    capture: Option<&mut Capture>,
    began: Instant,
) -> Result<u64, Error> {
    let clock = Clock::start();
    let connect = || load::connect_guests::<R>(args, clock, &AtomicBool::new(false));
    let Guests { endpoints: guests, device } = worker.run_while(connect)?;
    // The same part of a second in every run, so that work which is done once a second is always
    // done at the same place.
    let now =
        began + Duration::from_secs(began.elapsed().as_secs() + 1) + Duration::from_millis(250);
    // Queues that have nothing are armed before the first burst. A port whose queues were still
    // polled would share the worker with the sender, and a burst on each of two queues is more than
    // one round's share.
    worker.run_once(now - IDLE);
    let mut stage = Stage { guests, device, clock, now, sleeps: args.interrupts, capture };
    // The guests have announced themselves.
    stage.read_capture();
    for _ in 0..case.warm {
        stage.exchange(|now| worker.run_once(now))?;
    }
    let mut frames = 0;
    for _ in 0..case.counted {
        frames += stage.exchange(|now| counted_round(worker, now))?;
    }
    Ok(frames)
}

/// The guests, the device that sends to them, the reader of a capture, and the time by the worker's
/// clock.
struct Stage<'a, R> {
    guests: Vec<Endpoint<R>>,
    device: Option<Device>,
    clock: Clock,
    now: Instant,
    sleeps: bool,
    capture: Option<&'a mut Capture>,
}

impl<R: DriverRing> Stage<'_, R> {
    /// All senders send a burst, the worker makes a round, and all receivers take the frames that
    /// came. Returns how many were sent.
    fn exchange(&mut self, round: impl FnOnce(Instant) -> bool) -> Result<u64, Error> {
        let mut sent = 0;
        for guest in &mut self.guests {
            sent += guest.transmit(self.clock)?;
        }
        if let Some(device) = &mut self.device {
            sent += device.transmit(self.clock)?;
        }
        if self.sleeps {
            self.guests.iter_mut().for_each(|guest| {
                guest.arm();
            });
        }
        self.now += ROUND + FRAME * sent as u32;
        round(self.now);
        for guest in &mut self.guests {
            if self.sleeps {
                guest.disarm();
            }
            while guest.receive(self.clock)? > 0 {}
        }
        let senders = self.guests.iter().filter_map(Endpoint::sender);
        let senders = senders.chain(self.device.iter().map(Device::sender));
        let left = senders.map(|sender| sender.counters.under_way()).sum();
        if sent == 0 || left > 0 {
            return Err(Error::Stuck { sent, left });
        }
        let sent = sent as u64;
        // Each frame was seen where it was sent and where it was received.
        match self.read_capture() {
            Some(read) if read != 2 * sent => Err(Error::Captured { read, frames: 2 * sent }),
            _ => Ok(sent),
        }
    }

    /// Empties the rings of the capture, so that the next round has room in them. Returns how many
    /// frames were there, if there is a capture.
    fn read_capture(&mut self) -> Option<u64> {
        let capture = self.capture.as_mut()?;
        let portions = std::iter::from_fn(|| Some(capture.read(|_| ())).filter(|read| *read > 0));
        Some(portions.map(|read| read as u64).sum())
    }
}
