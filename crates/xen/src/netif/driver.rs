//! The driver of network interfaces, as the bus calls it.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::{Nodes, StoreError};

use super::netback::Netback;
use super::settings;
use super::vif::Vif;
use crate::xenbus::driver::Wake;
use crate::xenbus::{Driver, Node};

/// Longest interval between checks whether frontends take frames.
const CHECK_PERIOD: Duration = Duration::from_secs(2);

impl Driver for Netback {
    const CLASS: &'static str = "vif";
    type Device = Vif;

    fn is_ours(&self, nodes: &dyn Nodes, backend: &str) -> Result<bool, StoreError> {
        settings::is_ours(nodes, backend)
    }

    fn probe(self: &Arc<Self>, node: Arc<Node>, wake: Wake) -> Vif {
        Vif::new(Arc::clone(self), node, wake)
    }

    fn check_period(&self) -> Duration {
        CHECK_PERIOD.min(self.stall / 4)
    }
}
