//! One vbd, as the bus drives it: the offer to its frontend, its disk, and its connection.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{Nodes, StoreError};
use network::control_budget::{MESSAGE, QUEUE};
use parking_lot::Mutex;
use runtime::QueueId;
use storage::command::SECTOR;
use storage::disks::{DiskId, DiskSpec};
use storage::image::ImageOptions;
use storage::queue::{QueueError, RequestQueue};
use storage::{Disk, Image};
use tracing::{info, warn};

use super::blkback::Blkback;
use super::error::VbdError;
use super::negotiation::{FrontendKeys, is_persistent, write_offer};
use super::persistent_grants::PersistentGrants;
use super::queue::{self, QueueParts};
use super::settings::Settings;
use super::status::{Connected, VbdStatus};
use crate::xenbus::driver::Wake;
use crate::xenbus::{Device, DeviceStatus, Node, State};

/// To which bytes discards should be aligned: a page, the block of most file systems.
const DISCARD_GRANULARITY: u32 = 4096;

/// The block sizes, in bytes, that a frontend may have been told.
const BLOCKS: [u32; 2] = [SECTOR as u32, 4096];

/// The most that a frontend is charged for the time that its requests in flight took to end.
/// Occasional long waits are free.
const LONGEST_CHARGE: Duration = Duration::from_millis(250);

/// The violation that a worker found: the queue's number, and the error.
type Failure = Arc<Mutex<Option<(u16, QueueError)>>>;

/// A vbd.
pub struct Vbd {
    node: Arc<Node>,
    driver: Arc<Blkback>,
    wake: Wake,
    /// The disk, since the frontend first connected.
    medium: Option<Medium>,
    connection: Option<Connection>,
    /// The length in sectors that the frontend was told.
    sectors: u64,
    failure: Failure,
    /// Time of the workers and of the bus that was not charged yet.
    cost: Duration,
}

/// The disk of a vbd.
struct Medium {
    settings: Settings,
    disk: Arc<Disk>,
    id: DiskId,
}

/// A connected frontend. Dropping it unmaps its pages; queues that workers have must be detached
/// before.
struct Connection {
    keys: FrontendKeys,
    /// The frontend's grants are persistent.
    persistent: bool,
    /// Queues that are not attached yet.
    ready: Vec<Box<dyn RequestQueue>>,
    /// Queues that are attached.
    attached: Vec<QueueId>,
}

impl Vbd {
    /// A vbd that was just found.
    pub fn new(driver: Arc<Blkback>, node: Arc<Node>, wake: Wake) -> Self {
        driver.limits.add(node.id());
        Vbd {
            node,
            driver,
            wake,
            medium: None,
            connection: None,
            sectors: 0,
            failure: Arc::default(),
            cost: Duration::ZERO,
        }
    }

    /// The queues that were offered to the frontend.
    fn offered(&self) -> Result<u16, StoreError> {
        let key = self.node.backend_key("multi-queue-max-queues");
        Ok(self.node.nodes().number(&key)?.unwrap_or(1))
    }

    /// Opens the image, unless it is open. It stays open as long as the vbd is there.
    fn open(&mut self, settings: Settings, resumed: bool) -> Result<Arc<Disk>, VbdError> {
        if let Some(medium) = self.medium.as_ref().filter(|medium| medium.settings == settings) {
            return Ok(Arc::clone(&medium.disk));
        }
        self.close();
        if !self.driver.allows(&settings.image) {
            return Err(VbdError::Outside(settings.image));
        }
        // A frontend that continues sends requests for the block size that it was told.
        let told = if resumed { self.told_block()? } else { None };
        let image = Image::open(&ImageOptions {
            format: settings.format,
            // Backing files, which the image names, are confined to the same folders as the image.
            folders: Some(self.driver.config.folders.clone()),
            read_only: settings.read_only,
            direct: self.driver.config.direct,
            sector_size: told,
            ..ImageOptions::new(settings.image.clone())
        })?;
        // Requests of a killed process may still be with the kernel, and hold the lock.
        if resumed {
            image.lock()?
        } else {
            image.lock_now()?
        }
        let name = self.node.id().to_string();
        let disk = Arc::new(Disk::new(Arc::new(image), &name));
        self.driver.limits.open(self.node.id(), &disk);
        let (failure, wake) = (Arc::clone(&self.failure), Arc::clone(&self.wake));
        let on_error = Arc::new(move |queue, error| {
            failure.lock().get_or_insert((queue, error));
            wake();
        });
        let (policy, shared) = (self.driver.config.policy, Arc::clone(&disk));
        let spec = DiskSpec { name: name.into(), disk: shared, on_error, policy };
        let id = self.driver.disks.add(spec);
        self.medium = Some(Medium { settings, disk: Arc::clone(&disk), id });
        Ok(disk)
    }

