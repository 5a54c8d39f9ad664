//! The giver: the running daemon, from which another process takes over.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use network::fabric::{Fabric, InFlight, Kept};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use switch::{PortId, Station};
use tracing::{info, warn};
use vhost_user::transport::saved::SavedListener;

use super::channel::Channel;
use super::message::{FORMAT, FromGiver, FromTaker, PausedPort, SavedAddresses, SavedStation};
use super::port::{HandOver, Pending};
use crate::api::Manifest;
use crate::ports::Ports;

/// The time that the taker has to start up.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that the taker has to map the guests' memory, and for all messages of that step.
const STATE_TIMEOUT: Duration = Duration::from_secs(20);
/// The time that the taker has to declare that it has taken the rings. Guests wait meanwhile, but a
/// taker that ends before is noticed at once.
const TAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of attempts to take the queues from the workers without a loss. Guests that take
/// frames slowly delay a queue that sends to them.
const LOSSLESS_ATTEMPTS: u32 = 20;

/// The number of attempts after which the hand-over fails. In those beyond [`LOSSLESS_ATTEMPTS`],
/// frames for full guests are dropped, so that no guest can prevent an upgrade of the daemon.
const ATTEMPTS: u32 = 30;

/// The pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// A listening socket of the daemon.
#[derive(Clone)]
pub(crate) struct Shared {
    /// The socket.
    pub socket: Arc<OwnedFd>,
    /// Device and number of its file, if it has one.
    pub file: Option<(u64, u64)>,
}

/// The listening sockets of the daemon.
#[derive(Clone, Default)]
struct Listeners {
    control: Option<Shared>,
    metrics: Option<Shared>,
}

/// A function that ends the process, called once.
pub(crate) type End = Box<dyn FnOnce() + Send>;

/// The giver's state apart from its ports: listening sockets, and the function that ends the
/// process.
#[derive(Default)]
pub(crate) struct Giver {
    /// Locked for a whole hand-over.
    one: Mutex<()>,
    listeners: Mutex<Listeners>,
    handed_over: AtomicBool,
    end: Mutex<Option<End>>,
}

/// Why the hand-off failed and the daemon continues.
type Reason = String;

fn broken(what: &str) -> impl Fn(io::Error) -> Reason {
    move |error| format!("the new process {what} ({error})")
}

impl Giver {
    /// Sets the daemon's listening sockets.
    pub fn set_listeners(&self, control: Shared, metrics: Option<Shared>) {
        *self.listeners.lock() = Listeners { control: Some(control), metrics };
    }

    /// Sets the function that ends the process after a take-over.
    pub fn set_end(&self, end: End) {
        *self.end.lock() = Some(end);
    }

    /// Whether everything that the process would remove at its end belongs to another process.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// The list of what the daemon serves, in a format that the taker understands.
    ///
    /// # Errors
    /// All obstacles, in lines for people.
    pub fn manifest(
        formats: &[u32],
        ports: &Ports,
        disks: Vec<String>,
        metrics: Option<String>,
    ) -> Result<Manifest, String> {
        if !formats.contains(&FORMAT) {
            return Err(format!(
                "the running daemon hands over state of format {FORMAT}, and the new process \
                 understands formats {formats:?}: restart the daemon instead"
            ));
        }
        let cannot = |what: String| format!("{what} cannot be handed over to a new process");
        let mut obstacles: Vec<String> =
            disks.into_iter().map(|name| cannot(format!("disk {name:?}"))).collect();
        let (ports, others) = ports.manifest();
        obstacles.extend(
            others.into_iter().map(|(name, kind)| cannot(format!("port {name:?} of kind {kind}"))),
        );
        match obstacles.is_empty() {
            true => {
                let release = env!("CARGO_PKG_VERSION").to_owned();
                Ok(Manifest { format: FORMAT, release, ports, metrics })
            }
            false => Err(obstacles.join("\n")),
        }
    }

