//! Service for all vifs of this domain: a thread that finds them in the store as the toolstack
//! makes them, and serves them until it takes them away.
//!
//! One thread for all: whatever a frontend does, it costs no more than one look at its directory a
//! turn, since changes that come faster are one change.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hypervisor::store::Changes;
use hypervisor::{DomId, Hypervisor, StoreError, Watch};
use network::count::QueueCounters;
use network::fabric::Fabric;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thiserror::Error;
use tracing::warn;

use crate::netif::device::{Copier, Device, Host, Key, Token};
use crate::netif::direct::Uplink;
use crate::netif::options::PortOptions;
use crate::netif::settings::is_ours;
use crate::netif::status::VifStatus;

/// How often it is looked whether frontends take what comes.
const ROUND: Duration = Duration::from_secs(2);

/// What service for vifs is to be like.
#[derive(Clone, Copy, Debug)]
pub struct ServiceConfig {
    /// Queues that a vif may have.
    pub queues: u16,
    /// How long a frontend may go without posting buffers while frames for it come, before it
    /// counts as stalled.
    pub stall: Duration,
    /// How vifs are served, where there is a choice.
    pub options: PortOptions,
}

/// Why there can be no service.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread or descriptor is left.
    #[error("serving vifs: {0}")]
    Os(#[from] io::Error),
}

/// Service for vifs. Dropped, it ends: queues are taken out of the datapath, and nothing is written
/// into the store, so that whoever comes next finds the vifs connected, and takes up their rings
/// where they stand.
pub struct Service {
    host: Arc<Host>,
    board: Arc<Mutex<Vec<VifStatus>>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Begins to serve.
    ///
    /// # Errors
    /// When the store can't be asked, or there is nothing left to make a thread of.
    pub fn start(
        fabric: Arc<Fabric>,
        hypervisor: Hypervisor,
        config: ServiceConfig,
    ) -> Result<Self, ServiceError> {
        Self::start_with(fabric, hypervisor, config, None)
    }

