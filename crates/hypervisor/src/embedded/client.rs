//! A guest that is a process of its own, from its own side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use ring::copies::Status;
use ring::{MapError, Memory};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;

use super::callpage::CallPage;
use super::events::{ChannelEnd, ChannelPair, Opened, Port};
use super::guest::{Calls, Guest, GuestParts};
use super::layout::Layout;
use super::local_hypercalls::BATCH;
use super::protocol::{self, Reply, Request};
use super::sync::lock;
use super::vcpus;
use crate::xen::XenStore;
use crate::{Channel, CopyOp, DomId, Hypercalls, PAGE, RemotePort};

/// Properties of a new guest.
pub use super::protocol::{Hello as GuestRequest, is_name};

/// Why a guest could not be created.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No hypervisor listens at the socket, or this process may not connect.
    #[error("{path}: {error}")]
    Socket {
        /// The socket.
        path: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The guest's memory could not be allocated.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The hypervisor refused the guest.
    #[error("refused: {0}")]
    Refused(String),
    /// The connection was lost, or the other end uses another protocol.
    #[error("talking to the hypervisor: {0}")]
    Lost(#[from] io::Error),
}

/// Registers a guest with the host that listens at `path`. The guest exists until the returned
/// value is dropped.
///
/// # Errors
/// See [`ConnectError`].
pub fn become_guest(
    path: &Path,
    request: GuestRequest,
) -> Result<(Guest, Arc<Connection>), ConnectError> {
    let layout = Layout { pages: request.pages };
    let (memory, file) = Memory::shared(layout.total() * PAGE)?;
    let memory = Arc::new(memory);
    let connection = Arc::new(Connection { socket: connect_to(path)?, exchange: Mutex::new(()) });
    let (reply, mut fds) = connection.request(&Request::Hello(request), &[file.as_fd()])?;
    let (id, version, store) = match (reply, fds.pop()) {
        (Reply::Welcome(id, version), Some(store)) => (id, version, store),
        (Reply::Refused(why), _) => return Err(ConnectError::Refused(why)),
        _ => return Err(unexpected().into()),
    };
    let remote = RemoteHypervisor {
        connection: Arc::clone(&connection),
        memory: Arc::clone(&memory),
        layout,
    };
    let store = Box::new(XenStore::over(store)?);
    let guest =
        Guest::new(GuestParts { id, memory, layout, version, calls: Box::new(remote), store });
    Ok((guest, connection))
}

fn connect_to(path: &Path) -> Result<OwnedFd, ConnectError> {
    let connect_to = || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    };
    let failed = |error: rustix::io::Errno| ConnectError::Socket {
        path: path.display().to_string(),
        error: error.into(),
    };
    connect_to().map_err(failed)
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer to another question")
}

/// The error for an answer that does not match the request.
fn refused(reply: Reply) -> io::Error {
    match reply {
        Reply::Refused(why) => io::Error::other(why),
        _ => unexpected(),
    }
}

/// The connection to the hypervisor.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    exchange: Mutex<()>,
}

impl Connection {
    fn request(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let _asking = lock(&self.exchange);
        protocol::send(self.socket.as_fd(), &request.encode(), fds)?;
        let answer =
            protocol::receive(self.socket.as_fd())?.ok_or(io::ErrorKind::ConnectionReset)?;
        let reply = Reply::decode(&answer.0).ok_or_else(unexpected)?;
        Ok((reply, answer.1))
    }

    /// While no request is under way, this becomes readable when the hypervisor is gone.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Calls of a hypervisor that is another process.
#[derive(Debug)]
struct RemoteHypervisor {
    connection: Arc<Connection>,
    memory: Arc<Memory>,
    layout: Layout,
}

impl Calls for RemoteHypervisor {
    fn grow(&self, frames: u32) -> io::Result<()> {
        match self.connection.request(&Request::Grow(frames), &[])?.0 {
            Reply::Done => Ok(()),
            reply => Err(refused(reply)),
        }
    }

    fn open(&self, to: DomId) -> io::Result<Port> {
        let (reply, fds) = self.connection.request(&Request::Open(to), &[])?;
        let (number, slot) = match reply {
            Reply::Opened { number, slot } => (number, slot),
            reply => return Err(refused(reply)),
        };
        self.port(number, slot, fds)
    }

    fn hypercalls(&self) -> io::Result<Box<dyn Hypercalls>> {
        let (reply, fds) = self.connection.request(&Request::Vcpu, &[])?;
        let (number, slot, page) = match reply {
            Reply::Calling { number, slot, page } => (number, slot, page),
            reply => return Err(refused(reply)),
        };
        let calls = CallPage::new(&self.memory, self.layout.call(page));
        Ok(Box::new(CallPageHypercalls {
            calls,
            channel: self.port(number, slot, fds)?,
            connection: Arc::clone(&self.connection),
        }))
    }
}

impl RemoteHypervisor {
    /// The channel of that number, with those words and wakers.
    fn port(&self, number: u32, slot: u32, fds: Vec<OwnedFd>) -> io::Result<Port> {
        let wakers: [OwnedFd; 2] = fds.try_into().map_err(|_| unexpected())?;
        let pair = Arc::new(ChannelPair::over(wakers, &self.memory, self.layout, slot)?);
        let end = RemotePortEnd { connection: Arc::clone(&self.connection), number };
        Ok(Port::opened(Opened { number: RemotePort(number), slot, pair }, Box::new(end)))
    }
}

/// A virtual CPU that calls through a page.
#[derive(Debug)]
struct CallPageHypercalls {
    calls: CallPage,
    channel: Port,
    connection: Arc<Connection>,
}

impl Hypercalls for CallPageHypercalls {
    fn grant_copy(&mut self, ops: &[CopyOp], outcomes: &mut Vec<Status>) -> io::Result<()> {
        outcomes.clear();
        for batch in ops.chunks(BATCH) {
            let number = self.calls.ask(batch);
            self.channel.notify();
            while !self.calls.is_answered(number) {
                if !vcpus::wait(self.channel.waker(), self.connection.end()) {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                self.channel.take();
            }
            outcomes.extend((0..batch.len()).map(|n| self.calls.outcome(n)));
        }
        Ok(())
    }
}

/// Closes a channel when it is dropped.
#[derive(Debug)]
struct RemotePortEnd {
    connection: Arc<Connection>,
    number: u32,
}

impl ChannelEnd for RemotePortEnd {}

impl Drop for RemotePortEnd {
    fn drop(&mut self) {
        // If it fails, the hypervisor is gone, and the channel with it.
        let _ = self.connection.request(&Request::Close(self.number), &[]);
    }
}
