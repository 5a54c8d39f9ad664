//! The changes that a reload makes: the difference between what is running and a configuration.
//! Pure: nothing is read, changed or logged here.
//!
//! Ports and budgets that the file had before belong to the file: they follow the file in
//! everything, and are removed with their tables. Ports and budgets that commands have added are
//! left alone, unless the file now has one of the same name. Address groups and security groups are
//! in the file only.

mod disk;
mod security;

use std::collections::BTreeSet;

use crate::api::{ReloadAction, ReloadChange, ReloadSubject};
use crate::config::{
    BudgetSpec, Config, DiskSpec, MetricsSpec, OverlaySpec, PortKind, PortSpec, SecuritySpec,
    XenDisksSpec,
};

pub use disk::{RunningDisk, fixed_xen_disks};

/// The names that a configuration file has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileNames {
    ports: BTreeSet<String>,
    budgets: BTreeSet<String>,
    disks: BTreeSet<String>,
}

impl FileNames {
    /// The names of this configuration.
    pub fn of(config: &Config) -> FileNames {
        FileNames {
            ports: config.ports.iter().map(|port| port.name.clone()).collect(),
            budgets: config.budgets.iter().map(|budget| budget.name.clone()).collect(),
            disks: config.disks.iter().map(|disk| disk.name.clone()).collect(),
        }
    }
}

/// The ports and budgets of the running daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Running {
    /// The ports, as they are now.
    pub ports: Vec<PortSpec>,
    /// The budgets, as they are now.
    pub budgets: Vec<BudgetSpec>,
    /// The overlays, as they are now. All of them are of the file.
    pub overlays: Vec<OverlaySpec>,
    /// The disks, as they are now.
    pub disks: Vec<RunningDisk>,
    /// The disks of Xen guests, as they are described now.
    pub xen_disks: Option<XenDisksSpec>,
    /// The address groups and security groups, as they are now.
    pub security: SecuritySpec,
    /// The names that the file had when it was read last.
    pub of_file: FileNames,
    /// Vifs that name a budget by themselves: the vif, and the budget.
    pub vif_budgets: Vec<(String, String)>,
}

impl Running {
    /// The ports that stay although `wanted` does not have them: commands have added them.
    pub fn kept<'a>(&'a self, wanted: &'a Config) -> impl Iterator<Item = &'a PortSpec> {
        let in_file = |port: &PortSpec| {
            self.of_file.ports.contains(&port.name)
                || find_port(&wanted.ports, &port.name).is_some()
        };
        self.ports.iter().filter(move |port| !in_file(port))
    }

    /// The reasons against a reload: a line for each budget that is not in the file any more
    /// although a port or vif that stays shares it.
    pub fn conflicts(&self, wanted: &Config) -> Vec<String> {
        let serves_vifs = wanted.ports.iter().chain(self.kept(wanted));
        let serves_vifs = serves_vifs.into_iter().any(|port| port.kind == PortKind::Xen);
        let mut conflicts = Vec::new();
        for BudgetSpec { name, .. } in self.gone(wanted) {
            let ports =
                self.kept(wanted).filter(|port| port.settings.budget.as_ref() == Some(name));
            let vifs = self.vif_budgets.iter().filter(|(_, budget)| serves_vifs && budget == name);
            let sharing: Vec<&str> = ports
                .map(|port| port.name.as_str())
                .chain(vifs.map(|(vif, _)| vif.as_str()))
                .collect();
            if !sharing.is_empty() {
                let sharing = sharing.join(", ");
                conflicts.push(format!(
                    "budget {name:?} is not there any more, and these share it: {sharing}; set \
                     their budget first"
                ));
            }
        }
        conflicts.extend(security::conflicts(self, wanted));
        conflicts
    }

    /// The budgets of the file that `wanted` does not have.
    fn gone<'a>(&'a self, wanted: &'a Config) -> impl Iterator<Item = &'a BudgetSpec> {
        let wanted = |name| wanted.budgets.iter().any(|budget| budget.name == name);
        let of_file = |name| self.of_file.budgets.contains(name);
        self.budgets.iter().filter(move |it| of_file(&it.name) && !wanted(it.name.clone()))
    }
}

