//! The id of a device.

use std::fmt;

use hypervisor::DomId;

/// A device: its class, its frontend's domain, and its number there. Displayed as toolstacks
/// write it, such as `vif1.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// Its class: the name of the directory below `backend` and below `device`.
    pub class: &'static str,
    /// The domain of its frontend.
    pub domain: DomId,
    /// Its number among the devices of that class and domain.
    pub handle: u32,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}.{}", self.class, self.domain, self.handle)
    }
}
