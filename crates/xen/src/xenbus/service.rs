//! The service for all devices of one class: a thread that finds devices in the store as the
//! toolstack creates them, and serves them until the toolstack removes them.
//!
//! One thread serves all devices. A frontend costs at most one reading of its directory in each
//! round, since changes that come faster count as one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hypervisor::store::Changes;
use hypervisor::{DomId, Hypervisor, Nodes, StoreError, Watch};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thiserror::Error;
use tracing::warn;

use super::{Backend, Bus, Change, Device, DeviceId, Driver};

/// Time between a failure of the store and the next search for devices.
const RETRY: Duration = Duration::from_secs(2);

/// The reason why a service cannot start.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread or descriptor is left.
    #[error("serving Xen devices: {0}")]
    Os(#[from] io::Error),
}

type StatusOf<D> = <<D as Driver>::Device as Device>::Status;
type Statuses<D> = Arc<Mutex<Vec<StatusOf<D>>>>;

/// The service for the devices of one class. On drop, devices disconnect and nothing is written
/// into the store: the next service finds them connected, and continues their rings.
pub struct Service<D: Driver> {
    bus: Arc<Bus<D>>,
    statuses: Statuses<D>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Driver> Service<D> {
    /// Begins to serve.
    ///
    /// # Errors
    /// When the store fails, or no thread or descriptor is left.
    pub fn start(hypervisor: Hypervisor, driver: Arc<D>) -> Result<Self, ServiceError> {
        let changes = Changes::new()?;
        let root = format!("/local/domain/{}/backend/{}", hypervisor.domain, D::CLASS);
        let watch = changes.watch(&*hypervisor.store, &root, Change::All)?;
        let bus = Arc::new(Bus { hypervisor, changes, driver });
        let statuses: Statuses<D> = Arc::default();
        let stop = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
        );
        let event_loop = EventLoop {
            bus: Arc::clone(&bus),
            root,
            _watch: watch,
            devices: BTreeMap::new(),
            statuses: Arc::clone(&statuses),
            stop: Arc::clone(&stop),
            checked: Instant::now(),
            retry: None,
        };
        let thread = std::thread::Builder::new()
            .name(format!("rm-{}s", D::CLASS))
            .spawn(|| event_loop.run())?;
        Ok(Service { bus, statuses, stop, thread: Some(thread) })
    }

    /// Makes the service read all devices again.
    pub fn update_all(&self) {
        self.bus.changes.add(Change::Each);
    }

    /// Makes the service read one device again.
    pub fn update(&self, id: DeviceId) {
        self.bus.changes.add(Change::Device(id));
    }

    /// The driver of the devices.
    pub fn driver(&self) -> &Arc<D> {
        &self.bus.driver
    }

    /// The nodes of the store.
    pub fn nodes(&self) -> &dyn Nodes {
        self.bus.hypervisor.store.nodes()
    }

    /// The backend directory of a device.
    pub fn backend_path(&self, DeviceId { class, domain, handle }: DeviceId) -> String {
        let own = self.bus.hypervisor.domain;
        format!("/local/domain/{own}/backend/{class}/{domain}/{handle}")
    }

    /// The status of all devices that are served, in the order of their names.
    pub fn statuses(&self) -> Vec<StatusOf<D>> {
        self.statuses.lock().clone()
    }
}

