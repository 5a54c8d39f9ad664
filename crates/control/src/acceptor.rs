//! Accepts connections at a stream socket, and gives each one a thread of its own.
//!
//! The number of connections is bounded. The implementations of [`Connections`] bound the time and
//! the bytes of a connection (as in [`line`](crate::line)).

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{SocketFlags, accept_with};
use sandbox::Role;

/// Stack of a connection's thread, in bytes.
const STACK: usize = 256 << 10;

/// Serves the connections of one socket.
pub(crate) trait Connections: Send + Sync + 'static {
    /// The socket's name in the log.
    const SOCKET: &'static str;
    /// Names of the thread that accepts connections, and of those that serve them.
    const THREADS: [&'static str; 2];
    /// The kinds of these threads, where they need less than control threads.
    const ROLES: Option<[Role; 2]>;
    /// Most connections at a time.
    const MOST: usize;

    /// Serves a connection until its end. The stream is of any address family: no more is done
    /// with it than to read, to write, and to set time-outs.
    fn serve(&self, stream: &mut UnixStream);

    /// Answers a connection beyond the limit. Must be quick: other connections wait meanwhile.
    fn turn_away(&self, stream: &mut UnixStream);
}

/// The thread that accepts connections. Dropping it closes all of them.
pub(crate) struct Acceptor {
    stop: Arc<OwnedFd>,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Accepts connections at `listener`, a stream socket that listens and does not block.
    ///
    /// # Errors
    /// When descriptors or threads are missing.
    pub fn start<C: Connections>(listener: OwnedFd, connections: C) -> io::Result<Acceptor> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let listener = Arc::new(listener);
        let work = AcceptorWork {
            listener: Arc::clone(&listener),
            stop: Arc::clone(&stop),
            served: Arc::new(connections),
            open: Vec::new(),
        };
        let thread = Builder::new().name(C::THREADS[0].into()).spawn(move || {
            C::ROLES.into_iter().for_each(|[role, _]| sandbox::enter_thread(role));
            work.run();
        })?;
        Ok(Acceptor { stop, listener, thread: Some(thread) })
    }

    /// The listening socket.
    pub fn listener(&self) -> &Arc<OwnedFd> {
        &self.listener
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct AcceptorWork<C> {
    listener: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    served: Arc<C>,
    open: Vec<(UnixStream, JoinHandle<()>)>,
}

impl<C: Connections> AcceptorWork<C> {
    fn run(mut self) {
        while self.wait() {
            match accept_with(&self.listener, SocketFlags::CLOEXEC).map_err(io::Error::from) {
                Ok(stream) => self.admit(UnixStream::from(stream)),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::Interrupted
                            | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Most likely the process is out of descriptors, which may be temporary.
                    tracing::warn!(reason = %error, socket = C::SOCKET, "cannot accept a connection");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        for (stream, thread) in self.open.drain(..) {
            // Shutting down ends the thread's reads and writes. The call fails if the client has
            // closed the connection.
            let _ = stream.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
    }

    /// Waits for a connection. False: the thread must end.
    fn wait(&self) -> bool {
        let mut fds =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
        // A wait that a signal interrupts reports no event.
        let _ = poll(&mut fds, None);
        fds.get(1).is_some_and(|stop| stop.revents().is_empty())
    }

    fn admit(&mut self, mut stream: UnixStream) {
        self.open.retain(|(_, thread)| !thread.is_finished());
        if self.open.len() >= C::MOST {
            self.served.turn_away(&mut stream);
            return;
        }
        let served = Arc::clone(&self.served);
        let Ok(own) = stream.try_clone() else { return };
        let thread = Builder::new().name(C::THREADS[1].into()).stack_size(STACK).spawn(move || {
            C::ROLES.into_iter().for_each(|[_, role]| sandbox::enter_thread(role));
            served.serve(&mut stream);
            let _ = stream.shutdown(Shutdown::Both);
        });
        if let Ok(thread) = thread {
            self.open.push((own, thread));
        }
    }
}
