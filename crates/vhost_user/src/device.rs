//! A vhost-user port: a thread that finds front-ends, one at a time, and serves them.
//!
//! Every port has a thread of its own, so that a slow or hostile front-end keeps nobody waiting but
//! itself. The thread sleeps in `poll`, on the socket and on two events: one to end it, one from
//! the workers when a ring breaks the protocol. It never waits for the front-end in any other way,
//! so it ends when it is told to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use network::coalescing::CoalescingLimits;
use network::fabric::{Fabric, FabricError, PortSpec};
use network::poll::PollingPolicy;
use network::port::{QueueError, QueuePair};
use network::topology::QueueId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switch::{PortId, PortRule};
use thiserror::Error;
use tracing::{info, warn};

use crate::connection::{Connection, ConnectionError, Incoming, Message};
use crate::event::Event;
use crate::feature::Features;
use crate::session::{Dock, Offer, Running, Session, SessionError};
use crate::socket::{Listener, SocketError, connect_to};
use crate::status::{Board, PortStatus, State};

/// Most queue pairs of a port: a ring's number has eight bits in the messages that bring
/// descriptors.
pub const MAX_QUEUES: u16 = 128;

/// Shortest pause before a connection is tried again, or accepted again after a violation.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A front-end that is quiet for so long has said what it had to say about its rings, and they are
/// logged.
const QUIET: Duration = Duration::from_millis(100);

/// How long a port's thread may take to end. It never waits for its front-end, but closing a
/// descriptor that a front-end has sent can: a file behind a network or a process of its own, a
/// socket that lingers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Stack of a port's thread.
const STACK: usize = 256 << 10;

/// Who opens the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// We listen, front-ends connect.
    Server,
    /// We connect, and keep trying.
    Client,
}

/// What a port is to be like.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Its name, for logs.
    pub name: String,
    /// Path of its socket.
    pub socket: PathBuf,
    /// Who opens it.
    pub mode: Mode,
    /// Queue pairs that are offered.
    pub queues: u16,
    /// Longest IP packet that it takes, in bytes, and the most that a front-end may tell its
    /// guest.
    pub mtu: Option<u16>,
    /// VLANs and source lock.
    pub rule: PortRule,
    /// How long its receive interrupts wait; `None`: not at all.
    pub coalescing: Option<CoalescingLimits>,
    /// How workers wait for its frames; `None`: as they do for others.
    pub policy: Option<PollingPolicy>,
}

/// Why a port cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// No queue pair, or too many.
    #[error("{0} queue pairs, 1 to {MAX_QUEUES} are possible")]
    Queues(u16),
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The datapath refuses the port.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// No thread or descriptor is left.
    #[error("starting a port: {0}")]
    Os(#[from] io::Error),
}

