//! Clients that connect to a port's socket and do not behave as front-ends do.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vhost_user_driver::DriverError;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::neighbour::{Neighbour, Role, Sockets};
use super::senders::{Sender, SenderSpec, Shape};

/// The use that a client makes of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// Connects and closes.
    Storm,
    /// Sends half of a message's header, and waits.
    Half,
    /// Sends as many descriptors with each message as one can carry.
    Descriptors,
}

/// A client of a port's socket.
pub struct Client {
    socket: PathBuf,
    connecting: Connecting,
    /// Connections that stay open; at most [`OPEN`].
    open: Vec<UnixStream>,
}

/// Connections between two pauses.
const BATCH: usize = 16;

/// Connections that stay open.
const OPEN: usize = 64;

/// Descriptors that one message carries at most (`SCM_MAX_FD`).
const DESCRIPTORS: usize = 253;

impl Client {
    /// Connects to the neighbour's first port, on the second daemon if it is the fair neighbour.
    pub fn new(sockets: &Sockets, role: Role, connecting: Connecting) -> Client {
        Client { socket: sockets.decoy(role, 0), connecting, open: Vec::new() }
    }

    fn connect(&mut self) -> std::io::Result<()> {
        let mut stream = connect(&self.socket)?;
        match self.connecting {
            Connecting::Storm => return Ok(()),
            Connecting::Half => stream.write_all(&[1, 0, 0, 0, 1, 0])?,
            Connecting::Descriptors => send_descriptors(&stream)?,
        }
        if self.open.len() == OPEN {
            self.open.remove(0);
        }
        self.open.push(stream);
        Ok(())
    }
}

/// Connects without waiting: a daemon that is busy with one connection lets the others queue up,
/// and with a full queue a client would wait for ever. Writing does not wait, either.
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Sends the start of a message with as many descriptors as it can carry.
fn send_descriptors(stream: &UnixStream) -> std::io::Result<()> {
    let event: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC)?;
    let files = vec![event.as_fd(); DESCRIPTORS];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(&[1, 0, 0, 0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl Neighbour for Client {
    fn step(&mut self) -> Result<Duration, DriverError> {
        for _ in 0..BATCH {
            // The daemon may well refuse the connection, or close it.
            let _ = self.connect();
        }
        Ok(Duration::from_micros(200))
    }
}

/// A guest that receives from another guest of its own, and whose interrupt has many watchers: the
/// kernel walks over all of them whenever the daemon raises it.
pub struct Watched {
    sender: Sender,
    _watchers: Option<Watchers>,
}

/// Epoll instances, each of which watches all copies of a descriptor.
struct Watchers {
    _instances: Vec<Epoll>,
    _copies: Vec<EventFd>,
}

impl Watched {
    /// Connects both guests, and has the hostile one's interrupt watched by about this many.
    ///
    /// # Errors
    /// When the daemon refuses a guest, or there are no descriptors left.
    pub fn connect(sockets: &Sockets, role: Role, watchers: usize) -> Result<Watched, DriverError> {
        let spec = SenderSpec { interrupts: true, ..SenderSpec::new(Shape::Plain(60)) };
        let mut sender = Sender::connect(sockets, spec)?;
        let call = sender.receiver().driver(0).rx.call();
        let watch = || Watchers::new(call, watchers).map_err(|e| DriverError::Io("watchers", e));
        let watchers = if role == Role::Hostile { Some(watch()?) } else { None };
        Ok(Watched { sender, _watchers: watchers })
    }
}

impl Watchers {
    /// About `count` watchers of `call`. An epoll instance takes a descriptor only once, so there
    /// are about as many instances as copies of the descriptor.
    fn new(call: &EventFd, count: usize) -> std::io::Result<Watchers> {
        let side = count.isqrt().max(1);
        allow_descriptors()?;
        let copies: Vec<EventFd> =
            (0..side).map(|_| call.try_clone()).collect::<std::io::Result<_>>()?;
        let mut instances = Vec::with_capacity(side);
        for _ in 0..side {
            let epoll = Epoll::new()?;
            for (at, copy) in (0..).zip(&copies) {
                let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, at);
                epoll.ctl(ControlOperation::Add, copy.as_raw_fd(), event)?;
            }
            instances.push(epoll);
        }
        Ok(Watchers { _instances: instances, _copies: copies })
    }
}

/// Lets this process have as many descriptors as it may, since many shells allow 1024.
fn allow_descriptors() -> std::io::Result<()> {
    let limits = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum })?)
}

impl Neighbour for Watched {
    fn step(&mut self) -> Result<Duration, DriverError> {
        self.sender.step()
    }
}