    /// Bytes of a block, as an earlier daemon told the frontend.
    fn told_block(&self) -> Result<Option<u32>, StoreError> {
        let told = self.node.nodes().number(&self.node.backend_key("sector-size"))?;
        Ok(told.filter(|block| BLOCKS.contains(block)))
    }

    /// Whether the grants of the frontend are persistent. A frontend reads the backend's key only
    /// when it connects, so one that continues goes by what an earlier daemon wrote.
    fn agree_on_persistent_grants(&self, resumed: bool) -> Result<bool, StoreError> {
        let nodes = self.node.nodes();
        let agrees = is_persistent(nodes, self.node.frontend())?;
        Ok(agrees && (!resumed || is_persistent(nodes, self.node.backend())?))
    }

    fn close(&mut self) {
        if let Some(medium) = self.medium.take() {
            self.driver.limits.close(self.node.id());
            self.driver.disks.remove(medium.id);
        }
    }

    /// Maps the rings, and binds the channels. If a step fails, all earlier mappings and channels
    /// are released.
    fn queues(
        &self,
        keys: &FrontendKeys,
        disk: &Arc<Disk>,
        persistent: bool,
        resumed: bool,
    ) -> Result<Vec<Box<dyn RequestQueue>>, VbdError> {
        let domain = self.node.id().domain;
        let pages = || {
            let Blkback { grants, budget, .. } = &*self.driver;
            PersistentGrants::new(domain, Arc::clone(grants), Arc::clone(budget))
        };
        let mut queues = Vec::with_capacity(keys.queues.len());
        for queue in &keys.queues {
            queues.push(queue::start(QueueParts {
                ring: self.node.map_ring_pages(&queue.ring)?,
                pages: queue.ring.len(),
                channel: self.node.bind(queue.port)?,
                layout: keys.layout,
                domain,
                engine: Arc::clone(&self.driver.engine),
                persistent: persistent.then(pages),
                disk: Arc::clone(disk),
                resumed,
            })?);
        }
        Ok(queues)
    }

    /// Tells a connected frontend the length of its disk, if that has changed. The frontend reads
    /// the length when the state is written again.
    fn follow_length(&mut self) -> Result<(), StoreError> {
        let Some(medium) = &self.medium else { return Ok(()) };
        let sectors = medium.disk.image().bytes() / SECTOR;
        if sectors == self.sectors || self.node.states()?.0 != State::Connected {
            return Ok(());
        }
        let key = self.node.backend_key("sectors");
        self.node.write_state(State::Connected, |nodes| nodes.put(&key, sectors))?;
        self.sectors = sectors;
        Ok(())
    }
}

impl Device for Vbd {
    type Error = VbdError;
    type Status = VbdStatus;
    type Offer = u16;

    const READY: State = State::Initialised;
    const SERVES_CLOSING: bool = true;

    fn status(&self, bus: &DeviceStatus) -> VbdStatus {
        let medium = self.medium.as_ref();
        let connected = |connection: &Connection| Connected {
            queues: connection.keys.queues.len(),
            ring_pages: connection.keys.queues.first().map_or(0, |queue| queue.ring.len()),
            layout: connection.keys.layout,
            persistent: connection.persistent,
        };
        VbdStatus {
            bus: bus.clone(),
            queues_offered: self.driver.config.queues,
            disk: medium.map(|medium| (medium.id, Arc::clone(&medium.disk))),
            settings: medium.map(|medium| medium.settings.clone()),
            connected: self.connection.as_ref().map(connected),
        }
    }

