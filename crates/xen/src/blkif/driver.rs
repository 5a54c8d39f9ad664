//! The driver of block devices, as the bus calls it.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::{Nodes, StoreError};

use super::blkback::Blkback;
use super::settings::SCRIPT;
use super::vbd::Vbd;
use crate::xenbus::driver::Wake;
use crate::xenbus::script::is_hotplugged_by;
use crate::xenbus::{Driver, Node};

impl Driver for Blkback {
    const CLASS: &'static str = "vbd";
    type Device = Vbd;

    fn is_ours(&self, nodes: &dyn Nodes, backend: &str) -> Result<bool, StoreError> {
        is_hotplugged_by(nodes, backend, SCRIPT)
    }

    fn probe(self: &Arc<Self>, node: Arc<Node>, wake: Wake) -> Vbd {
        Vbd::new(Arc::clone(self), node, wake)
    }

    fn check_period(&self) -> Duration {
        // There is no progress to check, because a disk does not wait for its frontend.
        Duration::from_secs(3600)
    }
}
