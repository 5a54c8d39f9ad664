//! The hand-off of a port to another process.

use vhost_user::net::Port;
use vhost_user::transport::saved::Files;

use super::message::{PausedPort, SavedPort};

/// A result that will come from a thread of the port.
pub(crate) struct Pending<T>(Box<dyn FnOnce() -> T>);

impl<T> Pending<T> {
    pub fn new(wait: impl FnOnce() -> T + 'static) -> Pending<T> {
        Pending(Box::new(wait))
    }

    pub fn wait(self) -> T {
        (self.0)()
    }
}

/// A port that can be handed over.
pub(crate) trait HandOver {
    /// Stops the port's control thread, and returns the port's state. The queues continue.
    ///
    /// # Errors
    /// The reason why the port cannot be handed over now. The port then continues.
    fn park(&self) -> Result<(SavedPort, Files), String>;

    /// Stops all queues, after they were taken from the workers. `None`: the port's thread has
    /// ended.
    fn pause(&self) -> Pending<Option<PausedPort>>;

    /// Continues as before, as soon as workers get queues.
    fn unpark(&self) -> Pending<()>;

    /// Starts a port that has the state of another process.
    fn start(&self, paused: PausedPort) -> Pending<Result<(), String>>;
}

impl HandOver for Port {
    fn park(&self) -> Result<(SavedPort, Files), String> {
        let (saved, files) = self.server().park().map_err(|error| error.to_string())?;
        Ok((SavedPort::VhostUser(Box::new(saved)), files))
    }

    fn pause(&self) -> Pending<Option<PausedPort>> {
        let positions = self.server().pause();
        Pending::new(move || {
            let positions = positions.recv().ok()?;
            Some(PausedPort { positions, ..PausedPort::default() })
        })
    }

    fn unpark(&self) -> Pending<()> {
        let done = self.server().unpark();
        // The channel is only closed, and never written to.
        Pending::new(move || done.recv().unwrap_or(()))
    }

    fn start(&self, paused: PausedPort) -> Pending<Result<(), String>> {
        let started = self.server().start_saved(paused.positions);
        Pending::new(move || {
            started.recv().unwrap_or_else(|_| Err("the port's thread has ended".to_owned()))
        })
    }
}
