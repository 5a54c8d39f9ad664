//! A vhost-user port of the fabric.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use network::coalescing::CoalescingLimits;
use network::fabric::{Fabric, FabricError, NewPort, PairChange};
use network::poll::PollingPolicy;
use network::port::{QueueError, QueuePair};
use network::restrictions::Restrictions;
use network::topology::QueueId;
use parking_lot::{Mutex, MutexGuard};
use ring::MemoryAccount;
use switch::{PortId, PortRule};
use thiserror::Error;
use unix_socket::{Permissions, SocketError};

use super::device::{NetDevice, Offer, QueueHost};
use crate::transport::saved::{Files, HandOverError, SavedServer};
use crate::transport::server::{self, Endpoint, Mode, QueueFaults, Server, Subject};
use crate::transport::status::PortStatus;

/// Most queue pairs of a port: a vring's number has eight bits in the messages that bring
/// descriptors.
pub const MAX_QUEUES: u16 = 128;

/// Bytes of a front-end's memory that may be allocated here, unless its port says otherwise. A
/// guest that is no larger can never exceed the limit. For a larger guest, the limit is more than
/// the receive buffers that it has never touched itself.
pub const DEFAULT_MEMORY: u64 = 16 << 30;

/// The configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Its name, for logs.
    pub name: String,
    /// Path of its socket.
    pub socket: PathBuf,
    /// Which side opens the socket.
    pub mode: Mode,
    /// The users that may connect, where this side listens.
    pub permissions: Permissions,
    /// Queue pairs that are offered.
    pub queues: u16,
    /// Longest IP packet that the port takes, in bytes, and the most that a front-end may tell its
    /// guest.
    pub mtu: Option<u16>,
    /// VLANs and source lock.
    pub rule: PortRule,
    /// How long receive interrupts are delayed; `None`: not at all.
    pub coalescing: Option<CoalescingLimits>,
    /// How workers wait for frames of the port; `None`: as for all others.
    pub policy: Option<PollingPolicy>,
    /// Limits on the frames that the port sends and receives.
    pub restrictions: Restrictions,
    /// How many bytes of a front-end's memory may be allocated by touching its buffers.
    pub memory: u64,
}

impl PortConfig {
    /// A port that listens on `socket`, with the name of its file, that many queue pairs, and all
    /// other settings at their defaults.
    pub fn new(socket: &Path, queues: u16) -> PortConfig {
        PortConfig {
            name: socket.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            socket: socket.to_path_buf(),
            mode: Mode::Server,
            permissions: Permissions::default(),
            queues,
            mtu: None,
            rule: PortRule::default(),
            coalescing: None,
            policy: None,
            restrictions: Restrictions::default(),
            memory: DEFAULT_MEMORY,
        }
    }
}