    /// Begins to serve vifs that may ask for a queue of a device, where there is one.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with(
        fabric: Arc<Fabric>,
        hypervisor: Hypervisor,
        config: ServiceConfig,
        uplink: Option<Arc<dyn Uplink>>,
    ) -> Result<Self, ServiceError> {
        let changes = Changes::new()?;
        let root = format!("/local/domain/{}/backend/vif", hypervisor.domain);
        let watch = changes.watch(&*hypervisor.store, &root, Token::All)?;
        let engine = Arc::new(Copier(Arc::clone(&hypervisor.grants)));
        let lender = hypervisor.grants.lender();
        let ServiceConfig { queues, stall, options } = config;
        let (queues, gone, budget) = (queues.max(1), Mutex::default(), Arc::default());
        let host = Host {
            hypervisor,
            fabric,
            engine,
            lender,
            changes,
            queues,
            stall,
            options,
            budget,
            uplink,
            gone,
        };
        let host = Arc::new(host);
        let board: Arc<Mutex<Vec<VifStatus>>> = Arc::default();
        let stop = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
        );
        let keeper = Keeper {
            host: Arc::clone(&host),
            root,
            _watch: watch,
            devices: BTreeMap::new(),
            board: Arc::clone(&board),
            stop: Arc::clone(&stop),
            watched: Instant::now(),
            again: None,
        };
        let thread = std::thread::Builder::new().name("rm-vifs".into()).spawn(|| keeper.run())?;
        Ok(Service { host, board, stop, thread: Some(thread) })
    }

    /// The store.
    pub(crate) fn nodes(&self) -> &dyn hypervisor::Nodes {
        self.host.hypervisor.store.nodes()
    }

    /// Our directory of a vif.
    pub(crate) fn back(&self, Key { domain, handle }: Key) -> String {
        format!("/local/domain/{}/backend/vif/{domain}/{handle}", self.host.hypervisor.domain)
    }

    /// All vifs that are served, by name.
    pub fn vifs(&self) -> Vec<VifStatus> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was counted on vifs that are gone, to be taken out every few seconds. While it is held
    /// no vif goes, so that whoever adds up all there is finds each counter once.
    pub fn gone(&self) -> MutexGuard<'_, Vec<Arc<QueueCounters>>> {
        self.host.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it; what was counted on all vifs that [`gone`](Self::gone) did not have yet.
    pub fn end(self) -> Vec<Arc<QueueCounters>> {
        let host = Arc::clone(&self.host);
        drop(self);
        std::mem::take(&mut *host.gone.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Nobody else has it, so there is room.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread.
struct Keeper {
    host: Arc<Host>,
    root: String,
    _watch: Watch,
    devices: BTreeMap<Key, Device>,
    board: Arc<Mutex<Vec<VifStatus>>>,
    stop: Arc<OwnedFd>,
    /// When it was last looked whether frontends take what comes.
    watched: Instant,
    /// When to look for vifs again, because it could not be done.
    again: Option<Instant>,
}

impl Keeper {
    fn run(mut self) {
        while let Some(mail) = self.wait() {
            let now = Instant::now();
            for token in self.host.changes.take() {
                match token {
                    Token::All => self.find(),
                    Token::One(key) => self.look(key, now),
                }
            }
            if self.again.is_some_and(|at| at <= now) {
                self.find();
            }
            for key in mail {
                if let Some(device) = self.devices.get_mut(&key) {
                    device.work(now);
                }
            }
            let due = |device: &Device| device.wakes().is_some_and(|at| at <= now);
            for device in self.devices.values_mut().filter(|device| due(device)) {
                device.look(now);
                device.work(now);
            }
            self.devices.values_mut().for_each(Device::attach);
            self.devices.values().for_each(Device::go);
            if now.saturating_duration_since(self.watched) >= self.round() {
                self.watched = now;
                self.devices.values_mut().for_each(|device| device.watch(now));
            }
            let all = self.devices.values().map(Device::status).collect();
            *self.board.lock().unwrap_or_else(PoisonError::into_inner) = all;
        }
    }

    fn round(&self) -> Duration {
        ROUND.min(self.host.stall / 4)
    }

    /// Sleeps until there is something to do. Vifs with messages in their control rings; `None`:
    /// the end.
    fn wait(&self) -> Option<Vec<Key>> {
        let boxes: Vec<_> = self
            .devices
            .iter()
            .filter_map(|(key, device)| Some((*key, device.mailbox()?)))
            .collect();
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.host.changes.waker(), PollFlags::IN),
        ];
        fds.extend(
            boxes
                .iter()
                .map(|(_, mailbox)| PollFd::from_borrowed_fd(mailbox.waker(), PollFlags::IN)),
        );
        let now = Instant::now();
        let connected = self.devices.values().any(Device::is_connected);
        let round = connected.then(|| (self.watched + self.round()).saturating_duration_since(now));
        let due = self.devices.values().filter_map(Device::wakes).chain(self.again).min();
        let due = due.map(|at| at.saturating_duration_since(now));
        let timeout =
            round.into_iter().chain(due).min().and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted wait is one that found nothing.
        let _ = poll(&mut fds, timeout.as_ref());
        let ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        if ready(fds.first()) {
            return None;
        }
        let with_mail = boxes.iter().zip(fds.iter().skip(2)).filter(|(_, fd)| ready(Some(fd)));
        Some(with_mail.map(|((key, _), _)| *key).collect())
    }

    /// Finds out which vifs there are.
    fn find(&mut self) {
        let told = self.again.take().is_some();
        let there = match self.list() {
            Ok(there) => there,
            Err(error) => {
                if !told {
                    warn!(%error, "looking for vifs");
                }
                self.again = Some(Instant::now() + ROUND);
                return;
            }
        };
        self.devices.retain(|key, _| there.contains_key(key));
        for (key, path) in there {
            if self.devices.contains_key(&key) {
                continue;
            }
            match Device::new(Arc::clone(&self.host), key, path) {
                Ok(mut device) => {
                    device.look(Instant::now());
                    self.devices.insert(key, device);
                }
                // It may have gone again: then something changes.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    warn!(vif = %key, %error, "not served yet");
                    self.again = Some(Instant::now() + ROUND);
                }
            }
        }
    }

    /// The vifs that are for us, with their directories.
    fn list(&self) -> Result<BTreeMap<Key, String>, StoreError> {
        let nodes = self.host.hypervisor.store.nodes();
        let mut all = BTreeMap::new();
        for domain in list(nodes, &self.root)? {
            let Ok(number) = domain.parse() else { continue };
            for handle in list(nodes, &format!("{}/{domain}", self.root))? {
                let path = format!("{}/{domain}/{handle}", self.root);
                let Ok(handle) = handle.parse() else { continue };
                if is_ours(nodes, &path)? {
                    all.insert(Key { domain: DomId(number), handle }, path);
                }
            }
        }
        Ok(all)
    }

    fn look(&mut self, key: Key, now: Instant) {
        if let Some(device) = self.devices.get_mut(&key) {
            device.look(now);
            device.work(now);
        }
    }
}

/// The names in a directory that may not be there.
fn list(nodes: &dyn hypervisor::Nodes, path: &str) -> Result<Vec<String>, StoreError> {
    match nodes.directory(path) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        names => names,
    }
}
