//! A connected frontend: what is mapped and bound of it.

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
use crate::netif::backend::{Gauge, Parts, Queue, VifShared};
use crate::netif::cache::Cache;
use crate::netif::control::Control;
use crate::netif::direct::{self, Direct, Lease, Standing};
use crate::netif::groups::Groups;
use crate::netif::handshake::{Request, wants_groups};
use crate::netif::mailbox::Mailbox;
use crate::netif::settings::Settings;
use crate::netif::status::Cached;
use switch::PortId;

/// A connected frontend. Dropped, it is unmapped; queues that are with workers must be detached
/// before.
pub struct Connection {
    pub request: Request,
    pub shared: Arc<VifShared>,
    /// Queues that are not attached to the fabric yet.
    pub ready: Vec<Queue>,
    /// Queues that are.
    pub attached: Vec<QueueId>,
    /// The device queue, if it is not attached yet.
    pub direct: Option<Direct>,
    pub standing: Option<Standing>,
    pub stalls: Vec<StallDetector>,
    pub mailbox: Option<Mailbox>,
    /// Another daemon served the frontend before.
    pub resumed: bool,
}

impl Connection {
    /// How many of its pages stay mapped, if any may.
    pub fn cached(&self) -> Option<Cached> {
        let (pages, most) = self.mailbox.as_ref()?.cache().size();
        let (mut hits, mut misses) = (0, 0);
        for stall in &self.stalls {
            hits += stall.gauge().hits.get();
            misses += stall.gauge().misses.get();
        }
        (most > 0).then_some(Cached { pages, most, hits, misses })
    }
}

/// Making a connection. Whatever fails, what was mapped and bound before is released.
impl Vif {
    pub(super) fn new_connection(
        &self,
        request: Request,
        settings: &Settings,
        port: PortId,
        resumed: bool,
    ) -> Result<Connection, VifError> {
        let shared = self.shared(&request, settings, resumed)?;
        let cache = self.cache(&request);
        let (ready, stalls) = self.queues(&request, &shared, &cache, resumed)?;
        let mailbox = self.new_mailbox(&request, port, cache, resumed)?;
        let (direct, standing) = self.direct(&request)?;
        let attached = Vec::new();
        Ok(Connection {
            request,
            shared,
            ready,
            attached,
            direct,
            standing,
            stalls,
            mailbox,
            resumed,
        })
    }

    /// What all queues of the frontend share.
    fn shared(
        &self,
        request: &Request,
        settings: &Settings,
        resumed: bool,
    ) -> Result<Arc<VifShared>, VifError> {
        let lender = self.driver.lender.clone();
        let shared = VifShared {
            domain: self.node.id().domain,
            engine: Arc::clone(&self.driver.engine),
            takes: request.takes,
            rate: settings.rate(),
            groups: Groups::default(),
            align: self.driver.options.align,
            lender: lender.filter(|_| request.takes.extensions.guest_copy),
            held: AtomicBool::new(true),
        };
        let only = wants_groups(self.node.nodes(), self.node.frontend())? && !resumed;
        shared.groups.set_only(only);
        Ok(Arc::new(shared))
    }

    /// The queues, over the frontend's rings and channels.
    fn queues(
        &self,
        request: &Request,
        shared: &Arc<VifShared>,
        cache: &Cache,
        resumed: bool,
    ) -> Result<(Vec<Queue>, Vec<StallDetector>), VifError> {
        let (mut queues, mut stalls) = (Vec::new(), Vec::new());
        for (n, keys) in (0..).zip(&request.queues) {
            let gauge = Arc::<Gauge>::default();
            let parts = Parts {
                tx_ring: self.node.map_ring(keys.tx_ring)?,
                rx_ring: self.node.map_ring(keys.rx_ring)?,
                tx_channel: self.node.bind(keys.tx_port)?,
                rx_channel: keys.rx_port.map(|port| self.node.bind(port)).transpose()?,
                vif: Arc::clone(shared),
                gauge: Arc::clone(&gauge),
                shelf: cache.shelf(n).ok().filter(|_| cache.size().1 > 0).cloned(),
                resumed,
            };
            queues.push(Queue::new(parts)?);
            stalls.push(StallDetector::new(gauge));
        }
        Ok((queues, stalls))
    }