/// One change, with the complete new description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Add a budget.
    AddBudget(BudgetSpec),
    /// Change a budget, in these keys.
    SetBudget(BudgetSpec, Vec<String>),
    /// Remove the budget of this name.
    RemoveBudget(String),
    /// Add, change in these keys, or remove an address group or a security group. All of them are
    /// replaced at once.
    Group(ReloadAction, ReloadSubject, String, Vec<String>),
    /// Add a port.
    AddPort(PortSpec),
    /// Change settings of a port in service, in these keys.
    SetPort(PortSpec, Vec<String>),
    /// Remove a port and add it again, because of these keys.
    ReplacePort(PortSpec, Vec<String>),
    /// Remove the port of this name.
    RemovePort(String),
    /// Add an overlay.
    AddOverlay(OverlaySpec),
    /// Change peers or stations of an overlay in service, in these keys.
    SetOverlay(OverlaySpec, Vec<String>),
    /// Remove an overlay and add it again, because of these keys.
    ReplaceOverlay(OverlaySpec, Vec<String>),
    /// Remove the overlay of this name.
    RemoveOverlay(String),
    /// Add a disk.
    AddDisk(DiskSpec),
    /// Change settings of a disk in service, in these keys, or note the length of its image.
    SetDisk(DiskSpec, Vec<String>),
    /// Change settings of all disks of Xen guests, in these keys.
    SetXenDisks(XenDisksSpec, Vec<String>),
    /// Add a disk again that is not in service, because of these keys.
    ReplaceDisk(DiskSpec, Vec<String>),
    /// Remove the disk of this name.
    RemoveDisk(String),
}

impl Change {
    /// The port that is put into service, if any.
    pub fn new_port(&self) -> Option<&PortSpec> {
        match self {
            Change::AddPort(port) | Change::ReplacePort(port, _) => Some(port),
            _ => None,
        }
    }

    /// The overlay that is put into service, if any.
    pub fn new_overlay(&self) -> Option<&OverlaySpec> {
        match self {
            Change::AddOverlay(overlay) | Change::ReplaceOverlay(overlay, _) => Some(overlay),
            _ => None,
        }
    }

    /// Whether a disk is put into service.
    pub fn adds_disk(&self) -> bool {
        matches!(self, Change::AddDisk(_) | Change::ReplaceDisk(..))
    }

    /// The change as clients see it.
    pub fn report(&self) -> ReloadChange {
        use ReloadAction::{Add, Remove, Replace, Set};
        use ReloadSubject::{Budget, Disk, Overlay, Port};
        let (action, subject, name, keys) = match self {
            Change::AddBudget(budget) => (Add, Budget, &budget.name, &[][..]),
            Change::SetBudget(budget, keys) => (Set, Budget, &budget.name, &keys[..]),
            Change::RemoveBudget(name) => (Remove, Budget, name, &[][..]),
            Change::Group(action, subject, name, keys) => (*action, *subject, name, &keys[..]),
            Change::AddPort(port) => (Add, Port, &port.name, &[][..]),
            Change::SetPort(port, keys) => (Set, Port, &port.name, &keys[..]),
            Change::ReplacePort(port, keys) => (Replace, Port, &port.name, &keys[..]),
            Change::RemovePort(name) => (Remove, Port, name, &[][..]),
            Change::AddOverlay(overlay) => (Add, Overlay, &overlay.name, &[][..]),
            Change::SetOverlay(overlay, keys) => (Set, Overlay, &overlay.name, &keys[..]),
            Change::ReplaceOverlay(overlay, keys) => (Replace, Overlay, &overlay.name, &keys[..]),
            Change::RemoveOverlay(name) => (Remove, Overlay, name, &[][..]),
            Change::AddDisk(disk) => (Add, Disk, &disk.name, &[][..]),
            Change::SetDisk(disk, keys) => (Set, Disk, &disk.name, &keys[..]),
            Change::SetXenDisks(xen, keys) => (Set, Disk, &xen.name, &keys[..]),
            Change::ReplaceDisk(disk, keys) => (Replace, Disk, &disk.name, &keys[..]),
            Change::RemoveDisk(name) => (Remove, Disk, name, &[][..]),
        };
        let (name, keys) = (name.clone(), keys.to_vec());
        ReloadChange { action, subject, name, keys, reason: None }
    }
}

/// The changes that give the running daemon the budgets, groups, ports, overlays and disks of
/// `wanted`, in this order, each in the order of the file, and removals after additions.
pub fn changes(running: &Running, wanted: &Config) -> Vec<Change> {
    let budgets = wanted.budgets.iter().filter_map(|budget| {
        let present = running.budgets.iter().find(|present| present.name == budget.name);
        budget_change(present, budget)
    });
    let gone_budgets = running.gone(wanted).map(|it| Change::RemoveBudget(it.name.clone()));
    let ports = wanted.ports.iter().filter_map(|port| {
        let present = find_port(&running.ports, &port.name);
        port_change(present, port)
    });
    let of_file = running.ports.iter().filter(|it| running.of_file.ports.contains(&it.name));
    let gone_ports = of_file
        .filter(|port| find_port(&wanted.ports, &port.name).is_none())
        .map(|port| Change::RemovePort(port.name.clone()));
    let disks = disk::changes(running, wanted);
    let groups = security::changes(&running.security, &wanted.security);
    let overlays = overlay_changes(&running.overlays, &wanted.overlays);
    let ports = ports.chain(gone_ports);
    budgets.chain(gone_budgets).chain(groups).chain(ports).chain(overlays).chain(disks).collect()
}

