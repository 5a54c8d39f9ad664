//! The daemon's state, handed over to another process or taken over from one.

use std::os::unix::net::UnixStream;

use tracing::{info, warn};

use super::DaemonState;
use crate::api::Manifest;
use crate::config::{MetricsSpec, PortSpec};
use crate::hand_over::{Giver, Incoming, Shared, TakeOverError};
use crate::ports::Ports;

impl DaemonState {
    /// The sockets that another process would go on with.
    pub(crate) fn set_listeners(&self, control: Shared, metrics: Option<Shared>) {
        self.giver.set_listeners(control, metrics);
    }

    /// What ends this process after another one has taken over.
    pub(crate) fn set_end(&self, end: Box<dyn FnOnce() + Send>) {
        self.giver.set_end(end);
    }

    /// What another process would go on with.
    pub(super) fn manifest(&self, formats: &[u32]) -> Result<Manifest, String> {
        let ports = self.lock();
        let disks = self.disks.lock();
        let mut names: Vec<String> = disks.specs().iter().map(|spec| spec.name.clone()).collect();
        names.extend(disks.xen_spec().map(|spec| spec.name.clone()));
        let metrics = self.config.metrics.as_ref().map(MetricsSpec::place);
        Giver::manifest(formats, &ports, names, metrics)
    }

    /// Hands over to the process at the other end of `stream`. Returns if this process goes on.
    pub(super) fn hand_over(&self, stream: UnixStream) {
        let Some(_one) = self.giver.try_begin() else {
            warn!("another process is taking over already");
            return;
        };
        // Nothing is configured meanwhile.
        let _reloading = self.reloading.lock();
        info!("a new process is about to take over");
        let reason = self.giver.give(stream, &self.fabric, &self.ports);
        warn!(reason, "not handed over; this daemon goes on");
    }

    /// Takes ports over, and returns those of `specs` that nobody has served.
    pub(crate) fn take(
        &self,
        incoming: &mut Incoming,
        ports: &mut Ports,
        specs: &[PortSpec],
    ) -> Result<Vec<PortSpec>, TakeOverError> {
        let others = incoming.restore(ports, specs)?;
        incoming.take(&self.fabric, ports)?;
        Ok(others)
    }
}