/// Why a port cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// No queue pair, or too many.
    #[error("{0} queue pairs, 1 to {MAX_QUEUES} are possible")]
    Queues(u16),
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The fabric refuses the port.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The state of another process is not usable here.
    #[error(transparent)]
    State(#[from] HandOverError),
    /// No thread or descriptor is left.
    #[error("starting a port: {0}")]
    Os(#[from] io::Error),
}

/// A port that is being served. Dropping it ends the service: its queues are taken out of the
/// fabric, and its socket is removed.
pub struct Port {
    server: Server,
    fabric: FabricPort,
    account: Arc<MemoryAccount>,
}

impl Port {
    /// Adds a port to `fabric` and serves it.
    ///
    /// # Errors
    /// When its socket is taken, its rule impossible, or no thread or descriptor is left. Then
    /// nothing has changed.
    pub fn start(fabric: Arc<Fabric>, config: PortConfig) -> Result<Port, StartError> {
        let (socket, mode, permissions) = (config.socket.clone(), config.mode, config.permissions);
        Port::begin(fabric, config, |subject, faults, net| {
            let endpoint = Endpoint::open(&socket, mode, permissions)?;
            Ok(Server::start(subject, endpoint, faults, net)?)
        })
    }

    /// Adds a port to `fabric` with the state of one in another process. The port serves no
    /// front-end and has no queues before [`Server::start_saved`].
    ///
    /// # Errors
    /// As for [`start`](Self::start), and when the state is not usable. Then nothing has
    /// changed, in either process.
    pub fn restore(
        fabric: Arc<Fabric>,
        config: PortConfig,
        saved: SavedServer,
        mut files: Files,
    ) -> Result<Port, StartError> {
        let (socket, mode) = (config.socket.clone(), config.mode);
        Port::begin(fabric, config, |subject, faults, net| {
            let listener = saved.listener.as_ref();
            let endpoint = Endpoint::restore(&socket, mode, listener, &mut files)?;
            Ok(Server::restore(subject, endpoint, faults, net, (saved, files))?)
        })
    }

    fn begin(
        fabric: Arc<Fabric>,
        config: PortConfig,
        serve: impl FnOnce(Subject, Arc<QueueFaults>, NetPort) -> Result<Server, StartError>,
    ) -> Result<Port, StartError> {
        let PortConfig {
            name, queues, mtu, rule, coalescing, policy, restrictions, memory, ..
        } = config;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(StartError::Queues(queues));
        }
        let faults = Arc::new(QueueFaults::new()?);
        let report = Arc::clone(&faults);
        let on_error = Arc::new(move |queue, error: QueueError| {
            report.report(queue, error, error.violation());
        });
        let port = fabric.add_port(NewPort {
            name: name.as_str().into(),
            rule,
            mtu,
            on_error,
            coalescing,
            policy,
            restrictions,
        })?;
        let fabric = FabricPort { fabric, port, removed: Arc::default() };
        let account = Arc::new(MemoryAccount::new(memory));
        let net = NetPort {
            fabric: fabric.clone(),
            offer: Offer { queues, mtu },
            account: Arc::clone(&account),
        };
        let server = serve(Subject::Port(name), faults, net).inspect_err(|_| fabric.remove())?;
        Ok(Port { server, fabric, account })
    }

    /// Its number in the fabric.
    pub fn port(&self) -> PortId {
        self.fabric.port
    }

    /// The status of its server.
    pub fn status(&self) -> PortStatus {
        self.server.status()
    }

    /// Its server, which another process may take over.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The account of its front-end's memory: the limit, which can be changed, and an upper bound
    /// of the allocation so far.
    pub fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Ends it, and waits until it has ended.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.server.stop();
        self.fabric.remove();
    }
}

/// The port's place in the fabric.
#[derive(Clone)]
struct FabricPort {
    fabric: Arc<Fabric>,
    port: PortId,
    /// Set when the port was removed, since its number may then belong to another port.
    removed: Arc<Mutex<bool>>,
}

impl FabricPort {
    /// Removes the port from the fabric, once.
    fn remove(&self) {
        if !std::mem::replace(&mut *self.lock(), true) {
            self.fabric.remove_port(self.port);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.removed.lock()
    }
}

impl QueueHost for FabricPort {
    fn take_out(&self, queues: &[QueueId]) -> Vec<Option<Box<dyn QueuePair>>> {
        self.fabric.take_out(queues)
    }

    fn put_back(&self, changes: Vec<PairChange>) -> Vec<Option<QueueId>> {
        let removed = self.lock();
        match *removed {
            true => changes.iter().map(|_| None).collect(),
            false => self.fabric.put_back(self.port, changes),
        }
    }
}

/// Serves each connection with a network device.
struct NetPort {
    fabric: FabricPort,
    offer: Offer,
    account: Arc<MemoryAccount>,
}

impl server::Port for NetPort {
    type Device = NetDevice<FabricPort>;

    fn device(&self) -> Self::Device {
        NetDevice::new(self.fabric.clone(), self.offer)
    }

    fn account(&self) -> Arc<MemoryAccount> {
        Arc::clone(&self.account)
    }

    fn remove(&self) {
        self.fabric.remove();
    }
}

#[cfg(test)]
mod tests;
