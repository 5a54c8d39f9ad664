//! The ports of the daemon, by name, and the counts of removed ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use network::fabric::Fabric;
use network::poll::PollingPolicy;
use network::restrictions::RestrictionsTemplate;
use switch::PortId;
use tracing::{info, warn};

use crate::api::{Counts, PortReport};
use crate::backend::{self, Backend, BackendError};
use crate::budgets::Budgets;
use crate::config::{Known, PortKind, PortSettings, PortSpec, SecuritySpec};
use crate::kind::Kind;
use crate::natural;
use crate::profile::Subject;
use crate::reload::FileNames;
use crate::report;
use crate::vif::Vif;

mod changes;
mod hand_over;
mod mirrors;
mod reload;

pub use changes::unknown_budget;

/// The ports of a daemon.
pub struct Ports {
    fabric: Arc<Fabric>,
    workers: usize,
    /// The policy of ports that have none of their own.
    policy: PollingPolicy,
    ports: BTreeMap<String, Port>,
    budgets: Budgets,
    security: SecuritySpec,
    /// The names in the configuration file. Other ports and budgets were added by commands.
    of_file: FileNames,
    /// The counts of ports that are gone.
    removed: Counts,
}

/// A port of the configuration.
struct Port {
    /// Shared with the thread that starts the port, and never shared by two ports: a pointer to the
    /// description identifies the port, even after another one was added under the same name, or
    /// the description was changed.
    spec: Arc<PortSpec>,
    /// Its backend, or why it has none. A missing one is tried again.
    backend: Result<Box<dyn Backend>, BackendError>,
    /// Whether it was logged that the backend has stopped.
    stop_logged: bool,
}

impl Ports {
    /// No ports, in a daemon with `workers` workers.
    pub fn new(fabric: Arc<Fabric>, workers: usize, policy: PollingPolicy) -> Ports {
        let removed = report::no_counts();
        let (ports, budgets) = (BTreeMap::new(), Budgets::default());
        let (of_file, security) = (FileNames::default(), SecuritySpec::default());
        Ports { fabric, workers, policy, ports, budgets, security, of_file, removed }
    }

    /// The descriptions of all ports.
    pub fn specs(&self) -> impl Iterator<Item = &PortSpec> {
        self.ports.values().map(|port| &*port.spec)
    }

    /// The restrictions of a port with these settings, or of each of the ports that it stands for.
    fn template(&self, settings: &PortSettings) -> RestrictionsTemplate {
        let rules = self.security.rules(&settings.security_groups);
        RestrictionsTemplate { rules, ..self.budgets.template(settings) }
    }

