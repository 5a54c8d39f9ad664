//! Ports of kind `xen`: one stands for all vifs of this domain.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use network::count::QueueCounters;
use network::fabric::Fabric;
use switch::PortId;
use xen::netif::service::{Service, ServiceConfig};
use xen::netif::status::VifStatus;

use super::{Backend, BackendError, Condition};
use crate::api::PortState;
use crate::config::PortSpec;
use crate::kind::Kind;
use crate::vif::Vif;

/// How long a frontend may post no buffers, while there are frames for it, before it counts as
/// stalled; Linux' backend has the same limit.
pub(super) const STALL: Duration = Duration::from_secs(10);

/// All vifs of this domain.
struct Vifs(Service);

/// Puts a port into service.
pub(super) fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    let config =
        ServiceConfig { queues, stall: STALL, options: spec.options, ..ServiceConfig::default() };
    let hypervisor = hypervisor::xen::open()?;
    Ok(Box::new(Vifs(Service::start(Arc::clone(fabric), hypervisor, config)?)))
}

impl Backend for Vifs {
    fn id(&self) -> Option<PortId> {
        None
    }

    fn condition(&self) -> Condition {
        Condition::new(PortState::Listening, None)
    }

    fn vifs(&self, _: &str) -> Vec<Vif> {
        let vif = |status: VifStatus| {
            let name = status.id.to_string();
            Vif { name, kind: Kind::Xen, peer: None, copy_usage: None, status }
        };
        self.0.vifs().into_iter().map(vif).collect()
    }

    fn removed_counters(&self) -> Option<MutexGuard<'_, Vec<Arc<QueueCounters>>>> {
        Some(self.0.removed())
    }

    fn end(self: Box<Self>, _: &Fabric) -> Vec<Arc<QueueCounters>> {
        self.0.end()
    }
}
