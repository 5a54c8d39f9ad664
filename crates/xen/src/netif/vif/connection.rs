//! A connected frontend: its mappings and its bound event channels.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hypervisor::{GrantError, GrantRef, Granted};
use network::topology::QueueId;
use ring::Memory;
use tracing::warn;

use super::error::VifError;
use super::stall::StallDetector;
use super::{Vif, steering_node};
use crate::netif::control_ring::ControlRing;
use crate::netif::device_queue::{
    self, DeviceQueueKeys, DeviceQueueParts, DeviceQueueStatus, DeviceRxQueue, UplinkQueue,
};
use crate::netif::groups::Groups;
use crate::netif::hash_control::HashControl;
use crate::netif::negotiation::{FrontendKeys, wants_groups};
use crate::netif::queue::{Queue, QueueParts, QueueStats, VifShared};
use crate::netif::static_grants::StaticGrants;
use crate::netif::status::MappedPagesStatus;
use switch::PortId;

/// A connected frontend. Dropping it unmaps its pages; queues that workers have must be detached
/// before.
pub struct Connection {
    pub request: FrontendKeys,
    pub shared: Arc<VifShared>,
    /// Queues that are not attached to the fabric yet.
    pub ready: Vec<Queue>,
    /// Queues that are.
    pub attached: Vec<QueueId>,
    /// The device queue, if it is not attached yet.
    pub device_queue: Option<DeviceRxQueue>,
    pub device_queue_status: Option<DeviceQueueStatus>,
    pub stalls: Vec<StallDetector>,
    pub control_ring: Option<ControlRing>,
    /// Another daemon served the frontend before.
    pub resumed: bool,
}

impl Connection {
    /// The state of the pages that stay mapped, if the options allow any.
    pub fn mapped_pages_status(&self) -> Option<MappedPagesStatus> {
        let (pages, most) = self.control_ring.as_ref()?.static_grants().size();
        let (mut hits, mut misses) = (0, 0);
        for stall in &self.stalls {
            hits += stall.stats().hits.get();
            misses += stall.stats().misses.get();
        }
        (most > 0).then_some(MappedPagesStatus { pages, most, hits, misses })
    }
}

/// Making a connection. If a step fails, all mappings and channels made before are released.
impl Vif {
    pub(super) fn new_connection(
        &self,
        request: FrontendKeys,
        port: PortId,
        resumed: bool,
    ) -> Result<Connection, VifError> {
        let shared = self.shared(&request, resumed)?;
        let static_grants = self.static_grants(&request);
        let (ready, stalls) = self.queues(&request, &shared, &static_grants, resumed)?;
        let control_ring = self.new_mailbox(&request, port, static_grants, resumed)?;
        let (device_queue, device_queue_status) = self.device_queue(&request, port)?;
        let attached = Vec::new();
        Ok(Connection {
            request,
            shared,
            ready,
            attached,
            device_queue,
            device_queue_status,
            stalls,
            control_ring,
            resumed,
        })
    }

    /// The common state of all queues of the frontend.
    fn shared(&self, request: &FrontendKeys, resumed: bool) -> Result<Arc<VifShared>, VifError> {
        let transitive_grants = self.driver.transitive_grants.clone();
        let shared = VifShared {
            domain: self.node.id().domain,
            engine: Arc::clone(&self.driver.engine),
            features: request.features,
            groups: Groups::default(),
            align: self.driver.options.align,
            transitive_grants: transitive_grants.filter(|_| request.features.extensions.guest_copy),
            paused: AtomicBool::new(true),
        };
        let only = wants_groups(self.node.nodes(), self.node.frontend())? && !resumed;
        shared.groups.set_only(only);
        Ok(Arc::new(shared))
    }

    /// The queues, over the frontend's rings and channels.
    fn queues(
        &self,
        request: &FrontendKeys,
        shared: &Arc<VifShared>,
        static_grants: &StaticGrants,
        resumed: bool,
    ) -> Result<(Vec<Queue>, Vec<StallDetector>), VifError> {
        let (mut queues, mut stalls) = (Vec::new(), Vec::new());
        for (n, keys) in (0..).zip(&request.queues) {
            let stats = Arc::<QueueStats>::default();
            let parts = QueueParts {
                tx_ring: self.node.map_ring(keys.tx_ring)?,
                rx_ring: self.node.map_ring(keys.rx_ring)?,
                tx_channel: self.node.bind(keys.tx_port)?,
                rx_channel: keys.rx_port.map(|port| self.node.bind(port)).transpose()?,
                vif: Arc::clone(shared),
                stats: Arc::clone(&stats),
                mapped_pages: static_grants
                    .mapped_pages(n)
                    .ok()
                    .filter(|_| static_grants.size().1 > 0)
                    .cloned(),
                resumed,
            };
            queues.push(Queue::new(parts)?);
            stalls.push(StallDetector::new(stats));
        }
        Ok((queues, stalls))
    }

