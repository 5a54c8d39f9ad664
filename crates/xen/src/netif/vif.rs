//! One vif, as the bus drives it: the offer to its frontend, its port in the fabric, and its
//! connection.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use frame::Prefix;
use hypervisor::{Nodes, StoreError};
use network::control_budget::{MESSAGE, QUEUE, REGION};
use network::fabric::{FabricError, NewPort, PairChange};
use network::port::{QueueError, QueuePair};
use network::restrictions::RestrictionsTemplate;
use network::token_bucket::Rate;
use network::topology::QueueId;
use parking_lot::Mutex;
use switch::PortId;
use tracing::{info, warn};

mod connection;
mod error;
mod stall;

use connection::Connection;
pub use error::VifError;

use super::device_queue;
use super::extensions::Extensions;
use super::negotiation::{BackendFeatures, FrontendKeys, wants_groups};
use super::netback::Netback;
use super::options::PortOptions;
use super::settings::{self, Settings};
use super::status::VifStatus;
use crate::xenbus::driver::Wake;
use crate::xenbus::{Device, DeviceStatus, Node};

/// Interval at which a control message that waits for the end of bursts is tried again.
const BURST: Duration = Duration::from_millis(1);

/// A vif.
pub struct Vif {
    node: Arc<Node>,
    driver: Arc<Netback>,
    wake: Wake,
    /// Its port in the fabric, since it was first connected.
    port: Option<PortId>,
    connection: Option<Connection>,
    /// The error that a worker found in a queue: the queue's number, and the error.
    failure: Arc<Mutex<Option<(u16, QueueError)>>>,
    /// Time of the next attempt to finish a control message that waits for the end of bursts.
    retry: Option<Instant>,
    settings: Option<Settings>,
    /// The parts that the restrictions of the port were made from.
    restricted: Option<Restricted>,
    /// The frontend posts no buffers for the frames that come.
    stalled: bool,
    /// Cost to the workers that was not charged yet.
    cost: Duration,
}

impl Vif {
    /// A vif that was just found.
    pub fn new(driver: Arc<Netback>, node: Arc<Node>, wake: Wake) -> Self {
        Vif {
            node,
            driver,
            wake,
            port: None,
            connection: None,
            failure: Arc::default(),
            retry: None,
            settings: None,
            restricted: None,
            stalled: false,
            cost: Duration::ZERO,
        }
    }

    /// The operator's number of queues.
    fn queues_wanted(&self) -> Result<u16, StoreError> {
        let wanted = self.node.nodes().number::<u16>(&self.node.backend_key("ringmain/queues"))?;
        let most = self.driver.queues;
        Ok(wanted.filter(|queues| *queues > 0).unwrap_or(most).min(most))
    }

    /// The features that were offered to the frontend.
    fn offered(&self) -> Result<BackendFeatures, StoreError> {
        let number = |node: &str| self.node.nodes().number::<u16>(node);
        let now = number(&self.node.backend_key("multi-queue-max-queues"))?.unwrap_or(1);
        let first = number(&first_offer_node(&self.node))?.unwrap_or(0);
        let extensions = Extensions::offered(self.node.nodes(), self.node.backend())?;
        Ok(BackendFeatures { queues: now.max(first), extensions })
    }

    /// The vif's port in the fabric. A port whose settings have changed is created anew.
    fn port(&mut self, settings: &Settings) -> Result<PortId, FabricError> {
        let changed = self
            .settings
            .as_ref()
            .is_some_and(|old| (&old.rule, old.mtu) != (&settings.rule, settings.mtu));
        if let Some(port) = self.port {
            if !changed {
                self.follow_restrictions(port, settings);
                return Ok(port);
            }
            self.driver.remove_port(port);
            self.port = None;
        }
        let (failure, wake) = (Arc::clone(&self.failure), Arc::clone(&self.wake));
        let on_error = Arc::new(move |queue, error| {
            failure.lock().get_or_insert((queue, error));
            wake();
        });
        let PortOptions { coalescing, policy, .. } = self.driver.options;
        let (rule, mtu) = (settings.rule.clone(), settings.mtu);
        let template = self.driver.restrictions();
        let restrictions = settings.restrictions(&template);
        let name = self.node.id().to_string().into();
        let spec = NewPort { name, rule, mtu, on_error, coalescing, policy, restrictions };
        let port = self.driver.fabric.add_port(spec)?;
        self.port = Some(port);
        self.restricted = Some(Restricted::new(template, settings));
        Ok(port)
    }

    /// Applies the operator's restrictions to the port, if they have changed.
    fn follow_restrictions(&mut self, port: PortId, settings: &Settings) {
        let template = self.driver.restrictions();
        let wanted = Restricted::new(Arc::clone(&template), settings);
        if self.restricted.as_ref().is_some_and(|present| present.is_same(&wanted)) {
            return;
        }
        self.driver.fabric.set_restrictions(port, settings.restrictions(&template));
        self.restricted = Some(wanted);
    }

