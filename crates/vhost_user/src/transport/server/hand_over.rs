//! A server that another process goes on with, as its owner sees it.
//!
//! Here: the thread is [parked](Server::park) and listens to no front-end, the vrings are
//! [paused](Server::pause), and the process ends, or the thread is [woken](Server::unpark) and all
//! goes on. There: a server is [restored](Server::restore), which changes nothing that the first
//! process has, and [started](Server::start_saved).

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use super::hand_over_request::HandOverRequest;
use super::{Endpoint, Port, QueueFaults, Server, Subject};
use crate::transport::saved::{Files, HandOverError, Positions, SavedServer};

/// How long a server may take to listen to its owner. A server pauses for two seconds after a
/// front-end that broke the protocol.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Has the server serve nobody; vrings go on. Returns its state for another process.
    ///
    /// # Errors
    /// When the state cannot be handed over. Then the server goes on.
    pub fn park(&self) -> Result<(SavedServer, Files), HandOverError> {
        let (reply, saved) = mpsc::channel();
        self.request(HandOverRequest::Park(reply));
        // Nobody else has this event, so it does not block.
        let _ = self.hand_over.signal();
        saved.recv_timeout(PARK_TIMEOUT).unwrap_or_else(|_| {
            // A thread that comes too late goes on.
            drop(self.unpark());
            Err(HandOverError::Busy)
        })
    }

    /// Has a parked server stop its vrings. Their positions will come.
    pub fn pause(&self) -> Receiver<Positions> {
        let (reply, positions) = mpsc::channel();
        self.request(HandOverRequest::Pause(reply));
        positions
    }

    /// Has a parked server go on. Closed when it does.
    pub fn unpark(&self) -> Receiver<()> {
        let (reply, done) = mpsc::channel();
        self.request(HandOverRequest::Unpark(reply));
        done
    }

    /// A server with the state of one in another process. It serves nobody before
    /// [`start_saved`](Self::start_saved).
    ///
    /// # Errors
    /// When the state is not usable. Then nothing has changed in either process.
    pub fn restore<P: Port>(
        subject: Subject,
        endpoint: Endpoint,
        faults: Arc<QueueFaults>,
        port: P,
        (saved, files): (SavedServer, Files),
    ) -> Result<Server, HandOverError> {
        let (ready, restored) = mpsc::channel();
        let run = |thread: super::thread::ServerThread<P>| {
            thread.run_restored(saved, files, ready);
        };
        let server = Server::spawn(subject, endpoint, faults, port, run)?;
        restored.recv().map_err(|_| HandOverError::Busy)??;
        Ok(server)
    }

    /// Has a restored server start its vrings at these positions. What was wrong with one will
    /// come.
    pub fn start_saved(&self, positions: Positions) -> Receiver<Result<(), String>> {
        let (reply, started) = mpsc::channel();
        self.request(HandOverRequest::Start(positions, reply));
        started
    }

    fn request(&self, request: HandOverRequest) {
        // A thread that has ended answers nothing.
        let _ = self.requests.send(request);
    }
}
