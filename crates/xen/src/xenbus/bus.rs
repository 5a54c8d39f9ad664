//! The common state of the devices of a class.

use std::sync::Arc;

use hypervisor::Hypervisor;
use hypervisor::store::Changes;

use super::DeviceId;

/// The part of the store that must be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The list of devices.
    All,
    /// All devices that are served.
    Each,
    /// One device.
    Device(DeviceId),
}

/// The common state of the devices of a class.
pub struct Bus<D> {
    /// Where they come from.
    pub hypervisor: Hypervisor,
    /// The changes to look at.
    pub changes: Changes<Change>,
    /// The driver of the devices.
    pub driver: Arc<D>,
}