    /// Begins a hand-off. `None`: another one is under way.
    pub fn try_begin(&self) -> Option<parking_lot::MutexGuard<'_, ()>> {
        self.one.try_lock()
    }

    /// Hands everything over to the process at the other end of `stream`, which has the manifest.
    /// Returns, with the reason, if this process continues. `obstacles` lists everything that
    /// cannot be handed over now: more may have come since the manifest.
    pub fn give(
        &self,
        stream: UnixStream,
        fabric: &Fabric,
        ports: &Mutex<Ports>,
        obstacles: impl FnOnce(&Ports) -> Result<(), String>,
    ) -> Reason {
        let mut channel = Channel::new(stream);
        match channel.receive(Instant::now() + START_TIMEOUT) {
            Ok(received) if matches!(received.message, FromTaker::Prepare) => {}
            Ok(_) => return protocol(),
            Err(error) => return broken("refused, or went away")(error),
        }
        // Requests for ports wait from here on.
        let ports = ports.lock();
        let mut parked = Parked { fabric, ports: Vec::new(), is_held: false };
        let handed_over =
            obstacles(&ports).and_then(|()| self.hand_over(&mut channel, &ports, &mut parked));
        match handed_over {
            Err(reason) => {
                drop(parked);
                let answer = FromGiver::Refused(reason.clone());
                // Sending may fail: the new process may be the cause of the failure.
                let _ = channel.send(&answer, b"", &[], Instant::now() + TAKE_TIMEOUT);
                reason
            }
            Ok(()) => {
                // Everything belongs to the new process now: nothing is removed, and nothing is
                // shut down.
                std::mem::forget(parked);
                info!("handed over to a new process");
                self.handed_over.store(true, Ordering::Release);
                // The new process cuts the connection once it serves the rings. This process waits
                // for that, because unmapping the guests' memory takes processor time that the new
                // process needs.
                let _ = channel.receive::<FromTaker>(Instant::now() + TAKE_TIMEOUT);
                let end = self.end.lock().take();
                if let Some(end) = end {
                    end();
                }
                loop {
                    std::thread::park();
                }
            }
        }
    }

    fn hand_over<'a>(
        &self,
        channel: &mut Channel,
        ports: &'a Ports,
        parked: &mut Parked<'a>,
    ) -> Result<(), Reason> {
        let by = Instant::now() + STATE_TIMEOUT;
        self.send_sockets(channel, by)?;
        for (name, port) in ports.to_hand_over() {
            let (state, files) = port.park().map_err(|error| format!("port {name:?}: {error}"))?;
            parked.ports.push((name, port));
            let message = FromGiver::Port { name: name.to_owned(), state: Box::new(state) };
            channel
                .send(&message, b"", &files.into_inner(), by)
                .map_err(broken("did not take the state"))?;
        }
        let message = stations(parked.fabric, ports);
        channel.send(&message, b"", &[], by).map_err(broken("did not take the state"))?;
        match channel.receive(by).map_err(broken("did not get ready"))?.message {
            FromTaker::Ready => {}
            FromTaker::Prepare | FromTaker::Taken => return Err(protocol()),
        }
        let (mut paused, since) = parked.pause()?;
        for (name, port) in &mut paused {
            port.counts = ports.counts(name);
        }
        let by = Instant::now() + TAKE_TIMEOUT;
        let bytes: Vec<&[u8]> = paused.iter().map(|(_, port)| &port.bytes[..]).collect();
        let bytes = bytes.concat();
        let message = FromGiver::Positions { ports: paused, since };
        let sent = channel.send(&message, &bytes, &[], by);
        let mut taken = sent.and_then(|()| channel.receive(by));
        if !taken.as_ref().is_ok_and(|said| matches!(said.message, FromTaker::Taken)) {
            // After the cut, the taker can send no further message.
            channel.cut();
            taken = channel.receive(Instant::now() + TAKE_TIMEOUT).or(taken);
        }
        match taken.map_err(broken("did not take the rings"))?.message {
            FromTaker::Taken => Ok(()),
            FromTaker::Prepare | FromTaker::Ready => Err(protocol()),
        }
    }

    fn send_sockets(&self, channel: &mut Channel, by: Instant) -> Result<(), Reason> {
        let Listeners { control, metrics } = self.listeners.lock().clone();
        let control = control.ok_or("the control socket is not in service yet")?;
        let failed = broken("did not take the sockets");
        let copy = |shared: &Shared| shared.socket.as_fd().try_clone_to_owned();
        let sockets = [Some(&control), metrics.as_ref()].into_iter().flatten().map(copy);
        let sockets = sockets.collect::<io::Result<Vec<_>>>().map_err(&failed)?;
        let saved = |socket, shared: &Shared| SavedListener {
            socket,
            file: shared.file.unwrap_or_default(),
        };
        let message = FromGiver::Sockets {
            control: saved(0, &control),
            metrics: metrics.map(|metrics| saved(1, &metrics)),
        };
        channel.send(&message, b"", &sockets, by).map_err(failed)
    }
}

