//! A disk that is served over vhost-user.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ring::MemoryAccount;
use runtime::QueueId;
use runtime::poll::PollingPolicy;
use storage::disks::{DiskId, DiskSpec};
use storage::image::ImageError;
use storage::limits::DiskRates;
use storage::{Disk, Disks, QueueError, RequestQueue};
use thiserror::Error;
use unix_socket::{Permissions, SocketError};

use super::device::{BlkDevice, RequestHost};
use crate::transport::event::Event;
use crate::transport::server::{self, Endpoint, Mode, QueueFaults, Server, Subject};
use crate::transport::status::PortStatus;

/// Most queues of a disk.
pub const MAX_QUEUES: u16 = 128;

/// The configuration of a disk.
pub struct DiskConfig {
    /// Its name, for logs.
    pub name: String,
    /// Path of its socket, on which this side listens.
    pub socket: PathBuf,
    /// The users that may connect.
    pub permissions: Permissions,
    /// Queues that are offered.
    pub queues: u16,
    /// The image, and how it is shown. An image that can be shared is locked while a front-end has
    /// rings started; any other is locked already.
    pub disk: Arc<Disk>,
    /// How workers wait for its requests; `None`: as for all others.
    pub policy: Option<PollingPolicy>,
    /// How much of its front-end's memory may be allocated here, in bytes.
    pub memory: u64,
}

/// Why a disk cannot be served.
#[derive(Debug, Error)]
pub enum DiskPortError {
    /// No queue, or too many.
    #[error("{0} queues, 1 to {MAX_QUEUES} are possible")]
    Queues(u16),
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No thread or descriptor is left.
    #[error("starting a disk: {0}")]
    Os(#[from] io::Error),
}

/// A disk that is being served. Dropping it ends the service: its queues are taken from the
/// workers, and its socket is removed.
pub struct DiskPort {
    server: Server,
    place: Place,
    disk: Arc<Disk>,
    changes: Arc<Event>,
    account: Arc<MemoryAccount>,
}

impl DiskPort {
    /// Adds a disk to `disks` and serves it.
    ///
    /// # Errors
    /// When its socket is taken, or no thread or descriptor is left. Then nothing has changed.
    pub fn start(disks: Arc<Disks>, config: DiskConfig) -> Result<DiskPort, DiskPortError> {
        let DiskConfig { name, socket, permissions, queues, disk, policy, memory } = config;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(DiskPortError::Queues(queues));
        }
        let faults = Arc::new(QueueFaults::new()?);
        let changes = Arc::new(Event::new()?);
        let endpoint = Endpoint::open(&socket, Mode::Server, permissions)?;
        let report = Arc::clone(&faults);
        let on_error = Arc::new(move |queue, error: QueueError| {
            report.report(queue, error, error.violation());
        });
        let id = disks.add(DiskSpec {
            name: name.as_str().into(),
            disk: Arc::clone(&disk),
            on_error,
            policy,
        });
        let place = Place { disks, id, changes: Arc::clone(&changes) };
        let account = Arc::new(MemoryAccount::new(memory));
        let port = BlkPort {
            place: place.clone(),
            disk: Arc::clone(&disk),
            queues,
            changes: Arc::clone(&changes),
            account: Arc::clone(&account),
        };
        let server = Server::start(Subject::Disk(name), endpoint, faults, port)
            .inspect_err(|_| place.disks.remove(place.id))?;
        Ok(DiskPort { server, place, disk, changes, account })
    }

    /// Its number among the disks.
    pub fn id(&self) -> DiskId {
        self.place.id
    }

    /// The disk that is served.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// The status of its server.
    pub fn status(&self) -> PortStatus {
        self.server.status()
    }

    /// The account of its front-end's memory: the limit, which can be changed, and an upper bound
    /// of the allocation so far.
    pub fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Sets the rate limits of the disk, which are in force when this returns.
    pub fn set_limits(&self, rates: DiskRates) {
        self.disk.set_limits(rates);
        self.place.disks.follow_limits();
    }

    /// Gives the image a new length, or takes note of the one that it has, and tells the guest.
    /// Returns its length in bytes.
    ///
    /// # Errors
    /// When the image cannot have that length.
    pub fn resize(&self, bytes: Option<u64>) -> Result<u64, ImageError> {
        let image = self.disk.image();
        image.lock_now()?;
        let resized = image.resize(bytes);
        // An image that cannot be unlocked stays locked here.
        let _ = image.unlock();
        // No other process has this event, so it does not block.
        let _ = self.changes.signal();
        resized
    }
}

impl Drop for DiskPort {
    fn drop(&mut self) {
        self.server.stop();
        self.place.disks.remove(self.place.id);
    }
}

/// The disk's place among the disks.
#[derive(Clone)]
struct Place {
    disks: Arc<Disks>,
    id: DiskId,
    changes: Arc<Event>,
}

impl RequestHost for Place {
    fn attach(&self, index: u16, queue: Box<dyn RequestQueue>) -> Option<QueueId> {
        self.disks.attach(self.id, index, queue)
    }

    fn detach(&self, queue: QueueId) -> Option<Box<dyn RequestQueue>> {
        self.disks.detach(queue)
    }

    fn grown(&self) {
        // No other process has this event, so it does not block.
        let _ = self.changes.signal();
    }
}

/// Serves each connection with a block device.
struct BlkPort {
    place: Place,
    disk: Arc<Disk>,
    queues: u16,
    changes: Arc<Event>,
    account: Arc<MemoryAccount>,
}

impl server::Port for BlkPort {
    type Device = BlkDevice<Place>;

    fn device(&self) -> Self::Device {
        BlkDevice::new(self.place.clone(), Arc::clone(&self.disk), self.queues)
    }

    fn account(&self) -> Arc<MemoryAccount> {
        Arc::clone(&self.account)
    }

    fn remove(&self) {
        self.place.disks.remove(self.place.id);
    }

    fn config_changes(&self) -> Option<&Event> {
        Some(&self.changes)
    }
}
