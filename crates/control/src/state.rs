//! State that the threads of the daemon share, and the answers to requests.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use network::balance::{self, Balancer};
use network::fabric::{Fabric, Workers};
use parking_lot::{Mutex, MutexGuard};
use sandbox::LayerReport;
use serde_json::{Map, Value as Json};
use switch::Limits;
use switch::filter::RuleSet;
use tracing::info;

use crate::api::{CaptureRequest, Manifest, PacketQuery, PortReport, Reply, Request};
use crate::backend;
use crate::capture::CaptureSession;
use crate::config::{Config, DiskSpec, PortSpec, XenDisksSpec, sockets};
use crate::config_file::ConfigFile;
use crate::confinement::{self, Confinement};
use crate::disks::{self, DiskStarter, Disks};
use crate::hand_over::Giver;
use crate::natural;
use crate::overlays::Overlays;
use crate::periodic::PeriodicTask;
use crate::ports::{Ports, unknown, unknown_budget};
use crate::profile::Profiler;
use crate::report;
use crate::rules;
use crate::server::Handler;

mod hand_over;
mod profiling;
mod reload;
mod workers;

pub use workers::MakeEngine;

/// How often the ports and the address table are maintained while something waits for that, such as
/// a port that is not in service.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(2);
/// How often while nothing does. The time of an idle daemon is mostly that of this maintenance.
const QUIET_INTERVAL: Duration = Duration::from_secs(6);
/// Longest profile, in seconds.
const LONGEST_PROFILE: u32 = 3600;

/// State that the threads of the daemon share.
pub struct DaemonState {
    /// The configuration at the start. Its ports, budgets and disks are out of date after a reload,
    /// and are not used.
    config: Config,
    /// The file of the configuration, which a reload reads again.
    file: Option<ConfigFile>,
    /// Locked for a whole reload.
    reloading: Mutex<()>,
    /// The layers of the sandbox.
    layers: Vec<LayerReport>,
    fabric: Arc<Fabric>,
    ports: Mutex<Ports>,
    /// The order of locks: ports and disks are locked before overlays.
    overlays: Mutex<Overlays>,
    disks: Mutex<Disks>,
    starter: Arc<DiskStarter>,
    profiler: Profiler,
    balancer: Mutex<Balancer>,
    giver: Giver,
    started: Instant,
}

impl DaemonState {
    /// Starts the workers, each with an engine for requests of disks. There are no ports and no
    /// disks yet.
    ///
    /// # Errors
    /// When threads or descriptors are missing, or a CPU cannot be used.
    pub fn new(
        config: &Config,
        file: Option<ConfigFile>,
        confinement: Confinement,
        engine: MakeEngine,
    ) -> io::Result<DaemonState> {
        let Confinement { layers, images, .. } = confinement;
        let workers = Workers {
            count: config.workers,
            cpus: config.cpus.iter().map(|cpu| usize::from(*cpu)).collect(),
            interrupt_cpu: config.interrupt_cpu.map(usize::from),
            limits: Limits::default(),
            policy: config.policy,
            ..Workers::default()
        };
        let (fabric, blocks) = match layers.is_empty() || confinement::needs_disks(config) {
            true => workers::start_with_disks(&workers, engine)?,
            false => (Fabric::start(&workers)?, None),
        };
        let fabric = Arc::new(fabric);
        let starter = Arc::new(DiskStarter::new(blocks, images, config.workers));
        Ok(DaemonState {
            overlays: Mutex::new(Overlays::new(Arc::clone(&fabric))),
            disks: Mutex::new(Disks::new(Arc::clone(&starter))),
            starter,
            ports: Mutex::new(Ports::new(Arc::clone(&fabric), config.workers, config.policy)),
            fabric,
            config: config.clone(),
            file,
            reloading: Mutex::new(()),
            layers,
            profiler: Profiler::new(),
            balancer: Mutex::default(),
            giver: Giver::default(),
            started: Instant::now(),
        })
    }

    /// The ports. Requests wait while they are locked.
    pub fn lock(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock()
    }