fn protocol() -> Reason {
    "the new process broke the protocol".to_owned()
}

/// The monotonic clock, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What the switch has learned of stations at ports that are handed over.
fn stations(fabric: &Fabric, ports: &Ports) -> FromGiver {
    let names = ports.names();
    let saved = |station: Station, port: PortId| {
        let port = names.get(&port)?.clone();
        Some(SavedStation { vlan: station.network.vid(), mac: station.mac.0, port })
    };
    let learned = fabric.table().into_iter().filter(|row| row.idle.is_some());
    let learned = learned.filter_map(|row| saved(row.station, row.port)).collect();
    let mut addresses: HashMap<SavedStation, Vec<IpAddr>> = HashMap::new();
    for (station, port, address) in fabric.heard_addresses() {
        let Some(station) = saved(station, port) else { continue };
        addresses.entry(station).or_default().push(address);
    }
    let addresses = addresses.into_iter();
    let addresses =
        addresses.map(|(station, addresses)| SavedAddresses { station, addresses }).collect();
    FromGiver::Stations { learned, addresses }
}

/// Ports whose threads wait. Dropping this value lets all of them continue.
struct Parked<'a> {
    fabric: &'a Fabric,
    ports: Vec<(&'a str, &'a dyn HandOver)>,
    /// Whether no worker has a queue.
    is_held: bool,
}

impl Parked<'_> {
    /// Takes all queues from the workers, and stops them. Returns the state of the ports, and the
    /// time at which this began.
    fn pause(&mut self) -> Result<(Vec<(String, PausedPort)>, u64), Reason> {
        let since = self.withdraw()?;
        self.is_held = true;
        let pending: Vec<(&str, Pending<Option<PausedPort>>)> =
            self.ports.iter().map(|(name, port)| (*name, port.pause())).collect();
        let paused = pending.into_iter().map(|(name, paused)| {
            let paused = paused.wait().ok_or_else(|| format!("port {name:?} has ended"))?;
            Ok((name.to_owned(), paused))
        });
        Ok((paused.collect::<Result<_, Reason>>()?, since))
    }

    /// Takes all queues from the workers. Returns the time at which the successful attempt began.
    fn withdraw(&self) -> Result<u64, Reason> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let since = now_ns();
            let in_flight =
                if attempt <= LOSSLESS_ATTEMPTS { InFlight::Wait } else { InFlight::Drop };
            let Err(Kept(port)) = self.fabric.withdraw(in_flight) else { return Ok(since) };
            match attempt {
                ATTEMPTS => return Err(format!("port {port:?} does not leave its worker")),
                LOSSLESS_ATTEMPTS => {
                    warn!(port = %port, "takes frames too slowly; the hand-over drops frames for it");
                }
                ..LOSSLESS_ATTEMPTS => {
                    info!(port = %port, "takes frames slowly; the hand-over waits for it");
                }
                _ => {}
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let pending: Vec<_> = self.ports.iter().map(|(_, port)| port.unpark()).collect();
        pending.into_iter().for_each(Pending::wait);
        if self.is_held {
            self.fabric.release();
            warn!("the queues are back at their workers");
        }
    }
}
