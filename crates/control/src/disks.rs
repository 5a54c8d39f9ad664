//! The disks of the daemon, by name.

mod starter;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::storage::count::QueueCounters;
use ::vhost_user::blk::{self, DiskPort};
use serde_json::{Map, Value as Json};
use tracing::{info, warn};

use crate::api::{DiskCounts, DiskReport, MemoryReport, PortState, ReloadChange, ReloadSubject};
use crate::config::{DiskKind, DiskSettings, DiskSpec, XenDisksSpec};
use crate::natural;
use crate::reload::{Change, RunningDisk};
use crate::report;
use crate::xen_disks::{XenDisks, XenDisksError};
pub use starter::{DiskError, DiskStarter, OpenImages};

/// A disk of the configuration.
struct Entry {
    /// Shared with the thread that starts the disk: a pointer to the description identifies it,
    /// even after another one was added under the same name.
    spec: Arc<DiskSpec>,
    /// The disk in service, or why it is not. A missing one is tried again.
    port: Result<DiskPort, DiskError>,
}

impl Entry {
    /// Changes the settings of the disk.
    fn apply(&mut self, settings: DiskSettings) {
        if settings == self.spec.settings {
            return;
        }
        self.spec = Arc::new(DiskSpec { settings, ..DiskSpec::clone(&self.spec) });
        info!(disk = %self.spec.name, "changed");
        if let Ok(port) = &self.port {
            port.set_limits(self.spec.settings.limits.rates());
            port.account().set_limit(self.spec.settings.memory_limit());
        }
    }
}

/// The disks of a daemon.
pub struct Disks {
    starter: Arc<DiskStarter>,
    disks: BTreeMap<String, Entry>,
    xen: Option<XenDisks>,
}

impl Disks {
    /// No disks.
    pub fn new(starter: Arc<DiskStarter>) -> Disks {
        Disks { starter, disks: BTreeMap::new(), xen: None }
    }

    /// Begins to serve the disks of Xen guests. A failed start is tried again.
    pub fn add_xen(&mut self, spec: XenDisksSpec) {
        let service = self.starter.start_xen(&spec);
        match &service {
            Ok(_) => info!(disk = %spec.name, "serving the disks of Xen guests"),
            Err(error) => {
                warn!(disk = %spec.name, reason = %error, "not in service; trying again until it is");
            }
        }
        self.xen = Some(XenDisks::new(Arc::new(spec), service));
    }

    /// The description of the disks of Xen guests, if they are not in service.
    pub fn xen_not_in_service(&self) -> Option<Arc<XenDisksSpec>> {
        let missing = self.xen.as_ref().filter(|xen| xen.error().is_some());
        missing.map(|xen| Arc::clone(xen.spec()))
    }

    /// Records the result of another attempt to serve the disks of Xen guests.
    pub fn xen_started(&mut self, service: Result<::xen::blkif::service::Service, XenDisksError>) {
        if let Some(xen) = &mut self.xen {
            xen.started(service);
        }
    }

    /// The description of the disks of Xen guests, as it is now.
    pub fn xen_spec(&self) -> Option<&XenDisksSpec> {
        self.xen.as_ref().map(|xen| &**xen.spec())
    }

    /// The descriptions of all disks.
    pub fn specs(&self) -> Vec<&DiskSpec> {
        self.disks.values().map(|entry| &*entry.spec).collect()
    }

    /// Adds a disk.
    ///
    /// # Errors
    /// When the disk cannot be put into service. The disk is not added then.
    pub fn add(&mut self, spec: DiskSpec) -> Result<(), DiskError> {
        let port = self.starter.start(&spec)?;
        self.insert(spec, Ok(port));
        Ok(())
    }

    /// Adds a disk of the configuration. If it cannot be put into service, it is tried again.
    pub fn add_configured(&mut self, spec: DiskSpec) {
        let port = self.starter.start(&spec);
        if let Err(error) = &port {
            warn!(disk = %spec.name, reason = %error, "not in service; trying again until it is");
        }
        self.insert(spec, port);
    }