    /// The disks. The order of locks: the ports are locked before the disks.
    pub fn lock_disks(&self) -> MutexGuard<'_, Disks> {
        self.disks.lock()
    }

    /// The overlays.
    pub fn lock_overlays(&self) -> MutexGuard<'_, Overlays> {
        self.overlays.lock()
    }

    /// Begins to serve the disks of Xen guests.
    pub fn add_xen_disks(&self, spec: XenDisksSpec) {
        self.disks.lock().add_xen(spec);
    }

    /// Starts the threads for periodic tasks.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn start_tasks(self: &Arc<Self>) -> io::Result<Vec<PeriodicTask>> {
        let state = Arc::clone(self);
        let maintain = move || state.maintain();
        // Starts ports that could not be started before.
        let maintain = PeriodicTask::start("rm-maintain", None, MAINTENANCE_INTERVAL, maintain)?;
        let mut tasks = vec![maintain];
        if self.config.balance && self.config.workers > 1 {
            let state = Arc::clone(self);
            let (role, interval) = (Some(sandbox::Role::Task), balance::INTERVAL);
            let balance = move || {
                state.balance();
                interval
            };
            tasks.push(PeriodicTask::start("rm-balance", role, interval, balance)?);
        }
        Ok(tasks)
    }

    /// Whether all workers answer within this time.
    pub fn workers_answer(&self, limit: Duration) -> bool {
        self.fabric.workers_answer(limit)
    }

    /// Migrates a queue pair to another worker, if that improves the balance.
    fn balance(&self) {
        // The balancer is not locked while the queue moves: requests for counters would wait.
        let advice = self.fabric.advice(&mut self.balancer.lock());
        if let Some(advice) =
            advice.filter(|advice| self.fabric.move_queue(advice.queue, advice.to))
        {
            info!(worker = advice.to, "a queue pair has migrated to a less busy worker");
        }
    }

    /// Returns the time until the next maintenance.
    fn maintain(&self) -> Duration {
        self.fabric.age();
        self.end_profile();
        let has_mirrors = self.lock().maintain();
        let has_overlays = self.overlays.lock().maintain();
        let is_missing = self.start_missing();
        match has_mirrors || has_overlays || is_missing {
            true => MAINTENANCE_INTERVAL,
            false => QUIET_INTERVAL,
        }
    }

    /// Tries again to start the ports and disks that are not in service. The ports are not locked
    /// meanwhile, so that requests do not wait for a start that blocks. False: all are in service.
    fn start_missing(&self) -> bool {
        let mut is_missing = false;
        let missing = self.lock().not_in_service();
        is_missing |= !missing.is_empty();
        for (spec, restrictions) in missing {
            let workers = self.config.workers;
            let backend = backend::start(&self.fabric, &spec, &restrictions, workers);
            self.lock().started(&spec, backend);
        }
        let missing = self.disks.lock().not_in_service();
        is_missing |= !missing.is_empty();
        for spec in missing {
            let port = self.starter.start(&spec);
            let surplus = self.disks.lock().started(&spec, port);
            drop(surplus);
        }
        let missing = self.disks.lock().xen_not_in_service();
        is_missing |= missing.is_some();
        if let Some(spec) = missing {
            let service = self.starter.start_xen(&spec);
            self.disks.lock().xen_started(service);
        }
        is_missing
    }

    fn add_disk(&self, object: &Map<String, Json>) -> Result<Reply, String> {
        let ports = self.lock();
        let mut disks = self.disks.lock();
        let sockets = sockets(&self.config.socket, ports.specs());
        let spec = DiskSpec::from_request(object, &disks.specs(), sockets)
            .map_err(|errors| errors.to_string())?;
        let name = spec.name.clone();
        disks.add(spec).map_err(|error| format!("disk {name:?}: {error}"))?;
        Ok(Reply::Done)
    }

    fn show_disk(&self, name: &str) -> Result<Reply, String> {
        let disk = self.disks.lock().report().into_iter().find(|disk| disk.name == name);
        disk.map(|disk| Reply::Disk(Box::new(disk))).ok_or_else(|| disks::unknown(name))
    }

    fn remove_disk(&self, name: &str) -> Result<Reply, String> {
        let port = self.disks.lock().remove(name)?;
        // The disk is dropped without the lock, because requests may be under way.
        drop(port);
        Ok(Reply::Done)
    }

    fn add(&self, object: &Map<String, Json>) -> Result<Reply, String> {
        let mut ports = self.lock();
        let socket = &self.config.socket;
        let spec =
            ports.with_known(|known| PortSpec::from_request(object, ports.specs(), known, socket));
        let spec = spec.map_err(|errors| errors.to_string())?;
        if let Some(refusal) = confinement::refusal(&self.config, &self.layers, &spec) {
            return Err(refusal);
        }
        let name = spec.name.clone();
        if self.overlays.lock().specs().iter().any(|overlay| overlay.name == name) {
            return Err(format!("there is an overlay {name:?} already; give another name"));
        }
        ports.add(spec).map_err(|error| format!("port {name:?}: {error}"))?;
        Ok(Reply::Done)
    }

    /// All ports, those of overlays too, by name.
    fn all_ports(&self) -> Vec<PortReport> {
        let (mut ports, _) = self.lock().report();
        ports.extend(self.overlays.lock().ports());
        ports.sort_by(|a, b| natural::compare(&a.name, &b.name));
        ports
    }

    fn show(&self, name: &str) -> Result<Reply, String> {
        let port = self.all_ports().into_iter().find(|port| port.name == name);
        port.map(|port| Reply::Port(Box::new(port))).ok_or_else(|| unknown(name))
    }

    fn show_budget(&self, name: &str) -> Result<Reply, String> {
        let budget = self.lock().budgets().into_iter().find(|budget| budget.name == name);
        budget.map(|budget| Reply::Budget(Box::new(budget))).ok_or_else(|| unknown_budget(name))
    }

    /// The rules of a port in service; `None`: it has no filter.
    fn rules(&self, name: &str) -> Result<Option<Arc<RuleSet>>, String> {
        let ports = self.lock();
        let found = ports.names().into_iter().find(|(_, other)| other == name);
        match found {
            Some((id, _)) => Ok(self.fabric.filter(id).map(|filter| filter.rules())),
            None => ports.rules_of(name),
        }
    }

    fn show_rules(&self, name: &str) -> Result<Reply, String> {
        let rules = self.rules(name)?;
        Ok(Reply::Rules(rules.map(|rules| rules::report(&rules)).unwrap_or_default()))
    }

    fn test_rules(&self, name: &str, packet: &PacketQuery) -> Result<Reply, String> {
        let rules = self.rules(name)?;
        rules::verdict(rules.as_deref(), packet).map(|verdict| Reply::Verdict(Box::new(verdict)))
    }

    fn stats(&self) -> Reply {
        let (mut ports, mut removed) = self.lock().report();
        let overlays = {
            let overlays = self.overlays.lock();
            ports.extend(overlays.ports());
            removed.add(&overlays.removed());
            overlays.report()
        };
        ports.sort_by(|a, b| natural::compare(&a.name, &b.name));
        let loads = self.balancer.lock().loads().to_vec();
        let basics = report::Basics {
            cpus: &self.config.cpus,
            loads: &loads,
            started: self.started,
            layers: &self.layers,
            overlays,
            disks: self.disks.lock().report(),
        };
        Reply::Stats(Box::new(report::stats(&self.fabric, basics, ports, removed)))
    }

    fn macs(&self) -> Reply {
        let mut names = self.lock().names();
        names.extend(self.overlays.lock().names());
        Reply::Macs(report::macs(&self.fabric.table(), &names))
    }
}

