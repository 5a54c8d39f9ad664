//! State that all vifs of this domain share.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::{Hypervisor, TransitiveGrants};
use network::count::QueueCounters;
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use parking_lot::Mutex;
use ring::Engine;
use switch::PortId;

use super::device_queue::Uplink;
use super::extensions::Extensions;
use super::options::{PortOptions, ServiceConfig};
use crate::page_budget::PageBudget;
use crate::xenbus::GrantCopyEngine;

/// State that all vifs share.
pub struct Netback {
    /// Where their frames go.
    pub fabric: Arc<Fabric>,
    /// Copies for them.
    pub engine: Arc<dyn Engine>,
    /// Passes grants on to vifs whose frontends copy for themselves, where that is possible.
    pub transitive_grants: Option<Arc<dyn TransitiveGrants>>,
    /// Queues that a vif may have.
    pub queues: u16,
    /// Longest time without posted buffers, while frames come, before a frontend counts as stalled.
    pub stall: Duration,
    /// The options of serving vifs.
    pub options: PortOptions,
    /// Pages of all vifs that may stay mapped.
    pub budget: Arc<PageBudget>,
    /// A device that has receive queues to give.
    pub uplink: Option<Arc<dyn Uplink>>,
    /// Restrictions of vifs, unless they have settings of their own.
    pub restrictions: Mutex<Arc<RestrictionsTemplate>>,
    /// Counters of ports that were removed, until they are taken.
    pub removed: Mutex<Vec<Arc<QueueCounters>>>,
}

impl Netback {
    /// A driver whose vifs are ports of `fabric`.
    pub fn new(
        fabric: Arc<Fabric>,
        hypervisor: &Hypervisor,
        config: ServiceConfig,
        uplink: Option<Arc<dyn Uplink>>,
    ) -> Self {
        let ServiceConfig { queues, stall, options, restrictions } = config;
        Netback {
            fabric,
            engine: Arc::new(GrantCopyEngine(Arc::clone(&hypervisor.grants))),
            transitive_grants: hypervisor.grants.transitive_grants(),
            queues: queues.max(1),
            stall,
            options,
            budget: Arc::default(),
            uplink,
            restrictions: Mutex::new(Arc::new(restrictions)),
            removed: Mutex::default(),
        }
    }

    /// The extensions of netif.h that the backend offers.
    pub(super) fn extensions(&self) -> Extensions {
        Extensions { ranges: true, guest_copy: self.transitive_grants.is_some() }
    }

    /// Restrictions of vifs, unless they have settings of their own.
    pub(super) fn restrictions(&self) -> Arc<RestrictionsTemplate> {
        Arc::clone(&self.restrictions.lock())
    }

    /// Removes a port, but keeps its counters.
    pub(super) fn remove_port(&self, port: PortId) {
        // An observer that holds this lock finds each counter either with the port or here.
        let mut removed = self.removed.lock();
        removed.extend(self.fabric.counters(port));
        self.fabric.remove_port(port);
    }
}
