//! The disks of Xen guests: one entry of the configuration stands for all vbds of this domain.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::hypervisor::xen::{Class, OpenError, open_backend};
use ::storage::Disks;
use ::storage::count::QueueCounters;
use ::xen::blkif::service::{BlkbackConfig, Service, ServiceError};
use ::xen::blkif::status::VbdStatus;
use ::xen::xenbus::{Condition, DeviceId};
use serde_json::{Map, Value as Json};
use tracing::info;

use crate::api::{DiskCounts, DiskReport, PortState};
use crate::config::{ConfigErrors, DiskKind, DiskSettings, XenDisksSpec};
use crate::report::{describe_disk, disk_limits};

/// Why the disks of Xen guests cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum XenDisksError {
    /// The daemon was started without the permissions that disks need.
    #[error("the daemon was started without disks; restart it")]
    NotAllowed,
    /// This is no Xen host, or its devices cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store fails, or no thread can be started.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The disks of Xen guests.
pub struct XenDisks {
    spec: Arc<XenDisksSpec>,
    /// The service, or the reason why there is none. Starting it is retried.
    service: Result<Service, XenDisksError>,
    /// Settings that were made for single vbds. They hold as long as the service has separate
    /// limits for the vbd. A vbd that is removed and added again begins with the common settings.
    own: BTreeMap<DeviceId, DiskSettings>,
}

/// Begins to serve. May wait for the store.
///
/// # Errors
/// The reason why the disks cannot be served.
pub fn start(
    disks: Option<&Arc<Disks>>,
    spec: &XenDisksSpec,
    workers: usize,
) -> Result<Service, XenDisksError> {
    let disks = disks.ok_or(XenDisksError::NotAllowed)?;
    let config = BlkbackConfig {
        queues: spec.queues.unwrap_or(u16::try_from(workers).unwrap_or(u16::MAX)),
        folders: spec.folders.clone(),
        direct: spec.direct,
        policy: spec.policy,
        limits: spec.settings.limits.rates(),
    };
    let hypervisor = open_backend(Class::Vbd)?;
    Ok(Service::start(Arc::clone(disks), hypervisor, config)?)
}

impl XenDisks {
    /// The disks of a configuration.
    pub fn new(spec: Arc<XenDisksSpec>, service: Result<Service, XenDisksError>) -> XenDisks {
        XenDisks { spec, service, own: BTreeMap::new() }
    }

    /// Records the result of another attempt to start the service. Settings may have changed
    /// meanwhile.
    pub fn started(&mut self, service: Result<Service, XenDisksError>) {
        if let Ok(service) = &service {
            info!(disk = %self.spec.name, "in service now");
            service.set_all_limits(self.spec.settings.limits.rates());
        }
        self.service = service;
    }

    /// The description of these disks.
    pub fn spec(&self) -> &Arc<XenDisksSpec> {
        &self.spec
    }

    /// The reason why the disks are not in service.
    pub fn error(&self) -> Option<&XenDisksError> {
        self.service.as_ref().err()
    }

    /// Changes settings of one vbd, or of all vbds by their common name: the keys and values of a
    /// `disk.set` request. `None`: the name is neither.
    pub fn set(&mut self, name: &str, object: &Map<String, Json>) -> Option<Result<(), String>> {
        let changed = |settings: &DiskSettings| settings.changed(DiskKind::Xen, object);
        if self.spec.name == name {
            let settings = changed(&self.spec.settings);
            return Some(said(settings.map(|settings| self.set_all(settings))));
        }
        let (service, vbd) = self.find(name)?;
        let id = vbd.bus.id;
        let is_own = |id: DeviceId| service.limits(id).is_some_and(|limits| limits.own);
        let present = self.own.get(&id).filter(|_| is_own(id)).unwrap_or(&self.spec.settings);
        let settings = match changed(present) {
            Ok(settings) => settings,
            Err(errors) => return Some(said(Err(errors))),
        };
        if !service.set_limits(id, settings.limits.rates()) {
            return None;
        }
        info!(disk = %name, "changed");
        let gone: Vec<DeviceId> = self.own.keys().copied().filter(|id| !is_own(*id)).collect();
        gone.iter().for_each(|id| _ = self.own.remove(id));
        self.own.insert(id, settings);
        Some(Ok(()))
    }