    /// The control ring, if the frontend has one. From now on its settings choose the queues of
    /// `port`.
    fn new_mailbox(
        &self,
        request: &FrontendKeys,
        port: PortId,
        static_grants: StaticGrants,
        resumed: bool,
    ) -> Result<Option<ControlRing>, VifError> {
        let Some((ring, channel)) = request.control else { return Ok(None) };
        let (page, channel) = (self.node.map_ring(ring)?, self.node.bind(channel)?);
        let queues = request.queues.len() as u16;
        let saved = match resumed {
            true => self.node.nodes().find(&steering_node(&self.node))?,
            false => None,
        };
        let saved = saved.and_then(|text| HashControl::restore(queues, &text));
        let control = saved.unwrap_or_else(|| HashControl::new(queues));
        self.driver.fabric.set_selector(port, control.selector());
        let (domain, engine) = (self.node.id().domain, Arc::clone(&self.driver.engine));
        Ok(Some(ControlRing::new(page, channel, domain, engine, control, static_grants)?))
    }

    /// Room for pages that stay mapped: none without a control ring, by which the frontend would
    /// name them. Pages that an earlier daemon had mapped are not known: copies use their grants.
    fn static_grants(&self, request: &FrontendKeys) -> StaticGrants {
        let most = if request.control.is_some() { self.driver.options.cache.into() } else { 0 };
        let grants = Arc::clone(&self.node.hypervisor().grants);
        let (queues, budget) = (request.queues.len() as u16, Arc::clone(&self.driver.budget));
        StaticGrants::new(self.node.id().domain, grants, most, queues, budget)
    }

    /// The device queue, if the frontend requests one, and its status. A vif without one connects
    /// all the same: its frames come through the switch.
    fn device_queue(
        &self,
        request: &FrontendKeys,
        port: PortId,
    ) -> Result<(Option<DeviceRxQueue>, Option<DeviceQueueStatus>), VifError> {
        let Some(keys) = &request.device_queue else { return Ok((None, None)) };
        let pages = self.listed(keys)?;
        let memory = self.node.hypervisor().grants.map(self.node.id().domain, &pages)?;
        let (device_queue, device_queue_status) = match self.uplink_queue(port, memory, keys.pages)
        {
            Ok(uplink_queue) => {
                let ring = self.node.map_ring(keys.ring)?;
                let channel = self.node.bind(keys.port)?;
                let device_queue =
                    DeviceRxQueue::new(DeviceQueueParts { ring, channel, uplink_queue, pages })?;
                let device_queue_status = device_queue.status();
                (Some(device_queue), device_queue_status)
            }
            Err(error) => (None, DeviceQueueStatus::Refused(error.to_string())),
        };
        let text = match &device_queue_status {
            DeviceQueueStatus::Active { queue, .. } => queue.clone(),
            DeviceQueueStatus::Refused(reason) => {
                warn!(port = %self.node.id(), %reason, "the guest gets no device queue");
                format!("none: {reason}")
            }
        };
        self.node.nodes().put(&self.node.backend_key(device_queue::STATUS_KEY), text)?;
        Ok((device_queue, Some(device_queue_status)))
    }

    /// The grants of the pages that a device is to write into.
    fn listed(&self, keys: &DeviceQueueKeys) -> Result<Vec<GrantRef>, VifError> {
        let domain = self.node.id().domain;
        let at = Granted { domain, reference: keys.list, offset: 0 };
        let len = keys.pages as usize * size_of::<u32>();
        let bytes = ring::granted_copy::read(&*self.driver.engine, at, len)
            .ok_or(GrantError::Refused { domain, references: vec![keys.list] })?;
        let (references, _) = bytes.as_chunks::<4>();
        Ok(references.iter().map(|bytes| GrantRef(u32::from_le_bytes(*bytes))).collect())
    }

    /// A queue of the device, which writes frames for the vif's address into these pages. Such
    /// frames bypass the switch, so the address is locked to the vif's port first: no other port
    /// has it then, or can take it later.
    fn uplink_queue(
        &self,
        port: PortId,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn UplinkQueue>, Box<dyn Error + Send + Sync>> {
        let uplink = self.driver.uplink.as_ref().ok_or("no device gives queues")?;
        let mac = self.node.nodes().text(&self.node.backend_key("mac"))?;
        let mac = mac.parse()?;
        self.driver.fabric.lock_source(port, mac)?;
        uplink.add_queue(mac, pages, count)
    }
}