    /// Does `work` with the names that descriptions of ports can refer to.
    pub fn with_known<T>(&self, work: impl FnOnce(Known<'_>) -> T) -> T {
        let (budgets, groups) = (self.budgets.names(), self.security.names());
        work(Known { budgets: Some(&budgets), security_groups: Some(&groups), ..Known::default() })
    }

    /// Adds a port.
    ///
    /// # Errors
    /// When the port cannot be put into service. The port is not added then.
    pub fn add(&mut self, spec: PortSpec) -> Result<(), BackendError> {
        let backend = self.start(&spec)?;
        self.insert(spec, Ok(backend));
        Ok(())
    }

    /// Adds a port of the configuration. If it cannot be put into service, it is stopped, and is
    /// one of [`Ports::not_in_service`].
    pub fn add_configured(&mut self, spec: PortSpec) {
        let backend = self.start(&spec);
        if let Err(error) = &backend {
            warn!(port = %spec.name, reason = %error, "not in service; trying again until it is");
        }
        self.insert(spec, backend);
    }

    fn start(&self, spec: &PortSpec) -> Result<Box<dyn Backend>, BackendError> {
        let restrictions = self.template(&spec.settings);
        let backend = backend::start(&self.fabric, spec, &restrictions, self.workers)?;
        let queues = spec.queue_pairs(self.workers);
        info!(port = %spec.name, kind = %spec.kind.kind(), queues, "added");
        Ok(backend)
    }

    fn insert(&mut self, spec: PortSpec, backend: Result<Box<dyn Backend>, BackendError>) {
        let (name, spec) = (spec.name.clone(), Arc::new(spec));
        self.ports.insert(name, Port { spec, backend, stop_logged: false });
        self.follow_mirrors();
    }

    /// Removes a port.
    ///
    /// # Errors
    /// A line for people, when there is no port of this name, or when it is a vif, which
    /// is removed by itself.
    pub fn remove(&mut self, name: &str) -> Result<(), String> {
        let Some(port) = self.ports.remove(name) else { return Err(self.not_removable(name)) };
        let Ok(backend) = port.backend else {
            info!(port = %name, "removed");
            return Ok(());
        };
        self.end(backend);
        self.follow_mirrors();
        if !matches!(port.spec.kind, PortKind::VhostUser { .. }) {
            // A vhost-user port logs its own removal.
            info!(port = %name, "removed");
        }
        Ok(())
    }

    /// Takes a backend out of service, and keeps the counts of its queues.
    fn end(&mut self, backend: Box<dyn Backend>) {
        for queue in backend.end(&self.fabric) {
            self.removed.add(&report::counts(&queue));
        }
    }

    fn not_removable(&self, name: &str) -> String {
        match self.vifs().into_iter().find(|vif| vif.name == name) {
            Some(Vif { kind: Kind::Xen, .. }) => {
                format!("{name} goes when the toolstack takes it away (xl network-detach)")
            }
            Some(_) => format!("{name} goes when its guest does"),
            None => unknown(name),
        }
    }

    fn in_service(&self) -> impl Iterator<Item = (&String, &Port, &dyn Backend)> {
        let all = self.ports.iter();
        all.filter_map(|(name, port)| Some((name, port, port.backend.as_deref().ok()?)))
    }

    fn vifs(&self) -> Vec<Vif> {
        self.in_service().flat_map(|(name, _, backend)| backend.vifs(name)).collect()
    }

    /// All ports, by name, and the counts of removed ones.
    pub fn report(&mut self) -> (Vec<PortReport>, Counts) {
        let (mut reports, removed) = self.without_removal(|ports, removed| {
            let reports: Vec<_> = ports.ports.values().flat_map(|port| ports.of(port)).collect();
            (reports, removed.clone())
        });
        reports.sort_by(|a, b| natural::compare(&a.name, &b.name));
        (reports, removed)
    }

    /// Adds the counts of removed vifs to the sum, and calls `work` with all ports and that sum
    /// before another vif can be removed. So every count is taken exactly once.
    fn without_removal<T>(&mut self, work: impl FnOnce(&Ports, &Counts) -> T) -> T {
        let mut removed = std::mem::take(&mut self.removed);
        let mut locked: Vec<_> =
            self.in_service().filter_map(|(.., backend)| backend.removed_counters()).collect();
        for queue in locked.iter_mut().flat_map(|counters| counters.drain(..)) {
            removed.add(&report::counts(&queue));
        }
        let done = work(self, &removed);
        drop(locked);
        self.removed = removed;
        done
    }

    /// A port, and the vifs that it stands for.
    fn of(&self, port: &Port) -> Vec<PortReport> {
        let context =
            report::Context { fabric: &self.fabric, workers: self.workers, policy: self.policy };
        let own = report::port(&context, &port.spec, port.backend.as_deref());
        let vifs = match &port.backend {
            Ok(backend) => backend.vifs(&port.spec.name),
            Err(_) => Vec::new(),
        };
        let vifs: Vec<PortReport> =
            vifs.iter().map(|vif| report::vif(&self.fabric, vif, &own)).collect();
        std::iter::once(own).chain(vifs).collect()
    }

    /// The names of all ports in the fabric.
    pub fn names(&self) -> HashMap<PortId, String> {
        let own =
            self.in_service().filter_map(|(name, _, backend)| Some((backend.id()?, name.clone())));
        let vifs = self.vifs().into_iter().filter_map(|vif| Some((vif.status.port?, vif.name)));
        own.chain(vifs).collect()
    }

    /// Why the port of this name cannot be captured.
    pub fn not_capturable(&self, name: &str) -> String {
        match self.ports.get(name) {
            Some(Port { backend: Ok(_), .. }) => format!(
                "port {name:?} stands for others: capture one of those that `ringmain port list` shows below it"
            ),
            Some(Port { backend: Err(error), .. }) => {
                format!("port {name:?} is not in service: {error}")
            }
            None => unknown(name),
        }
    }

    /// Requests, under this number, the counts that all guests keep of their own time.
    pub fn request_times(&self, number: u64) {
        self.in_service().for_each(|(_, _, backend)| backend.request_times(number));
    }

    /// How many guests have not answered the request with this number.
    pub fn waiting_for_times(&self, number: u64) -> usize {
        self.in_service().map(|(_, _, backend)| backend.answers(number).waiting).sum()
    }

    /// All ports that may receive frames, and their guests' answers to the request with this
    /// number.
    pub fn subjects(&self, number: u64) -> Vec<Subject> {
        self.in_service()
            .flat_map(|(name, port, backend)| {
                backend::subjects(backend, name, port.spec.kind.kind(), number)
            })
            .collect()
    }

    /// Does periodic work: logs which ports have stopped, and sums up the counts of removed vifs,
    /// which would otherwise accumulate. True: there are mirrors, which vifs that come follow only
    /// here.
    pub fn maintain(&mut self) -> bool {
        self.without_removal(|_, _| ());
        self.follow_mirrors();
        for (name, port) in &mut self.ports {
            let Ok(backend) = &port.backend else { continue };
            if let Some(reason) = backend.failure()
                && !std::mem::replace(&mut port.stop_logged, true)
            {
                warn!(port = %name, %reason, "stopped");
            }
        }
        self.ports.values().any(|port| port.spec.settings.mirror.is_some())
    }

    /// The descriptions of the ports that could not be started, and the restrictions of each.
    /// Starting a port may block, so the caller starts each of them ([`backend::start`]) while the
    /// ports are not locked, and passes the result to [`Ports::started`].
    pub fn not_in_service(&self) -> Vec<(Arc<PortSpec>, RestrictionsTemplate)> {
        let missing = self.ports.values().filter(|port| port.backend.is_err());
        let restrictions = |port: &Port| self.template(&port.spec.settings);
        missing.map(|port| (Arc::clone(&port.spec), restrictions(port))).collect()
    }

    /// Records the result of another attempt to start a port of [`Ports::not_in_service`]. If the
    /// port was removed or changed meanwhile, its backend is taken out of service again.
    pub fn started(
        &mut self,
        spec: &Arc<PortSpec>,
        backend: Result<Box<dyn Backend>, BackendError>,
    ) {
        let name = &spec.name;
        let port = self.ports.get_mut(name).filter(|port| Arc::ptr_eq(&port.spec, spec));
        let Some(port) = port else {
            backend.into_iter().for_each(|backend| self.end(backend));
            return;
        };
        match (&port.backend, &backend) {
            (_, Ok(_)) => info!(port = %name, "in service now"),
            (Err(before), Err(error)) if error.to_string() != before.to_string() => {
                warn!(port = %name, reason = %error, "not in service yet");
            }
            _ => {}
        }
        port.backend = backend;
        // A budget may have changed since the start of the port.
        self.restrict(|port| Arc::ptr_eq(&port.spec, spec));
        self.follow_mirrors();
    }
}

/// The error for a name that no port has.
pub fn unknown(name: &str) -> String {
    format!("there is no port {name:?}; `ringmain port list` shows those that are there")
}

#[cfg(test)]
mod tests;