/// A port that is being served. Dropped, it ends: queues are taken out of the datapath, and its
/// socket removed.
pub struct Device {
    name: String,
    dock: Berth,
    board: Board,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Device {
    /// Adds a port to `fabric` and serves it.
    ///
    /// # Errors
    /// When its socket is taken, its rule impossible, or nothing is left to make it of. Then
    /// nothing has changed.
    pub fn start(fabric: Arc<Fabric>, config: DeviceConfig) -> Result<Device, StartError> {
        if !(1..=MAX_QUEUES).contains(&config.queues) {
            return Err(StartError::Queues(config.queues));
        }
        let stop = Arc::new(Event::new()?);
        let breaks = Arc::new(Breaks { first: Mutex::default(), event: Event::new()? });
        let door = match config.mode {
            Mode::Server => Door::Listener(Listener::bind(&config.socket)?),
            Mode::Client => Door::Path(config.socket.clone()),
        };
        let report = Arc::clone(&breaks);
        let on_error = Arc::new(move |queue, error| report.report(queue, error));
        let DeviceConfig { rule, mtu, coalescing, policy, .. } = config;
        let port = fabric.add_port(PortSpec { rule, mtu, on_error, coalescing, policy })?;
        let board = Board::default();
        let dock = Berth { fabric, port, given_up: Arc::default() };
        let keeper = Keeper {
            name: config.name.clone(),
            door,
            dock: dock.clone(),
            offer: Offer { queues: config.queues, mtu: config.mtu },
            board: board.clone(),
            stop: Arc::clone(&stop),
            breaks,
            pause: PAUSE,
        };
        let thread = std::thread::Builder::new().name(thread_name(&config.name)).stack_size(STACK);
        let (ends, ended) = mpsc::channel();
        let run = move || {
            keeper.run();
            drop::<Sender<()>>(ends);
        };
        let thread = thread.spawn(run).inspect_err(|_| dock.give_up())?;
        Ok(Device { name: config.name, dock, board, stop, thread: Some(thread), ended })
    }

    /// Its number in the datapath.
    pub fn port(&self) -> PortId {
        self.dock.port
    }

    /// How it is doing.
    pub fn status(&self) -> PortStatus {
        self.board.read()
    }

    /// Ends it, and waits until it has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Nobody else has it, so it does not block.
        let _ = self.stop.signal();
        let Some(thread) = self.thread.take() else { return };
        match self.ended.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                warn!(port = %self.name, "its thread is left behind: closing a descriptor keeps it from ending");
            }
            // A thread that panicked has logged it.
            Err(RecvTimeoutError::Disconnected) | Ok(()) => drop(thread.join()),
        }
        self.dock.give_up();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

/// A thread's name has at most 15 bytes; the rest would be cut by the kernel, within a character
/// perhaps.
fn thread_name(port: &str) -> String {
    let short: String = port.chars().filter(char::is_ascii_graphic).take(12).collect();
    format!("rm-{short}")
}

/// The port's place in the datapath.
#[derive(Clone)]
struct Berth {
    fabric: Arc<Fabric>,
    port: PortId,
    /// The port's number is not ours any more, and may be another port's.
    given_up: Arc<Mutex<bool>>,
}