impl Handler for DaemonState {
    fn handle(&self, request: Request) -> Result<Reply, String> {
        match request {
            Request::PortAdd { port } => self.add(&port),
            Request::PortRemove { name } => self.lock().remove(&name).map(|()| Reply::Done),
            Request::PortList => Ok(Reply::Ports(self.all_ports())),
            Request::PortShow { name } => self.show(&name),
            Request::PortSet { name, set } => self.lock().set(&name, &set).map(|()| Reply::Done),
            Request::BudgetAdd { budget } => {
                self.lock().request_budget(&budget).map(|()| Reply::Done)
            }
            Request::BudgetSet { name, set } => {
                self.lock().set_budget(&name, &set).map(|()| Reply::Done)
            }
            Request::BudgetRemove { name } => {
                self.lock().remove_budget(&name).map(|()| Reply::Done)
            }
            Request::BudgetList => Ok(Reply::Budgets(self.lock().budgets())),
            Request::BudgetShow { name } => self.show_budget(&name),
            Request::DiskAdd { disk } => self.add_disk(&disk),
            Request::DiskRemove { name } => self.remove_disk(&name),
            Request::DiskList => Ok(Reply::Disks(self.disks.lock().report())),
            Request::DiskShow { name } => self.show_disk(&name),
            Request::DiskResize { name, bytes } => {
                self.disks.lock().resize(&name, bytes).map(|()| Reply::Done)
            }
            Request::DiskSet { name, set } => {
                self.disks.lock().set(&name, &set).map(|()| Reply::Done)
            }
            Request::Reload { dry_run } => self.reload(dry_run).map(Reply::Reload),
            Request::RulesShow { name } => self.show_rules(&name),
            Request::RulesTest { name, packet } => self.test_rules(&name, &packet),
            Request::OverlayList => Ok(Reply::Overlays(self.overlays.lock().report())),
            Request::Stats => Ok(self.stats()),
            Request::Mac => Ok(self.macs()),
            Request::Profile { seconds } => {
                Ok(self.profile(Duration::from_secs(seconds.min(LONGEST_PROFILE).into())))
            }
            // The server calls `capture` for this request.
            Request::Capture(_) => Err("a capture needs a connection".to_owned()),
            // The server calls `offer` and `give` for this request.
            Request::TakeOver { .. } => Err("a take-over needs a connection".to_owned()),
        }
    }

    fn capture(&self, request: CaptureRequest) -> Result<CaptureSession, String> {
        // No port may be removed before the fabric knows that it is captured.
        let ports = self.lock();
        let mut names = ports.names();
        // The same holds for ports of overlays.
        let overlays = self.overlays.lock();
        names.extend(overlays.names());
        CaptureSession::start(&self.fabric, request, |name| {
            let found = names.iter().find(|(_, other)| *other == name);
            found.map(|(port, _)| *port).ok_or_else(|| ports.not_capturable(name))
        })
    }

    fn offer(&self, formats: &[u32]) -> Result<Manifest, String> {
        self.manifest(formats)
    }

    fn give(&self, stream: UnixStream) {
        self.hand_over(stream);
    }
}
