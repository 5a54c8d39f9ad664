//! Ports of kind `vhost-user`: each is one guest.

use std::path::Path;
use std::sync::Arc;

use ::vhost_user::net::{self, Port, PortConfig};
use ::vhost_user::transport::saved::{Files, SavedServer};
use ::vhost_user::transport::server;
use ::vhost_user::transport::status::State;
use network::fabric::Fabric;
use network::restrictions::RestrictionsTemplate;
use switch::PortId;
use xen::netif::options::PortOptions;

use super::{Backend, BackendError, Condition, create_directory};
use crate::api::PortState;
use crate::config::{MemorySize, Mode, PortSpec};
use crate::hand_over::port::HandOver;

/// Puts a port into service.
pub(super) fn start(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    (socket, mode): (&Path, Mode),
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> Result<Box<dyn Backend>, BackendError> {
    if mode == Mode::Server {
        create_directory(socket)?;
    }
    let config = config(spec, (socket, mode), restrictions, queues);
    Ok(Box::new(Port::start(Arc::clone(fabric), config)?))
}

/// Puts a port into service that another process has served.
pub(super) fn restore(
    fabric: &Arc<Fabric>,
    spec: &PortSpec,
    place: (&Path, Mode),
    restrictions: &RestrictionsTemplate,
    queues: u16,
    (saved, files): (SavedServer, Files),
) -> Result<Box<dyn Backend>, BackendError> {
    let config = config(spec, place, restrictions, queues);
    Ok(Box::new(Port::restore(Arc::clone(fabric), config, saved, files)?))
}

fn config(
    spec: &PortSpec,
    (socket, mode): (&Path, Mode),
    restrictions: &RestrictionsTemplate,
    queues: u16,
) -> PortConfig {
    let mode = match mode {
        Mode::Server => server::Mode::Server,
        Mode::Client => server::Mode::Client,
    };
    let PortOptions { coalescing, policy, .. } = spec.options;
    PortConfig {
        name: spec.name.clone(),
        socket: socket.to_owned(),
        mode,
        permissions: spec.permissions,
        queues,
        mtu: spec.mtu,
        rule: spec.rule(),
        coalescing,
        policy,
        restrictions: restrictions.instantiate(),
        memory: spec.settings.memory.0,
    }
}

impl From<State> for PortState {
    fn from(state: State) -> Self {
        match state {
            State::Listening => PortState::Listening,
            State::Connecting => PortState::Connecting,
            State::Connected => PortState::Connected,
            State::Removed => PortState::Stopped,
        }
    }
}

impl Backend for Port {
    fn id(&self) -> Option<PortId> {
        Some(self.port())
    }

    fn hand_over(&self) -> Option<&dyn HandOver> {
        Some(self)
    }

    fn limit_memory(&self, limit: MemorySize) {
        self.account().set_limit(limit.0);
    }

    fn condition(&self) -> Condition {
        let status = self.status();
        Condition {
            features: net::feature::names(status.features),
            peer: status.peer,
            connections: status.connections,
            violations: status.violations,
            control_delayed: status.control_delayed,
            recovered_rings: status.recovered,
            unclear_rings: status.unclear,
            memory: Some((self.account().allocated(), self.account().limit())),
            ..Condition::new(status.state.into(), status.complaint())
        }
    }
}
