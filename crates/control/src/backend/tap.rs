//! Ports of kind `tap`: the host.

use std::sync::Arc;

use hostlink::tap::{Tap, TapConfig};
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use switch::PortId;

use super::{Backend, BackendError, Condition};
use crate::api::PortState;
use crate::config::PortSpec;

/// An interface of the host in service.
struct TapPort {
    /// The interface's name.
    device: String,
    tap: Tap,
}

/// Puts a port into service.
pub(super) fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    device: &str,
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    let (rule, policy) = (spec.rule(), spec.options.policy);
    let device = device.to_owned();
    let config = TapConfig {
        device: device.clone(),
        queues,
        rule,
        mtu: spec.mtu,
        policy,
        restrictions: restrictions.instantiate(),
    };
    let tap = Tap::start(Arc::clone(fabric), config)?;
    Ok(Box::new(TapPort { device, tap }))
}

impl Backend for TapPort {
    fn id(&self) -> Option<PortId> {
        Some(self.tap.port())
    }

    fn failure(&self) -> Option<String> {
        self.tap.stopped().map(|error| error.to_string())
    }

    fn condition(&self) -> Condition {
        match self.failure() {
            Some(reason) => Condition::new(PortState::Stopped, Some(reason)),
            // An interface that cannot be asked has moved to another namespace.
            None if self.tap.is_up().unwrap_or(true) => Condition::new(PortState::Connected, None),
            None => {
                let device = &self.device;
                let reason = format!("the interface is down: `ip link set {device} up` sets it up");
                Condition::new(PortState::Down, Some(reason))
            }
        }
    }
}
