//! Service for all vifs of this domain.

use std::sync::Arc;

use hypervisor::{Hypervisor, Nodes};
use network::count::QueueCounters;
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use parking_lot::MutexGuard;

use super::device_queue::Uplink;
use super::netback::Netback;
pub use super::options::ServiceConfig;
use super::status::VifStatus;
pub use crate::xenbus::ServiceError;
use crate::xenbus::{self, DeviceId};

/// The service for vifs. On drop, queues are detached and nothing is written into the store: the
/// next service finds the vifs connected, and continues their rings.
pub struct Service {
    bus: xenbus::Service<Netback>,
}

impl Service {
    /// Begins to serve.
    ///
    /// # Errors
    /// When the store fails, or no thread or descriptor is left.
    pub fn start(
        fabric: Arc<Fabric>,
        hypervisor: Hypervisor,
        config: ServiceConfig,
    ) -> Result<Self, ServiceError> {
        Self::start_with(fabric, hypervisor, config, None)
    }

    /// Starts a service for vifs whose frontends may request a queue of a device, if one is given.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with(
        fabric: Arc<Fabric>,
        hypervisor: Hypervisor,
        config: ServiceConfig,
        uplink: Option<Arc<dyn Uplink>>,
    ) -> Result<Self, ServiceError> {
        let driver = Arc::new(Netback::new(fabric, &hypervisor, config, uplink));
        Ok(Service { bus: xenbus::Service::start(hypervisor, driver)? })
    }

    /// Sets the restrictions of each vif from now on; settings of its own apply besides.
    pub fn set_restrictions(&self, restrictions: RestrictionsTemplate) {
        let current = &self.bus.driver().restrictions;
        *current.lock() = Arc::new(restrictions);
        self.bus.update_all();
    }

    /// The nodes of the store.
    pub(super) fn nodes(&self) -> &dyn Nodes {
        self.bus.nodes()
    }

    /// The backend directory of a vif.
    pub(super) fn backend_path(&self, id: DeviceId) -> String {
        self.bus.backend_path(id)
    }

    /// All vifs that are served, in the order of their names.
    pub fn vifs(&self) -> Vec<VifStatus> {
        self.bus.statuses()
    }

    /// Counters of vifs that were removed, to be taken out every few seconds. While the lock is
    /// held no vif is removed, so that an observer that adds up all there is finds each counter
    /// once.
    pub fn removed(&self) -> MutexGuard<'_, Vec<Arc<QueueCounters>>> {
        self.bus.driver().removed.lock()
    }

    /// Ends the service. Returns the counters of all vifs that [`removed`](Self::removed) did not
    /// have yet.
    pub fn end(self) -> Vec<Arc<QueueCounters>> {
        let driver = Arc::clone(self.bus.driver());
        drop(self);
        std::mem::take(&mut *driver.removed.lock())
    }
}
