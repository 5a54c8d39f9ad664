//! Ports of kind `xen`: one stands for all vifs of this domain.

use std::sync::Arc;
use std::time::Duration;

use network::count::QueueCounters;
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use parking_lot::MutexGuard;
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
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    let (options, restrictions) = (spec.options, restrictions.clone());
    let config = ServiceConfig { queues, stall: STALL, options, restrictions };
    let hypervisor = hypervisor::xen::open_backend(hypervisor::xen::Class::Vif)?;
    Ok(Box::new(Vifs(Service::start(Arc::clone(fabric), hypervisor, config)?)))
}

impl Backend for Vifs {
    fn id(&self) -> Option<PortId> {
        None
    }

    fn condition(&self) -> Condition {
        Condition::new(PortState::Listening, None)
    }

    fn restrict(&self, _: &Fabric, restrictions: &RestrictionsTemplate) {
        self.0.set_restrictions(restrictions.clone());
    }

    fn vifs(&self, _: &str) -> Vec<Vif> {
        let vif = |status: VifStatus| {
            let name = status.id.to_string();
            Vif { name, kind: Kind::Xen, peer: None, copy_usage: None, store_usage: None, status }
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