impl Berth {
    /// Removes the port from the datapath, once.
    fn give_up(&self) {
        if !std::mem::replace(&mut *self.lock(), true) {
            self.fabric.remove_port(self.port);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dock for Berth {
    fn attach(&self, index: u16, pair: Box<dyn QueuePair>, receives: bool) -> Option<QueueId> {
        let given_up = self.lock();
        if *given_up { None } else { self.fabric.attach(self.port, index, pair, receives) }
    }

    fn detach(&self, queue: QueueId) -> Option<Box<dyn QueuePair>> {
        self.fabric.detach(queue)
    }
}

/// Where workers report a ring that breaks the protocol.
struct Breaks {
    first: Mutex<Option<(u16, QueueError)>>,
    event: Event,
}

impl Breaks {
    /// Called by a worker: quick, and never waiting for anything slow.
    fn report(&self, queue: u16, error: QueueError) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((queue, error));
        // Nobody else has it, so it does not block.
        let _ = self.event.signal();
    }

    fn take(&self) -> Option<(u16, QueueError)> {
        self.event.clear();
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// How front-ends are found.
enum Door {
    Listener(Listener),
    Path(PathBuf),
}

/// Why a connection ended.
#[derive(Debug, Error)]
enum End {
    #[error("the front-end disconnected")]
    Disconnected,
    #[error("the port is removed")]
    Removed,
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("queue {0}: {1}")]
    Broken(u16, QueueError),
}

impl End {
    /// Whether the front-end is to blame.
    fn is_violation(&self) -> bool {
        !matches!(
            self,
            End::Disconnected | End::Removed | End::Connection(ConnectionError::Socket(_))
        )
    }
}

/// What a wait ended with.
enum Woken {
    Ready,
    Timeout,
    Stop,
    Break,
}

/// A port's thread.
struct Keeper {
    name: String,
    door: Door,
    dock: Berth,
    offer: Offer,
    board: Board,
    stop: Arc<Event>,
    breaks: Arc<Breaks>,
    pause: Duration,
}

impl Keeper {
    fn run(mut self) {
        if let Door::Listener(listener) = &self.door {
            info!(port = %self.name, socket = %listener.path().display(), "listening");
        }
        while let Some(socket) = self.next() {
            let began = Instant::now();
            let end = self.serve(socket);
            self.note(&end);
            if matches!(end, End::Removed) || !self.rest_after(&end, began) {
                break;
            }
        }
        self.dock.give_up();
        self.board.update(|status| status.state = State::Removed);
        info!(port = %self.name, "removed");
    }

    /// The next front-end. `None`: the port is to end.
    fn next(&mut self) -> Option<OwnedFd> {
        match &self.door {
            Door::Listener(_) => self.accept(),
            Door::Path(_) => self.connect(),
        }
    }

    fn accept(&mut self) -> Option<OwnedFd> {
        self.board.update(|status| status.state = State::Listening);
        loop {
            let Door::Listener(listener) = &self.door else { return None };
            match self.wait(Some((listener, PollFlags::IN)), None) {
                Woken::Stop => return None,
                Woken::Break | Woken::Timeout => continue,
                Woken::Ready => {}
            }
            match listener.accept() {
                Ok(Some(socket)) => return Some(socket),
                Ok(None) => {}
                Err(error) => {
                    warn!(port = %self.name, %error, "cannot accept a front-end");
                    if !self.rest(LONGEST_PAUSE) {
                        return None;
                    }
                }
            }
        }
    }

    fn connect(&mut self) -> Option<OwnedFd> {
        self.board.update(|status| status.state = State::Connecting);
        let mut told = false;
        loop {
            let Door::Path(path) = &self.door else { return None };
            match connect_to(path) {
                Ok(socket) => return Some(socket),
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        info!(port = %self.name, %error, "connecting, and trying again until it succeeds");
                    }
                    self.board.update(|status| status.reason = Some(error.to_string()));
                }
            }
            if !self.rest(LONGEST_PAUSE) {
                return None;
            }
        }
    }

    /// Serves one front-end until it goes, breaks the protocol, or the port ends.
    fn serve(&mut self, socket: OwnedFd) -> End {
        let mut connection = Connection::new(socket);
        let peer = connection.peer();
        info!(port = %self.name, peer, "connected");
        self.board.update(|status| {
            status.state = State::Connected;
            status.peer = peer;
            status.connections += 1;
        });
        // What is left of a front-end before this one means nothing any more.
        self.breaks.take();
        let mut session = Session::new(self.dock.clone(), self.offer);
        let end = match self.converse(&mut connection, &mut session) {
            Ok(never) => match never {},
            Err(end) => end,
        };
        session.close(matches!(end, End::Broken(..)));
        end
    }

    fn converse(
        &mut self,
        connection: &mut Connection,
        session: &mut Session<Berth>,
    ) -> Result<std::convert::Infallible, End> {
        let mut seen = Seen::default();
        loop {
            let wanted = if connection.is_clogged() { PollFlags::OUT } else { PollFlags::IN };
            let timeout = seen.is_unsettled(session).then_some(QUIET);
            match self.wait(Some((&*connection, wanted)), timeout) {
                Woken::Stop => return Err(End::Removed),
                Woken::Break => match self.breaks.take() {
                    Some((queue, error)) => return Err(End::Broken(queue, error)),
                    None => continue,
                },
                Woken::Timeout => self.log_rings(session, &mut seen),
                Woken::Ready if connection.is_clogged() => connection.drain()?,
                Woken::Ready => match connection.read()? {
                    Incoming::Nothing => {}
                    Incoming::End => return Err(End::Disconnected),
                    Incoming::Message(message) => {
                        self.answer(message, connection, session, &mut seen)?
                    }
                },
            }
        }
    }

    fn answer(
        &mut self,
        message: Message,
        connection: &mut Connection,
        session: &mut Session<Berth>,
        seen: &mut Seen,
    ) -> Result<(), End> {
        let answer = session.answer(&message.header, &message.payload, message.fds);
        self.log_features(session, seen);
        self.board.update(|status| {
            status.features = session.features();
            status.rings = session.running();
        });
        if let Some(reply) = answer.reply {
            connection.send(&reply)?;
        }
        match answer.error {
            Some(error) if answer.closes => Err(error.into()),
            Some(error) => {
                warn!(port = %self.name, %error, "declined a request");
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn log_features(&self, session: &Session<Berth>, seen: &mut Seen) {
        let features = session.features();
        if std::mem::replace(&mut seen.features, features) != features {
            info!(port = %self.name, features = features.names().join(" "), "features negotiated");
        }
    }

    fn log_rings(&self, session: &Session<Berth>, seen: &mut Seen) {
        let rings = session.running();
        seen.rings = rings;
        info!(port = %self.name, tx = rings.tx, rx = rings.rx, "rings enabled");
    }

    /// Writes down how a connection ended.
    fn note(&mut self, end: &End) {
        self.breaks.take();
        self.board.update(|status| {
            *status = PortStatus {
                connections: status.connections,
                violations: status.violations + u64::from(end.is_violation()),
                reason: match end.is_violation() {
                    true => Some(end.to_string()),
                    false => status.reason.take(),
                },
                ..PortStatus::default()
            };
        });
        match end.is_violation() {
            true => warn!(port = %self.name, reason = %end, "stopped"),
            false => info!(port = %self.name, reason = %end, "disconnected"),
        }
    }

    /// After a connection: front-ends that break the protocol are met less and less often, those
    /// that only come and go never so often that meeting them is work. False: the port is to
    /// end.
    fn rest_after(&mut self, end: &End, began: Instant) -> bool {
        if began.elapsed() >= LONGEST_PAUSE {
            self.pause = PAUSE;
        }
        let expected = matches!(self.door, Door::Listener(_)) && !end.is_violation();
        self.rest(if expected { PAUSE } else { LONGEST_PAUSE })
    }

    /// Pauses, each time a little longer, up to `longest`. False: the port is to end.
    fn rest(&mut self, longest: Duration) -> bool {
        let until = Instant::now() + self.pause.min(longest);
        self.pause = (self.pause * 2).min(longest);
        loop {
            match self
                .wait(None::<(&Listener, _)>, Some(until.saturating_duration_since(Instant::now())))
            {
                Woken::Stop => return false,
                Woken::Timeout => return true,
                Woken::Ready => {}
                Woken::Break => drop(self.breaks.take()),
            }
        }
    }

    /// Sleeps until `what` is ready, the port is to end, or a worker has something to report. What
    /// ends a connection comes first.
    fn wait(&self, what: Option<(&impl AsFd, PollFlags)>, timeout: Option<Duration>) -> Woken {
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&self.breaks.event, PollFlags::IN),
        ];
        fds.extend(what.map(|(fd, flags)| PollFd::new(fd, flags)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted wait is one that found nothing; whoever waits looks again.
        let count = poll(&mut fds, timeout.as_ref());
        let ready = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        match count {
            Ok(0) => Woken::Timeout,
            Ok(_) if ready(0) => Woken::Stop,
            Ok(_) if ready(1) => Woken::Break,
            _ => Woken::Ready,
        }
    }
}

/// What the log knows of a connection.
#[derive(Default)]
struct Seen {
    features: Features,
    rings: Running,
}

impl Seen {
    fn is_unsettled(&self, session: &Session<Berth>) -> bool {
        session.running() != self.rings
    }
}

#[cfg(test)]
mod tests;