    /// The control ring, if the frontend has one. From now on it says which queues of `port` frames
    /// go to.
    fn new_mailbox(
        &self,
        request: &Request,
        port: PortId,
        cache: Cache,
        resumed: bool,
    ) -> Result<Option<Mailbox>, VifError> {
        let Some((ring, channel)) = request.control else { return Ok(None) };
        let (page, channel) = (self.node.map_ring(ring)?, self.node.bind(channel)?);
        let queues = request.queues.len() as u16;
        let saved = match resumed {
            true => self.node.nodes().find(&steering_node(&self.node))?,
            false => None,
        };
        let saved = saved.and_then(|text| Control::restore(queues, &text));
        let control = saved.unwrap_or_else(|| Control::new(queues));
        self.driver.fabric.set_selector(port, control.steering());
        let (domain, engine) = (self.node.id().domain, Arc::clone(&self.driver.engine));
        Ok(Some(Mailbox::new(page, channel, domain, engine, (control, cache))?))
    }

    /// Room for pages that stay mapped: none without a control ring, by which the frontend would
    /// name them. Pages that another daemon had mapped are forgotten: copies use their grants.
    fn cache(&self, request: &Request) -> Cache {
        let most = if request.control.is_some() { self.driver.options.cache.into() } else { 0 };
        let grants = Arc::clone(&self.node.hypervisor().grants);
        let (queues, budget) = (request.queues.len() as u16, Arc::clone(&self.driver.budget));
        Cache::new(self.node.id().domain, grants, most, queues, budget)
    }

    /// The device queue, if the frontend requests one, and its status. A vif without one connects
    /// all the same: its frames come through the switch.
    fn direct(&self, request: &Request) -> Result<(Option<Direct>, Option<Standing>), VifError> {
        let Some(keys) = &request.direct else { return Ok((None, None)) };
        let pages = self.listed(keys)?;
        let memory = self.node.hypervisor().grants.map(self.node.id().domain, &pages)?;
        let (direct, standing) = match self.lease(memory, keys.pages) {
            Ok(lease) => {
                let ring = self.node.map_ring(keys.ring)?;
                let channel = self.node.bind(keys.port)?;
                let direct = Direct::new(direct::Parts { ring, channel, lease, pages })?;
                let standing = direct.standing();
                (Some(direct), standing)
            }
            Err(error) => (None, Standing::Refused(error.to_string())),
        };
        let text = match &standing {
            Standing::Given { place, .. } => place.clone(),
            Standing::Refused(reason) => {
                warn!(port = %self.node.id(), %reason, "no device queue");
                format!("none: {reason}")
            }
        };
        self.node.nodes().put(&self.node.backend_key(direct::PLACE), text)?;
        Ok((direct, Some(standing)))
    }

    /// The grants of the pages that a device is to write into.
    fn listed(&self, keys: &direct::Keys) -> Result<Vec<GrantRef>, VifError> {
        let domain = self.node.id().domain;
        let at = Granted { domain, reference: keys.list, offset: 0 };
        let len = keys.pages as usize * size_of::<u32>();
        let bytes = ring::grant_copy_batch::read(&*self.driver.engine, at, len)
            .ok_or(GrantError::Refused { domain, references: vec![keys.list] })?;
        let (references, _) = bytes.as_chunks::<4>();
        Ok(references.iter().map(|bytes| GrantRef(u32::from_le_bytes(*bytes))).collect())
    }

    /// A queue of the device, that writes into these pages what is for the vif's address.
    fn lease(
        &self,
        pages: Arc<Memory>,
        count: u32,
    ) -> Result<Box<dyn Lease>, Box<dyn Error + Send + Sync>> {
        let uplink = self.driver.uplink.as_ref().ok_or("no device gives queues")?;
        let mac = self.node.nodes().text(&self.node.backend_key("mac"))?;
        uplink.give(mac.parse()?, pages, count)
    }
}
