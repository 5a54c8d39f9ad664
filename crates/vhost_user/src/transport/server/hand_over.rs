//! The hand-over of a server to another process, from its owner's side.
//!
//! In the first process, the thread is [parked](Server::park) and listens to no front-end, and the
//! vrings are [paused](Server::pause). Then the process ends, or the thread is
//! [unparked](Server::unpark) and the service continues. In the other process, a server is
//! [restored](Server::restore), which does not affect the first process, and then
//! [started](Server::start_saved).

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use super::hand_over_request::HandOverRequest;
use super::{Endpoint, Port, QueueFaults, Server, Subject};
use crate::transport::saved::{Files, HandOverError, Positions, SavedServer};

/// How long a server may take to answer its owner. A server pauses for two seconds after a
/// front-end that broke the protocol.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Makes the server stop serving its front-end, while vrings continue. Returns its state for
    /// another process.
    ///
    /// # Errors
    /// When the state cannot be handed over. Then the server continues.
    pub fn park(&self) -> Result<(SavedServer, Files), HandOverError> {
        let (reply, saved) = mpsc::channel();
        self.request(HandOverRequest::Park(reply));
        // No other process has this event, so it does not block.
        let _ = self.hand_over.signal();
        saved.recv_timeout(PARK_TIMEOUT).unwrap_or_else(|_| {
            // A thread that answers too late must continue.
            drop(self.unpark());
            Err(HandOverError::Busy)
        })
    }

    /// Makes a parked server stop its vrings. Their positions come through the returned channel.
    pub fn pause(&self) -> Receiver<Positions> {
        let (reply, positions) = mpsc::channel();
        self.request(HandOverRequest::Pause(reply));
        positions
    }

    /// Makes a parked server continue. The returned channel is closed when it does.
    pub fn unpark(&self) -> Receiver<()> {
        let (reply, done) = mpsc::channel();
        self.request(HandOverRequest::Unpark(reply));
        done
    }

    /// A server with the state of one in another process. The server serves no front-end before
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

    /// Makes a restored server start its vrings at these positions. The result comes through the
    /// returned channel.
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
