//! A thread that finds front-ends, one at a time, and serves them.
//!
//! Every port has a server of its own, so that a slow or hostile front-end delays only itself. The
//! thread sleeps in `poll`, on the socket and on two events: one that ends it, and one that workers
//! signal when a queue breaks the protocol. The thread never waits for the front-end in any other
//! way, so it always ends on request.

mod end;
mod endpoint;
mod fault;
mod hand_over;
mod hand_over_request;
mod signals;
mod subject;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use ring::MemoryAccount;

use super::device::Device;
use super::event::Event;
use super::status::{PortStatus, SharedStatus};

pub use endpoint::{Endpoint, Mode, listener};
pub use fault::QueueFaults;
pub use subject::Subject;
use subject::log;

/// How long a server's thread may take to end. The thread never waits for its front-end, but
/// closing a descriptor that a hostile front-end has sent can take long: a file behind a network or
/// a process, or a socket that lingers.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Stack of a server's thread, in bytes.
const STACK: usize = 256 << 10;

/// A port or disk, as the server of its front-ends sees it.
pub trait Port: Send + 'static {
    /// The device of one connection.
    type Device: Device;

    /// A device for a new connection.
    fn device(&self) -> Self::Device;

    /// The account that the memory of front-ends is charged to.
    fn account(&self) -> Arc<MemoryAccount>;

    /// Called when the server serves no more connections.
    fn remove(&self);

    /// Readable when the configuration space has changed since it was cleared.
    fn config_changes(&self) -> Option<&Event> {
        None
    }
}

/// A port that is being served. Dropping it ends the service and removes its socket.
pub struct Server {
    subject: Subject,
    status: SharedStatus,
    stop: Arc<Event>,
    /// Makes the thread look at its requests.
    hand_over: Arc<Event>,
    requests: Sender<hand_over_request::HandOverRequest>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Server {
    /// Serves `port` to the front-ends of `endpoint`. Queues that break the protocol are reported
    /// to `faults`. The subject is for the log.
    ///
    /// # Errors
    /// When no thread or descriptor is left.
    pub fn start<P: Port>(
        subject: Subject,
        endpoint: Endpoint,
        faults: Arc<QueueFaults>,
        port: P,
    ) -> io::Result<Server> {
        Server::spawn(subject, endpoint, faults, port, |thread| thread.run(None))
    }

    /// Starts the thread, which does `run`.
    fn spawn<P: Port>(
        subject: Subject,
        endpoint: Endpoint,
        faults: Arc<QueueFaults>,
        port: P,
        run: impl FnOnce(thread::ServerThread<P>) + Send + 'static,
    ) -> io::Result<Server> {
        let stop = Arc::new(Event::new()?);
        let hand_over = Arc::new(Event::new()?);
        let (requests, asked) = mpsc::channel();
        let status = SharedStatus::default();
        let server = thread::ServerThread::new(
            subject.clone(),
            endpoint,
            port,
            status.clone(),
            signals::Signals { stop: Arc::clone(&stop), faults, hand_over: Arc::clone(&hand_over) },
            asked,
        );
        let thread =
            std::thread::Builder::new().name(thread_name(subject.name())).stack_size(STACK);
        let (ends, ended) = mpsc::channel();
        let run = move || {
            sandbox::enter_thread(sandbox::Role::FrontEnd);
            run(server);
            drop::<Sender<()>>(ends);
        };
        let thread = Some(thread.spawn(run)?);
        Ok(Server { subject, status, stop, hand_over, requests, thread, ended })
    }

    /// The status of the server.
    pub fn status(&self) -> PortStatus {
        self.status.read()
    }

    /// Ends it, and waits until it has ended, or for two seconds.
    pub fn stop(&mut self) {
        // No other process has this event, so it does not block.
        let _ = self.stop.signal();
        let Some(thread) = self.thread.take() else { return };
        // This ends the wait of a thread for a request.
        self.requests = mpsc::channel().0;
        match self.ended.recv_timeout(STOP_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => {
                log!(
                    warn,
                    self.subject,
                    "the server's thread is abandoned: closing a descriptor of its front-end blocks"
                );
            }
            // A thread that panicked has logged it.
            Err(RecvTimeoutError::Disconnected) | Ok(()) => drop(thread.join()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread's name has at most 15 bytes; the kernel would cut the rest, possibly within a
/// character.
fn thread_name(subject: &str) -> String {
    let short: String = subject.chars().filter(char::is_ascii_graphic).take(12).collect();
    format!("rm-{short}")
}