    /// The operator's settings now.
    fn read_settings(&self) -> Result<Settings, StoreError> {
        let backend = self.node.backend();
        let settings = Settings::read(self.node.nodes(), backend)?;
        settings.check_budget(backend, &self.driver.restrictions())?;
        Ok(settings)
    }

    /// Applies the settings that take effect at once, connected or not: rates, addresses and
    /// budgets. Invalid settings change nothing, as the operator may still be writing them.
    fn follow_settings(&mut self) -> Result<(), StoreError> {
        let read = self.read_settings();
        let (Some(port), Some(settings)) = (self.port, &mut self.settings) else { return Ok(()) };
        match read {
            Ok(Settings { rate, addresses, budget, .. }) => {
                (settings.rate, settings.addresses) = (rate, addresses);
                settings.budget = budget;
            }
            Err(StoreError::Value { .. }) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let settings = settings.clone();
        self.follow_restrictions(port, &settings);
        Ok(())
    }
}

/// The parts that restrictions of a port are made from.
struct Restricted {
    template: Arc<RestrictionsTemplate>,
    rate: Option<Rate>,
    addresses: Vec<Prefix>,
    budget: Option<String>,
}

impl Restricted {
    fn new(template: Arc<RestrictionsTemplate>, settings: &Settings) -> Self {
        let (rate, addresses) = (settings.rate(), settings.addresses.clone());
        Restricted { template, rate, addresses, budget: settings.budget.clone() }
    }

    fn is_same(&self, other: &Restricted) -> bool {
        Arc::ptr_eq(&self.template, &other.template)
            && (self.rate, &self.addresses) == (other.rate, &other.addresses)
            && self.budget == other.budget
    }
}

impl Device for Vif {
    type Error = VifError;
    type Status = VifStatus;
    type Offer = BackendFeatures;

    fn status(&self, bus: &DeviceStatus) -> VifStatus {
        let mut status = VifStatus::new(bus, self.stalled);
        status.port = self.port;
        status.settings = self.settings.clone();
        if let Some(connection) = &self.connection {
            status.queues = connection.request.queues.len();
            status.features = connection.request.features;
            status.cache = connection.mapped_pages_status();
            status.device_queue = connection.device_queue_status.clone();
        }
        status
    }

    fn offer(&self) -> Result<BackendFeatures, StoreError> {
        let wanted = settings::extensions(self.node.nodes(), self.node.backend())?;
        let extensions = wanted.and(self.driver.extensions());
        Ok(BackendFeatures { queues: self.queues_wanted()?, extensions })
    }

