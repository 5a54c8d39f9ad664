//! The daemon's state, handed over to another process or taken over from one.

use std::os::unix::net::UnixStream;

use tracing::{info, warn};

use super::DaemonState;
use crate::api::Manifest;
use crate::config::{MetricsSpec, PortSpec};
use crate::hand_over::message::FORMAT;
use crate::hand_over::{End, Giver, Incoming, Shared, TakeOverError};
use crate::ports::Ports;

impl DaemonState {
    /// Sets the sockets that a hand-off gives to another process.
    pub(crate) fn set_listeners(&self, control: Shared, metrics: Option<Shared>) {
        self.giver.set_listeners(control, metrics);
    }

    /// Sets the function that is called after another process has taken over.
    pub(crate) fn set_end(&self, end: End) {
        self.giver.set_end(end);
    }

    /// Whether another process has taken over.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.giver.has_handed_over()
    }

    /// The list of what another process would take over.
    pub(super) fn manifest(&self, formats: &[u32]) -> Result<Manifest, String> {
        let ports = self.lock();
        let metrics = self.config.metrics.as_ref().map(MetricsSpec::place);
        Giver::manifest(formats, &ports, self.disk_names(), metrics)
    }

    /// The names of all disks in service.
    fn disk_names(&self) -> Vec<String> {
        let disks = self.disks.lock();
        let mut names: Vec<String> = disks.specs().iter().map(|spec| spec.name.clone()).collect();
        names.extend(disks.xen_spec().map(|spec| spec.name.clone()));
        names
    }

    /// Hands over to the process at the other end of `stream`. Returns if this process continues.
    pub(super) fn hand_over(&self, stream: UnixStream) {
        let Some(one) = self.giver.try_begin() else {
            warn!("another process is taking over already");
            return;
        };
        // No reload may run meanwhile.
        let reloading = self.reloading.lock();
        info!("a new process is about to take over");
        let obstacles =
            |ports: &Ports| Giver::manifest(&[FORMAT], ports, self.disk_names(), None).map(drop);
        let reason = self.giver.give(stream, &self.fabric, &self.ports, obstacles);
        // Whoever reads this line may start the next process at once.
        drop((reloading, one));
        warn!(reason, "not handed over; this daemon goes on");
    }

    /// Takes ports over, and returns those of `specs` that the other process has not served.
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
