//! The backends that attach ports of each kind to their peers.
//!
//! [`start`] lists the kinds. The daemon uses a port in service through the trait [`Backend`],
//! which each kind implements in a module of its own here. Most methods have a default that is
//! right for a port with one peer. The other methods are for kinds of which one port stands for
//! many.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::vhost_user::net::StartError;
use ::vhost_user::transport::saved::Files;
use ::xen::netif::guest_times::Answers;
use ::xen::netif::service::ServiceError;
use hostlink::tap::TapError;
use hostlink::xdp::XdpError;
use hypervisor::xen::OpenError;
use network::count::QueueCounters;
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use parking_lot::MutexGuard;
use switch::PortId;
use unix_socket::SocketError;

use crate::api::PortState;
use crate::config::{MemorySize, PortKind, PortSpec};
use crate::hand_over::message::SavedPort;
use crate::hand_over::port::HandOver;
use crate::kind::Kind;
use crate::profile::Subject;
use crate::vif::Vif;

mod embedded;
mod tap;
mod vhost_user;
mod xen;

/// Why a port cannot be put into service.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The directory of its socket cannot be created.
    #[error("cannot create {}: {error}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The vhost-user side refuses.
    #[error(transparent)]
    VhostUser(#[from] StartError),
    /// The TAP side refuses.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// There is no Xen here, or this process may not use it.
    #[error("Xen can't be used: {0}")]
    Xen(#[from] OpenError),
    /// The vifs cannot be served.
    #[error(transparent)]
    Vifs(#[from] ServiceError),
    /// Guests cannot connect.
    #[error(transparent)]
    Guests(#[from] SocketError),
    /// A device gives no queues.
    #[error(transparent)]
    Uplink(#[from] XdpError),
    /// There is no thread left for the embedded hypervisor.
    #[error("cannot start the embedded hypervisor: {0}")]
    Machine(io::Error),
    /// There are no addresses left to map the guests' pages at.
    #[error("cannot map guests' pages: {0}")]
    Pages(io::Error),
    /// The state from the other process belongs to another kind.
    #[error("the state that came is not one of this kind of port")]
    OtherKind,
}

/// Puts a port into service, with these restrictions, in a daemon with `workers` workers.
pub fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    restrictions: &RestrictionsTemplate,
    workers: usize,
) -> Result<Box<dyn Backend>, BackendError> {
    let queues = spec.queue_pairs(workers);
    match &spec.kind {
        PortKind::VhostUser { socket, mode } => {
            vhost_user::start(fabric, spec, (socket, *mode), restrictions, queues)
        }
        PortKind::Tap { device } => tap::start(fabric, spec, device, restrictions, queues),
        PortKind::Xen => xen::start(fabric, spec, restrictions, queues),
        PortKind::Embedded { socket, design, extensions, device_queue, lock_mac } => {
            let (design, device) = ((*design, *extensions), device_queue.as_deref());
            let guests = embedded::Guests { socket, design, device, lock_mac: *lock_mac };
            embedded::start(fabric, spec, guests, restrictions, queues)
        }
    }
}

/// Restores a port with the state of one in another process. [`HandOver::start`] puts it into
/// service.
pub fn restore(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    restrictions: &RestrictionsTemplate,
    workers: usize,
    saved: (SavedPort, Files),
) -> Result<Box<dyn Backend>, BackendError> {
    let queues = spec.queue_pairs(workers);
    match (&spec.kind, saved) {
        (PortKind::VhostUser { socket, mode }, (SavedPort::VhostUser(saved), files)) => {
            let place = (&**socket, *mode);
            vhost_user::restore(fabric, spec, place, restrictions, queues, (*saved, files))
        }
        (PortKind::Tap { device }, (SavedPort::Tap { queues: numbers }, files)) => {
            tap::restore(fabric, spec, device, restrictions, queues, (numbers, files))
        }
        _ => Err(BackendError::OtherKind),
    }
}

/// A port in service. Dropping it takes the port out of the fabric, and removes its socket.
pub trait Backend: Send {
    /// The port's number in the fabric. `None`: this value is no port itself, but stands for many.
    fn id(&self) -> Option<PortId>;

    /// The present state.
    fn condition(&self) -> Condition;

    /// Why the port is out of service for good. Ports that wait for another front-end are never out
    /// of service for good.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Sets the restrictions of the port, or of each port that it stands for.
    fn restrict(&self, fabric: &Fabric, restrictions: &RestrictionsTemplate) {
        if let Some(id) = self.id() {
            fabric.set_restrictions(id, restrictions.instantiate());
        }
    }

    /// Sets the limit of the peer's memory that may be allocated here.
    fn limit_memory(&self, limit: MemorySize) {
        let _ = limit;
    }

    /// The vifs that the port stands for; `name` is the port's own.
    fn vifs(&self, name: &str) -> Vec<Vif> {
        let _ = name;
        Vec::new()
    }

    /// Requests, under this number, the counts that guests keep of their own time. Does not wait
    /// for answers.
    fn request_times(&self, number: u64) {
        let _ = number;
    }

    /// The answers of guests to the request with this number. Stock frontends report nothing.
    fn answers(&self, number: u64) -> Answers {
        let _ = number;
        Answers::default()
    }

    /// Counters of removed vifs, to be taken out. No vif is removed while this is locked.
    fn removed_counters(&self) -> Option<MutexGuard<'_, Vec<Arc<QueueCounters>>>> {
        None
    }

    /// The part of the port that another process can take over. `None`: the port cannot be handed
    /// over.
    fn hand_over(&self) -> Option<&dyn HandOver> {
        None
    }

    /// Takes the port out of service. Returns the counters that were not taken out before.
    fn end(self: Box<Self>, fabric: &Fabric) -> Vec<Arc<QueueCounters>> {
        // Workers continue to count while the port is dropped.
        self.id().map(|id| fabric.counters(id)).unwrap_or_default()
    }
}

/// The ports to profile: this one, or those that it stands for, with what guests have answered to
/// the request with this number.
pub fn subjects(backend: &dyn Backend, name: &str, kind: Kind, number: u64) -> Vec<Subject> {
    if let Some(port) = backend.id() {
        return vec![Subject { name: name.to_owned(), kind, port, guest: None }];
    }
    let answers = backend.answers(number);
    let subject = |Vif { name, kind, status, .. }: Vif| {
        let guest = answers.times.get(&status.id).copied();
        Some(Subject { name, kind, port: status.port?, guest })
    };
    backend.vifs(name).into_iter().filter_map(subject).collect()
}

/// The state of a port's backend.
pub struct Condition {
    /// The state with respect to the peer.
    pub state: PortState,
    /// Why the port is stopped or down, or what ended its last session.
    pub reason: Option<String>,
    /// Names of negotiated features.
    pub features: Vec<&'static str>,
    /// Process id of the peer.
    pub peer: Option<i32>,
    /// Connections so far.
    pub connections: u64,
    /// Connections that ended because the peer broke the protocol.
    pub violations: u64,
    /// Messages that waited because the port's control budget was used up.
    pub control_delayed: u64,
    /// Rings that continued at their own position, and not at the front-end's.
    pub recovered_rings: u64,
    /// Rings whose position could not be determined.
    pub unclear_rings: u64,
    /// An upper bound of the bytes of the peer's memory that its buffers have allocated, and the
    /// limit.
    pub memory: Option<(u64, u64)>,
}

impl Condition {
    /// A state, and a reason for it.
    pub fn new(state: PortState, reason: Option<String>) -> Condition {
        let features = Vec::new();
        Condition {
            state,
            reason,
            features,
            peer: None,
            connections: 0,
            violations: 0,
            control_delayed: 0,
            recovered_rings: 0,
            unclear_rings: 0,
            memory: None,
        }
    }
}

/// Creates the directory of a socket.
pub(crate) fn create_directory(socket: &Path) -> Result<(), BackendError> {
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(());
    };
    let failed = |error| BackendError::Directory { path: directory.to_owned(), error };
    std::fs::create_dir_all(directory).map_err(failed)
}