    fn insert(&mut self, spec: DiskSpec, port: Result<DiskPort, DiskError>) {
        if port.is_ok() {
            info!(disk = %spec.name, image = %spec.image.display(), queues = spec.queues, "added");
        }
        self.disks.insert(spec.name.clone(), Entry { spec: Arc::new(spec), port });
    }

    /// Removes a disk, and returns it to be dropped. Dropping waits until no request is under way.
    ///
    /// # Errors
    /// A line for people, when there is none of this name.
    pub fn remove(&mut self, name: &str) -> Result<Option<DiskPort>, String> {
        if self.xen.as_ref().is_some_and(|xen| xen.has(name)) {
            return Err(format!("disk {name:?} goes with its vbd: xl block-detach"));
        }
        let entry = self.disks.remove(name).ok_or_else(|| unknown(name))?;
        info!(disk = %name, "removed");
        Ok(entry.port.ok())
    }

    /// All disks, to be compared with a configuration.
    pub fn running(&self) -> Vec<RunningDisk> {
        let running = |entry: &Entry| RunningDisk {
            spec: DiskSpec::clone(&entry.spec),
            in_service: entry.port.is_ok(),
            has_grown: entry.port.as_ref().is_ok_and(|port| port.disk().image().has_grown()),
        };
        self.disks.values().map(running).collect()
    }

    /// Removes the disks that these changes remove, and returns them to be dropped.
    pub fn remove_gone(&mut self, changes: &[Change]) -> Vec<DiskPort> {
        let gone = changes.iter().filter_map(|change| match change {
            Change::RemoveDisk(name) => Some(name),
            Change::ReplaceDisk(disk, _) => Some(&disk.name),
            _ => None,
        });
        gone.filter_map(|name| self.remove(name).ok().flatten()).collect()
    }

    /// Makes the other changes of disks. Disks that cannot be put into service are tried again, as
    /// at the start, and the reason is noted in `reports`.
    pub fn reload(&mut self, changes: &[Change], reports: &mut [ReloadChange]) {
        for change in changes {
            match change {
                // A command may have added a disk of this name since the configuration was
                // compared.
                Change::AddDisk(disk) | Change::ReplaceDisk(disk, _)
                    if !self.disks.contains_key(&disk.name) =>
                {
                    self.add_configured(disk.clone());
                }
                Change::SetDisk(disk, _) => self.exchange(disk),
                Change::SetXenDisks(spec, _) => {
                    self.xen.iter_mut().for_each(|xen| xen.set_all(spec.settings.clone()));
                }
                _ => {}
            }
        }
        for report in reports.iter_mut().filter(|it| it.subject == ReloadSubject::Disk) {
            let entry = self.disks.get(&report.name);
            report.reason = entry.and_then(|entry| Some(entry.port.as_ref().err()?.to_string()));
        }
    }

    /// Changes the settings of a disk in service, and notes the length of its image.
    fn exchange(&mut self, spec: &DiskSpec) {
        let Some(entry) = self.disks.get_mut(&spec.name) else { return };
        entry.apply(spec.settings.clone());
        let Ok(port) = &entry.port else { return };
        if port.disk().image().has_grown()
            && let Err(error) = port.resize(None)
        {
            warn!(disk = %spec.name, reason = %error, "not resized");
        }
    }

    /// Gives a disk's image a new length, or notes the present one.
    ///
    /// # Errors
    /// A line for people.
    pub fn resize(&mut self, name: &str, bytes: Option<u64>) -> Result<(), String> {
        if let Some(resized) = self.xen.as_ref().and_then(|xen| xen.resize(name, bytes)) {
            let bytes = resized.map_err(|error| format!("disk {name:?}: {error}"))?;
            info!(disk = %name, bytes, "resized");
            return Ok(());
        }
        let entry = self.disks.get(name).ok_or_else(|| unknown(name))?;
        let port = entry.port.as_ref().map_err(|error| format!("disk {name:?}: {error}"))?;
        let bytes = port.resize(bytes).map_err(|error| format!("disk {name:?}: {error}"))?;
        info!(disk = %name, bytes, "resized");
        Ok(())
    }