    /// Changes the settings of all vbds, also of those that had settings of their own.
    pub fn set_all(&mut self, settings: DiskSettings) {
        if let Ok(service) = &self.service {
            service.set_all_limits(settings.limits.rates());
        }
        info!(disk = %self.spec.name, "changed");
        self.own.clear();
        self.spec = Arc::new(XenDisksSpec { settings, ..XenDisksSpec::clone(&self.spec) });
    }

    /// Gives a vbd's image a new length, or notes the present one. `None`: there is no vbd of this
    /// name.
    pub fn resize(&self, name: &str, bytes: Option<u64>) -> Option<Result<u64, String>> {
        let (service, vbd) = self.find(name)?;
        Some(match service.resize(vbd.bus.id, bytes) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err("no guest has connected to it so far".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Whether there is a vbd of this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<(&Service, VbdStatus)> {
        let service = self.service.as_ref().ok()?;
        let vbd = service.vbds().into_iter().find(|vbd| vbd.bus.id.to_string() == name)?;
        Some((service, vbd))
    }

    /// A report for each vbd, or one with the reason why none is served.
    pub fn report(&self, disks: Option<&Arc<Disks>>) -> Vec<DiskReport> {
        match &self.service {
            Ok(service) => {
                let vbds = service.vbds();
                vbds.iter().map(|vbd| self.report_one(service, vbd, disks)).collect()
            }
            Err(error) => {
                let reason = Some(error.to_string());
                let limits = disk_limits(self.spec.settings.limits.rates());
                vec![DiskReport { name: self.spec.name.clone(), reason, limits, ..self.blank() }]
            }
        }
    }

    fn blank(&self) -> DiskReport {
        DiskReport {
            kind: "xen".to_owned(),
            format: "raw".to_owned(),
            state: PortState::Stopped,
            total: DiskCounts::from(&QueueCounters::default()),
            ..DiskReport::default()
        }
    }

    fn report_one(
        &self,
        service: &Service,
        vbd: &VbdStatus,
        disks: Option<&Arc<Disks>>,
    ) -> DiskReport {
        let limits = service.limits(vbd.bus.id);
        let mut report = DiskReport {
            name: vbd.bus.id.to_string(),
            state: match vbd.bus.condition {
                Condition::Waiting => PortState::Listening,
                Condition::Connected => PortState::Connected,
                Condition::Stopped => PortState::Stopped,
            },
            reason: vbd.bus.reason.clone(),
            connections: vbd.bus.connections,
            violations: vbd.bus.violations,
            control_delayed: vbd.bus.control_delayed,
            queues_offered: vbd.queues_offered,
            limits: limits.map(|limits| disk_limits(limits.rates)).unwrap_or_default(),
            ..self.blank()
        };
        if let Some(settings) = &vbd.settings {
            report.format = settings.format.name().to_owned();
            report.image = settings.image.display().to_string();
            report.read_only = settings.read_only;
        }
        if let Some((id, disk)) = &vbd.disk {
            describe_disk(&mut report, disk, disks.map(|disks| &**disks), *id);
        }
        if let Some(connected) = &vbd.connected {
            report.features = vec![
                connected.layout.name().to_owned(),
                format!("ring-pages={}", connected.ring_pages),
            ];
            report.features.extend(connected.persistent.then(|| "persistent-grants".to_owned()));
        }
        report
    }
}

/// The result of a change, for people.
fn said(outcome: Result<(), ConfigErrors>) -> Result<(), String> {
    outcome.map_err(|errors| errors.to_string())
}

#[cfg(test)]
mod tests;
