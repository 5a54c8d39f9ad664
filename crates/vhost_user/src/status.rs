//! How a port is doing, for whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::feature::Features;
use crate::session::Running;

/// What a port is up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It waits for a front-end to connect.
    #[default]
    Listening,
    /// It tries to connect to a front-end.
    Connecting,
    /// A front-end is connected.
    Connected,
    /// It ended.
    Removed,
}

/// A port's state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// What it is up to.
    pub state: State,
    /// Process id of the connected front-end, if the kernel says.
    pub peer: Option<i32>,
    /// Virtio features in use.
    pub features: Features,
    /// Rings that pass data.
    pub rings: Running,
    /// Connections so far.
    pub connections: u64,
    /// Times that a connection was ended because its front-end broke the protocol.
    pub violations: u64,
    /// Why the last connection was ended by us, or could not be made.
    pub reason: Option<String>,
}

/// A status that the port's thread writes and anyone reads.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<PortStatus>>);

impl Board {
    /// A copy of what is there now.
    pub fn read(&self) -> PortStatus {
        self.lock().clone()
    }

    /// Changes it.
    pub fn update(&self, change: impl FnOnce(&mut PortStatus)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, PortStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