    /// Changes settings of a disk: the keys and values of a `disk.set` request.
    ///
    /// # Errors
    /// Lines for people, when there is no such disk, or something is wrong with a value.
    /// Nothing has changed then.
    pub fn set(&mut self, name: &str, object: &Map<String, Json>) -> Result<(), String> {
        if let Some(set) = self.xen.as_mut().and_then(|xen| xen.set(name, object)) {
            return set;
        }
        let entry = self.disks.get_mut(name).ok_or_else(|| unknown(name))?;
        let settings = entry.spec.settings.changed(DiskKind::VhostUser, object);
        entry.apply(settings.map_err(|errors| errors.to_string())?);
        Ok(())
    }

    /// The descriptions of the disks that could not be started. They are started without the lock,
    /// and the result goes to [`Disks::started`].
    pub fn not_in_service(&self) -> Vec<Arc<DiskSpec>> {
        let missing = self.disks.values().filter(|entry| entry.port.is_err());
        missing.map(|entry| Arc::clone(&entry.spec)).collect()
    }

    /// Records the result of another attempt to start a disk. Returns the disk to be dropped if it
    /// was removed meanwhile.
    pub fn started(
        &mut self,
        spec: &Arc<DiskSpec>,
        port: Result<DiskPort, DiskError>,
    ) -> Option<DiskPort> {
        let entry = self.disks.get_mut(&spec.name);
        let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.spec, spec)) else {
            return port.ok();
        };
        if port.is_ok() {
            info!(disk = %spec.name, "in service now");
        }
        entry.port = port;
        None
    }

    /// All disks, by name.
    pub fn report(&self) -> Vec<DiskReport> {
        let mut reports: Vec<_> = self.disks.values().map(|entry| self.report_one(entry)).collect();
        reports.extend(self.xen.iter().flat_map(|xen| xen.report(self.starter.disks.as_ref())));
        reports.sort_by(|a, b| natural::compare(&a.name, &b.name));
        reports
    }

    fn report_one(&self, Entry { spec, port }: &Entry) -> DiskReport {
        let mut report = DiskReport {
            name: spec.name.clone(),
            kind: "vhost_user".to_owned(),
            socket: spec.socket.display().to_string(),
            image: spec.image.display().to_string(),
            format: spec.format.name().to_owned(),
            state: PortState::Stopped,
            read_only: spec.read_only,
            serial: spec.serial.clone(),
            queues_offered: spec.queues,
            limits: report::disk_limits(spec.settings.limits.rates()),
            total: DiskCounts::from(&QueueCounters::default()),
            ..DiskReport::default()
        };
        match port {
            Ok(port) => self.describe(port, &mut report),
            Err(error) => report.reason = Some(error.to_string()),
        }
        report
    }

    fn describe(&self, port: &DiskPort, report: &mut DiskReport) {
        let (status, disk) = (port.status(), port.disk());
        report.state = status.state.into();
        report.features =
            blk::feature::names(status.features).into_iter().map(str::to_owned).collect();
        (report.peer, report.connections) = (status.peer, status.connections);
        (report.violations, report.control_delayed) = (status.violations, status.control_delayed);
        report.recovered_rings = status.recovered;
        (report.unclear_rings, report.reason) = (status.unclear, status.complaint());
        report.memory = Some(MemoryReport {
            allocated_bytes: port.account().allocated(),
            limit_bytes: port.account().limit(),
        });
        report::describe_disk(report, disk, self.starter.disks.as_deref(), port.id());
    }
}

/// The error for a name that no disk has.
pub fn unknown(name: &str) -> String {
    format!("there is no disk {name:?}; `ringmain disk list` shows those that are there")
}