    fn write_offer(&self, offer: &BackendFeatures, nodes: &dyn Nodes) -> Result<(), StoreError> {
        let place = self.node.backend_key(device_queue::STATUS_KEY);
        for out_of_date in [steering_node(&self.node), first_offer_node(&self.node), place] {
            match nodes.remove(&out_of_date) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        offer.write(nodes, self.node.backend())?;
        match self.driver.uplink.is_some() {
            true => nodes.put(&self.node.backend_key(device_queue::FEATURE_KEY), 1),
            false => Ok(()),
        }
    }

    /// The hotplug script, which writes the operator's number of queues, runs only after the first
    /// offer. A guest that is just being created reads the offer later. A running guest may have
    /// read the first one, so a request that fits the first offer is accepted.
    fn revise_offer(&self) -> Result<(), StoreError> {
        let (before, queues) = (self.offered()?.queues, self.queues_wanted()?);
        let (nodes, node) = (self.node.nodes(), first_offer_node(&self.node));
        if nodes.find(&node)?.is_some() || before == queues {
            return Ok(());
        }
        nodes.put(&node, before)?;
        nodes.put(&self.node.backend_key("multi-queue-max-queues"), queues)
    }

    fn connect(&mut self, resumed: bool) -> Result<(), VifError> {
        let settings = self.read_settings()?;
        let request = FrontendKeys::read(self.node.nodes(), self.node.frontend(), self.offered()?)?;
        let port = self.port(&settings)?;
        let connection = self.new_connection(request, port, resumed)?;
        let queues = connection.ready.len();
        info!(port = %self.node.id(), queues, resumed, "connected");
        self.connection = Some(connection);
        self.settings = Some(settings);
        self.stalled = false;
        Ok(())
    }

    fn follow_keys(&mut self) -> Result<bool, VifError> {
        let offer = self.offered()?;
        self.follow_settings()?;
        let Some(connection) = &self.connection else { return Ok(true) };
        let (nodes, frontend) = (self.node.nodes(), self.node.frontend());
        // Groups that the frontend named to an earlier daemon are not known, so it receives all
        // groups.
        connection.shared.groups.set_only(wants_groups(nodes, frontend)? && !connection.resumed);
        let request = FrontendKeys::read(nodes, frontend, offer);
        Ok(request.is_ok_and(|request| request == connection.request))
    }

    fn disconnect(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if let Some(port) = self.port {
            self.driver.fabric.set_selector(port, None);
        }
        // Dropping the connection unmaps its pages.
        drop(self.driver.fabric.take_out(&connection.attached));
        if let Some(port) = self.port {
            let gone = |queue: &QueueId| PairChange { index: 0, queue: Some(*queue), pair: None };
            self.driver.fabric.put_back(port, connection.attached.iter().map(gone).collect());
        }
        self.cost += MESSAGE + QUEUE * (connection.attached.len() as u32 + 2);
        self.failure.lock().take();
    }

    fn attach(&mut self) {
        let (Some(connection), Some(port)) = (&mut self.connection, self.port) else { return };
        let new = |(index, pair, receives): (u16, Box<dyn QueuePair>, bool)| PairChange {
            index,
            queue: None,
            pair: Some((pair, receives)),
        };
        let ready = (0..).zip(connection.ready.drain(..));
        let mut changes: Vec<PairChange> =
            ready.map(|(index, queue)| new((index, Box::new(queue), true))).collect();
        if let Some(device_queue) = connection.device_queue.take() {
            // The device queue comes last. The fabric puts nothing into its ring.
            let index = connection.request.queues.len() as u16;
            changes.push(new((index, Box::new(device_queue), false)));
        }
        let count = changes.len() as u32;
        if count > 0 {
            let queues = self.driver.fabric.put_back(port, changes);
            connection.attached.extend(queues.into_iter().flatten());
            self.cost += MESSAGE + QUEUE * (count + 1) + 2 * REGION * count;
        }
    }

    fn take_cost(&mut self) -> Duration {
        std::mem::take(&mut self.cost)
    }

    fn start(&self) {
        if let Some(connection) = &self.connection {
            connection.shared.paused.store(false, Ordering::Relaxed);
        }
    }

    fn take_failure(&mut self) -> Option<VifError> {
        let failure = self.failure.lock().take();
        failure.map(|(queue, error)| VifError::Queue { queue, error })
    }

    fn event_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.connection.as_ref()?.control_ring.as_ref()?.waker())
    }

    fn deadline(&self) -> Option<Instant> {
        self.retry
    }

    /// Executes the messages of the control ring.
    fn handle_events(&mut self, now: Instant) -> Result<(), VifError> {
        self.retry = None;
        let Some(control_ring) =
            self.connection.as_mut().and_then(|connection| connection.control_ring.as_mut())
        else {
            return Ok(());
        };
        let executed = control_ring.execute(now);
        self.retry = control_ring.is_waiting().then(|| now + BURST);
        if executed.map_err(VifError::ControlRing)? == 0 {
            return Ok(());
        }
        // Settings are in force and saved before the frontend has its responses.
        if let Some(port) = self.port {
            self.driver.fabric.set_selector(port, control_ring.control().selector());
        }
        self.cost += MESSAGE + QUEUE;
        let saved =
            self.node.nodes().put(&steering_node(&self.node), control_ring.control().save());
        if let Err(error) = saved {
            warn!(port = %self.node.id(), reason = %error, "cannot save the hash settings for a later daemon");
        }
        if control_ring.publish().map_err(VifError::ControlRing)? {
            (self.wake)();
        }
        Ok(())
    }

    fn check_progress(&mut self, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        let stalls = connection.stalls.iter_mut().map(|stall| stall.stalled_since(now));
        // One stalled queue is enough: flows for it make no progress.
        let since = stalls.flatten().min();
        let stalled =
            since.is_some_and(|since| now.saturating_duration_since(since) >= self.driver.stall);
        if std::mem::replace(&mut self.stalled, stalled) != stalled {
            match stalled {
                true => {
                    warn!(port = %self.node.id(), "the frontend has stalled: it posts no receive buffers")
                }
                false => info!(port = %self.node.id(), "the frontend posts receive buffers again"),
            }
        }
    }
}

impl Drop for Vif {
    fn drop(&mut self) {
        if let Some(port) = self.port {
            self.driver.remove_port(port);
        }
    }
}

/// The node for the hash settings that a frontend has made by its control ring. They are in no
/// ring, and the next daemon needs them.
fn steering_node(node: &Node) -> String {
    node.backend_key("ringmain/steering")
}

/// The node for the number of queues that was offered before the hotplug script ran, if it was
/// another one.
fn first_offer_node(node: &Node) -> String {
    node.backend_key("ringmain/first-offer")
}
