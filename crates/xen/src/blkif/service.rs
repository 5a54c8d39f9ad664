//! Service for all vbds of this domain.

use std::sync::Arc;

use hypervisor::Hypervisor;
use storage::Disks;
use storage::image::ImageError;
use storage::limits::DiskRates;

use super::blkback::Blkback;
pub use super::blkback::BlkbackConfig;
pub use super::limits::VbdLimits;
use super::status::VbdStatus;
pub use crate::xenbus::ServiceError;
use crate::xenbus::{self, DeviceId};

/// The service for vbds. On drop, queues are detached and nothing is written into the store: the
/// next service finds the vbds connected, and continues their rings.
pub struct Service {
    bus: xenbus::Service<Blkback>,
}

impl Service {
    /// Begins to serve.
    ///
    /// # Errors
    /// When the store fails, or no thread or descriptor is left.
    pub fn start(
        disks: Arc<Disks>,
        hypervisor: Hypervisor,
        config: BlkbackConfig,
    ) -> Result<Self, ServiceError> {
        let driver = Arc::new(Blkback::new(disks, &hypervisor, config));
        Ok(Service { bus: xenbus::Service::start(hypervisor, driver)? })
    }

    /// All vbds that are served, in the order of their names.
    pub fn vbds(&self) -> Vec<VbdStatus> {
        self.bus.statuses()
    }

    /// The limits of a vbd; `None`: there is no such vbd.
    pub fn limits(&self, id: DeviceId) -> Option<VbdLimits> {
        self.bus.driver().limits.get(id)
    }

    /// Limits one vbd, connected or not. In force when this returns. False: there is no such vbd.
    pub fn set_limits(&self, id: DeviceId, rates: DiskRates) -> bool {
        let driver = self.bus.driver();
        let found = driver.limits.set(id, rates);
        driver.disks.follow_limits();
        found
    }

    /// Limits each vbd by itself, also those that come later. Limits of single vbds are forgotten.
    /// In force when this returns.
    pub fn set_all_limits(&self, rates: DiskRates) {
        let driver = self.bus.driver();
        driver.limits.set_all(rates);
        driver.disks.follow_limits();
    }

    /// Gives the image of a vbd a new length, or takes note of the one that it has, and tells the
    /// guest. Returns its length in bytes; `None`: it has no image so far.
    ///
    /// # Errors
    /// When the image cannot have that length.
    pub fn resize(&self, id: DeviceId, bytes: Option<u64>) -> Result<Option<u64>, ImageError> {
        let vbd = self.vbds().into_iter().find(|vbd| vbd.bus.id == id);
        let Some((_, disk)) = vbd.and_then(|vbd| vbd.disk) else { return Ok(None) };
        let bytes = disk.image().resize(bytes)?;
        self.bus.update(id);
        Ok(Some(bytes))
    }
}
