//! The assignment of devices to drivers: the toolstack writes the hotplug script of each device
//! into its backend directory.

use hypervisor::{Nodes, StoreError};

/// Whether the hotplug script of the device whose backend directory is `backend` has this file
/// name.
///
/// # Errors
/// When the store cannot be read.
pub fn is_hotplugged_by(
    nodes: &dyn Nodes,
    backend: &str,
    script: &str,
) -> Result<bool, StoreError> {
    let found = match nodes.find(&format!("{backend}/script")) {
        Err(StoreError::Value { .. } | StoreError::Denied { .. }) => None,
        found => found?,
    };
    Ok(found.is_some_and(|found| found.rsplit('/').next() == Some(script)))
}