impl<D: Driver> Drop for Service<D> {
    fn drop(&mut self) {
        // The counter is zero, so there is room.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The event loop of the thread.
struct EventLoop<D: Driver> {
    bus: Arc<Bus<D>>,
    root: String,
    _watch: Watch,
    devices: BTreeMap<DeviceId, Backend<D::Device>>,
    statuses: Statuses<D>,
    stop: Arc<OwnedFd>,
    /// Time of the last check whether frontends take frames.
    checked: Instant,
    /// Time of the next search for devices, after the store failed.
    retry: Option<Instant>,
}

impl<D: Driver> EventLoop<D> {
    fn run(mut self) {
        while let Some(signalled) = self.wait() {
            let now = Instant::now();
            self.follow_changes(now);
            for id in signalled {
                if let Some(device) = self.devices.get_mut(&id) {
                    device.handle_events(now);
                }
            }
            let due = |device: &Backend<_>| device.deadline().is_some_and(|at| at <= now);
            for device in self.devices.values_mut().filter(|device| due(device)) {
                device.update(now);
            }
            self.devices.values_mut().for_each(|device| device.attach(now));
            self.devices.values().for_each(|device| device.device().start());
            self.check_progress(now);
            let statuses = self.devices.values().map(Backend::status).collect();
            *self.statuses.lock() = statuses;
        }
    }

    fn follow_changes(&mut self, now: Instant) {
        for change in self.bus.changes.take() {
            match change {
                Change::All => self.find_devices(),
                Change::Each => {
                    self.devices.values_mut().for_each(|device| device.update(now));
                }
                Change::Device(id) => {
                    if let Some(device) = self.devices.get_mut(&id) {
                        device.update(now);
                    }
                }
            }
        }
        if self.retry.is_some_and(|at| at <= now) {
            self.find_devices();
        }
    }

    fn check_progress(&mut self, now: Instant) {
        if now.saturating_duration_since(self.checked) < self.bus.driver.check_period() {
            return;
        }
        self.checked = now;
        for device in self.devices.values_mut().filter(|device| device.is_connected()) {
            device.device_mut().check_progress(now);
        }
    }

    /// Sleeps until there is something to do. Returns the devices whose event source was
    /// signalled; `None` when the service ends.
    fn wait(&self) -> Option<Vec<DeviceId>> {
        let sources: Vec<_> = self
            .devices
            .iter()
            .filter_map(|(id, device)| Some((*id, device.event_source()?)))
            .collect();
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.bus.changes.waker(), PollFlags::IN),
        ];
        fds.extend(sources.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        // An interrupted wait counts as one without events.
        let _ = poll(&mut fds, self.timeout().as_ref());
        let ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        if ready(fds.first()) {
            return None;
        }
        let signalled = sources.iter().zip(fds.iter().skip(2)).filter(|(_, fd)| ready(Some(fd)));
        Some(signalled.map(|((id, _), _)| *id).collect())
    }

    /// Longest sleep; `None`: until an event.
    fn timeout(&self) -> Option<Timespec> {
        let connected = self.devices.values().any(Backend::is_connected);
        let check = connected.then(|| self.checked + self.bus.driver.check_period());
        let deadlines = self.devices.values().filter_map(Backend::deadline).chain(self.retry);
        let until = check.into_iter().chain(deadlines).min()?;
        Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()
    }

    /// Reads which devices exist.
    fn find_devices(&mut self) {
        let logged = self.retry.take().is_some();
        let found = match self.list_devices() {
            Ok(found) => found,
            Err(error) => {
                if !logged {
                    warn!(class = D::CLASS, reason = %error, "cannot look for devices; trying again");
                }
                self.retry = Some(Instant::now() + RETRY);
                return;
            }
        };
        self.devices.retain(|id, device| {
            let exists = found.contains_key(id) || device.is_stranded();
            if !exists {
                device.remove_errors();
            }
            exists
        });
        for (id, path) in found {
            if self.devices.contains_key(&id) {
                continue;
            }
            match Backend::probe(&self.bus, id, path) {
                Ok(mut device) => {
                    device.update(Instant::now());
                    self.devices.insert(id, device);
                }
                // The toolstack may have removed it meanwhile; then something changes.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    warn!(port = %id, reason = %error, "not served yet");
                    self.retry = Some(Instant::now() + RETRY);
                }
            }
        }
    }

    /// The devices that are for this driver, with their backend directories.
    fn list_devices(&self) -> Result<BTreeMap<DeviceId, String>, StoreError> {
        let nodes = self.bus.hypervisor.store.nodes();
        let mut devices = BTreeMap::new();
        for domain in list(nodes, &self.root)? {
            let Ok(number) = domain.parse() else { continue };
            for handle in list(nodes, &format!("{}/{domain}", self.root))? {
                let path = format!("{}/{domain}/{handle}", self.root);
                let Ok(handle) = handle.parse() else { continue };
                if self.bus.driver.is_ours(nodes, &path)? {
                    let id = DeviceId { class: D::CLASS, domain: DomId(number), handle };
                    devices.insert(id, path);
                }
            }
        }
        Ok(devices)
    }
}

/// The names in a directory; none if it is missing.
fn list(nodes: &dyn Nodes, path: &str) -> Result<Vec<String>, StoreError> {
    match nodes.directory(path) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        names => names,
    }
}