fn find_port<'a>(ports: &'a [PortSpec], name: &str) -> Option<&'a PortSpec> {
    ports.iter().find(|port| port.name == name)
}

fn budget_change(present: Option<&BudgetSpec>, wanted: &BudgetSpec) -> Option<Change> {
    match present {
        None => Some(Change::AddBudget(wanted.clone())),
        Some(present) if present == wanted => None,
        Some(present) => Some(Change::SetBudget(wanted.clone(), present.changed_keys(wanted))),
    }
}

fn port_change(present: Option<&PortSpec>, wanted: &PortSpec) -> Option<Change> {
    let Some(present) = present else { return Some(Change::AddPort(wanted.clone())) };
    if present == wanted {
        return None;
    }
    let keys = present.changed_keys(wanted);
    let settings = wanted.settings.clone();
    // Only the settings can change in service.
    match (PortSpec { settings, ..present.clone() }) == *wanted {
        true => Some(Change::SetPort(wanted.clone(), keys)),
        false => Some(Change::ReplacePort(wanted.clone(), keys)),
    }
}

fn overlay_changes(present: &[OverlaySpec], wanted: &[OverlaySpec]) -> Vec<Change> {
    let find = |all: &[OverlaySpec], name: &str| all.iter().find(|it| it.name == name).cloned();
    let new = wanted.iter().filter_map(|wanted| {
        let Some(present) = find(present, &wanted.name) else {
            return Some(Change::AddOverlay(wanted.clone()));
        };
        let keys = present.changed_keys(wanted);
        match (keys.is_empty(), present.can_become(wanted)) {
            (true, _) => None,
            (false, true) => Some(Change::SetOverlay(wanted.clone(), keys)),
            (false, false) => Some(Change::ReplaceOverlay(wanted.clone(), keys)),
        }
    });
    let gone = present.iter().filter(|present| find(wanted, &present.name).is_none());
    new.chain(gone.map(|gone| Change::RemoveOverlay(gone.name.clone()))).collect()
}

/// The keys outside ports, budgets, overlays and disks that differ. They cannot change while the
/// daemon runs.
pub fn fixed_keys(present: &Config, wanted: &Config) -> Vec<&'static str> {
    // All fields are named, so that a new one is not overlooked.
    let Config {
        workers,
        cpus,
        interrupt_cpu,
        policy,
        balance,
        socket,
        permissions,
        metrics,
        sandbox,
        budgets: _,
        security: _,
        ports: _,
        overlays: _,
        disks: _,
        xen_disks: _,
    } = wanted;
    let listener = |metrics: &Option<MetricsSpec>| {
        metrics.as_ref().map(|it| (it.listen.clone(), it.permissions))
    };
    let dashboard = |metrics: &Option<MetricsSpec>| metrics.as_ref().is_some_and(|it| it.dashboard);
    let (held, access) = (&present.sandbox, &present.permissions);
    // The number of workers follows from the CPUs if it is not given.
    let follows = cpus.len() == *workers || *interrupt_cpu != present.interrupt_cpu;
    let differs = [
        ("workers.count", *workers != present.workers && !follows),
        ("workers.cpus", *cpus != present.cpus),
        ("workers.interrupt-cpu", *interrupt_cpu != present.interrupt_cpu),
        ("workers.polling", *policy != present.policy),
        ("workers.balance", *balance != present.balance),
        ("control.socket", *socket != present.socket),
        ("control.mode", permissions.mode != access.mode),
        ("control.owner", permissions.owner != access.owner),
        ("control.group", permissions.group != access.group),
        ("metrics.listen", listener(metrics) != listener(&present.metrics)),
        ("metrics.dashboard", dashboard(metrics) != dashboard(&present.metrics)),
        ("sandbox.enabled", sandbox.enabled != held.enabled),
        ("sandbox.user", sandbox.user != held.user),
        ("sandbox.folders", sandbox.folders != held.folders),
        ("sandbox.live", sandbox.live != held.live),
        ("sandbox.without", sandbox.without != held.without),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests;
