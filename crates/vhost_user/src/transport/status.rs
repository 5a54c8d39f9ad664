//! The status of a server.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::feature::Features;

/// The state of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The server waits for a front-end to connect.
    #[default]
    Listening,
    /// The server tries to connect to a front-end.
    Connecting,
    /// A front-end is connected.
    Connected,
    /// The server has ended.
    Removed,
}

/// The state of a server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// The state of the server.
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
    /// Messages so far that waited because the port had overdrawn its control budget.
    pub control_delayed: u64,
    /// Why this side ended the last connection, or why none could be made.
    pub reason: Option<String>,
    /// Numbers of the vrings that may have been started in the wrong place.
    pub unclear_vrings: Vec<usize>,
    /// Vrings so far that did not show their position.
    pub unclear: u64,
    /// Vrings so far that continued at the position that they showed, and not at the front-end's.
    pub recovered: u64,
}

impl PortStatus {
    /// A problem with the port's vrings or its last connection, if there is one.
    pub fn complaint(&self) -> Option<String> {
        match self.unclear_vrings.as_slice() {
            [] => self.reason.clone(),
            vrings => Some(unclear_reason(vrings)),
        }
    }
}

/// Why no frame may pass these vrings, and what helps.
pub(super) fn unclear_reason(vrings: &[usize]) -> String {
    let list: Vec<_> = vrings.iter().map(usize::to_string).collect();
    format!(
        "ring {}: an earlier back-end was lost, and the descriptors do not show where it left off; \
         if the guest gets no frames, unbind and bind its virtio-net driver, or reset it",
        list.join(", ")
    )
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
        self.0.lock()
    }
}
