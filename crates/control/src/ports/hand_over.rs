//! Ports that come from another process, or go to one.

use std::sync::Arc;

use network::count::QueueCounters;
use switch::PortId;
use tracing::info;
use vhost_user::transport::saved::Files;

use super::Ports;
use crate::api::{Counts, ManifestPort};
use crate::backend::{self, BackendError};
use crate::config::PortSpec;
use crate::hand_over::message::SavedPort;
use crate::hand_over::port::HandOver;
use crate::kind::Kind;
use crate::report;

impl Ports {
    /// The ports in service that can be handed over, and names and kinds of the others.
    pub(crate) fn manifest(&self) -> (Vec<ManifestPort>, Vec<(String, Kind)>) {
        let (mut known, mut others) = (Vec::new(), Vec::new());
        for (name, port, backend) in self.in_service() {
            match backend.hand_over() {
                Some(_) => known.push(ManifestPort {
                    name: name.clone(),
                    attachment: port.spec.kind.describe(),
                    queues: port.spec.queue_pairs(self.workers),
                }),
                None => others.push((name.clone(), port.spec.kind.kind())),
            }
        }
        (known, others)
    }

    /// The ports in service that can be handed over, by name.
    pub(crate) fn to_hand_over(&self) -> Vec<(&str, &dyn HandOver)> {
        let all = self.in_service();
        all.filter_map(|(name, _, backend)| Some((name.as_str(), backend.hand_over()?))).collect()
    }

    /// The counts of the queues of a port. Reasons without drops are left out.
    pub(crate) fn counts(&self, name: &str) -> Vec<Counts> {
        let queues = self.id(name).map(|id| self.fabric.counters(id)).unwrap_or_default();
        let counts = |queue: &Arc<QueueCounters>| {
            let mut counts = report::counts(queue);
            counts.drops.retain(|_, frames| *frames > 0);
            counts
        };
        queues.iter().map(counts).collect()
    }

    /// Continues with another process' counts of a port that has no queues yet.
    pub(crate) fn continue_counts(&self, name: &str, counts: &[Counts]) {
        let port = self.ports.get(name).zip(self.id(name));
        let Some((port, id)) = port else { return };
        let most = usize::from(port.spec.queue_pairs(self.workers));
        let queues = self.fabric.counters_of(id, counts.len().min(most));
        for (queue, counts) in queues.iter().zip(counts) {
            report::continue_counts(queue, counts);
        }
    }

    pub(super) fn id(&self, name: &str) -> Option<PortId> {
        self.ports.get(name)?.backend.as_ref().ok()?.id()
    }

    /// Adds a port with the state of one in another process. It is not in service yet.
    ///
    /// # Errors
    /// When the state does not fit. The port is not added then.
    pub(crate) fn restore(
        &mut self,
        spec: PortSpec,
        saved: (SavedPort, Files),
    ) -> Result<(), BackendError> {
        let restrictions = self.budgets.template(&spec.settings);
        let backend = backend::restore(&self.fabric, &spec, &restrictions, self.workers, saved)?;
        let queues = spec.queue_pairs(self.workers);
        info!(port = %spec.name, kind = %spec.kind.kind(), queues, "taken over");
        self.insert(spec, Ok(backend));
        Ok(())
    }
}