    fn offer(&self) -> Result<u16, StoreError> {
        Ok(self.driver.config.queues)
    }

    fn write_offer(&self, queues: &u16, nodes: &dyn Nodes) -> Result<(), StoreError> {
        write_offer(nodes, self.node.backend(), *queues)
    }

    /// Nothing changes: the offer does not depend on the hotplug script.
    fn revise_offer(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn connect(&mut self, resumed: bool) -> Result<(), VbdError> {
        let node = Arc::clone(&self.node);
        let settings = Settings::read(node.nodes(), node.backend())?;
        let keys = FrontendKeys::read(node.nodes(), node.frontend(), self.offered()?)?;
        let told = node.nodes().number::<u64>(&node.backend_key("sectors"))?;
        let disk = self.open(settings, resumed)?;
        let persistent = self.agree_on_persistent_grants(resumed)?;
        let ready = self.queues(&keys, &disk, persistent, resumed)?;
        self.sectors = match told {
            Some(told) if resumed => told,
            _ => disk.image().bytes() / SECTOR,
        };
        // Frontends are offered flushes.
        if let Err(error) = disk.set_write_through(false) {
            warn!(port = %self.node.id(), reason = %error, "cannot make the image's data stable");
        }
        info!(port = %self.node.id(), queues = ready.len(), resumed, "connected");
        self.connection = Some(Connection { keys, persistent, ready, attached: Vec::new() });
        Ok(())
    }

    fn write_connected(&self, nodes: &dyn Nodes) -> Result<(), StoreError> {
        let Some(Medium { settings, disk, .. }) = &self.medium else { return Ok(()) };
        let put = |key: &str, value: u64| nodes.put(&self.node.backend_key(key), value);
        let discards = settings.discard && disk.image().discards();
        put("feature-flush-cache", 1)?;
        let persistent = self.connection.as_ref().is_some_and(|connection| connection.persistent);
        put("feature-persistent", persistent.into())?;
        put("feature-discard", discards.into())?;
        if discards {
            put("discard-granularity", DISCARD_GRANULARITY.into())?;
            put("discard-alignment", 0)?;
            put("discard-secure", 0)?;
        }
        put("sectors", self.sectors)?;
        put("info", settings.info().into())?;
        put("sector-size", disk.image().block().into())?;
        put("physical-sector-size", disk.image().physical_block().into())
    }

    fn follow_keys(&mut self) -> Result<bool, VbdError> {
        self.follow_length()?;
        let Some(connection) = &self.connection else { return Ok(true) };
        let keys = FrontendKeys::read(self.node.nodes(), self.node.frontend(), self.offered()?);
        Ok(keys.is_ok_and(|keys| keys == connection.keys))
    }

    /// Waits until none of its requests is with the kernel. The frontend is charged for that time.
    fn disconnect(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let began = Instant::now();
        for queue in &connection.attached {
            drop(self.driver.disks.detach(*queue));
        }
        let waited = began.elapsed().min(LONGEST_CHARGE);
        self.cost += MESSAGE + QUEUE * connection.attached.len() as u32 + waited;
        self.failure.lock().take();
    }

    fn attach(&mut self) {
        let (Some(connection), Some(medium)) = (&mut self.connection, &self.medium) else { return };
        let first = connection.attached.len() as u16;
        for (index, queue) in (first..).zip(connection.ready.drain(..)) {
            self.cost += MESSAGE + QUEUE;
            connection.attached.extend(self.driver.disks.attach(medium.id, index, queue));
        }
    }

    fn take_cost(&mut self) -> Duration {
        std::mem::take(&mut self.cost)
    }

    /// Does nothing: queues of disks send to no other device, so they work as soon as they are
    /// attached.
    fn start(&self) {}

    fn take_failure(&mut self) -> Option<VbdError> {
        let failure = self.failure.lock().take();
        failure.map(|(queue, error)| VbdError::Queue { queue, error })
    }

    fn event_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_events(&mut self, _: Instant) -> Result<(), VbdError> {
        Ok(())
    }

    fn check_progress(&mut self, _: Instant) {}
}

impl Drop for Vbd {
    fn drop(&mut self) {
        self.disconnect();
        self.close();
        self.driver.limits.remove(self.node.id());
    }
}
