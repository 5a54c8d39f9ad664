//! How a server is doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::feature::Features;

/// What a server is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It waits for a front-end to connect.
    #[default]
    Listening,
    /// It tries to connect to a front-end.
    Connecting,
    /// A front-end is connected.
    Connected,
    /// It has ended.
    Removed,
}

/// The state of a server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// What it is doing.
    pub state: State,
    /// Process id of the connected front-end, if the kernel reports it.
    pub peer: Option<i32>,
    /// Virtio features in use.
    pub features: Features,
    /// Numbers of the vrings that pass data.
    pub active_vrings: Vec<usize>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that were ended because the front-end broke the protocol.
    pub violations: u64,
    /// Why this side ended the last connection, or why none could be made.
    pub reason: Option<String>,
}

/// A status that the server's thread writes and anyone reads.
#[derive(Clone, Debug, Default)]
pub struct SharedStatus(Arc<Mutex<PortStatus>>);

impl SharedStatus {
    /// A copy of the current status.
    pub fn read(&self) -> PortStatus {
        self.lock().clone()
    }

    /// Changes the status.
    pub fn update(&self, change: impl FnOnce(&mut PortStatus)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, PortStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
