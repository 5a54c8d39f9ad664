//! A reload of the configuration: changes of several ports, budgets and groups at once.

use std::sync::Arc;

use super::Ports;
use crate::api::{ReloadAction, ReloadChange, ReloadSubject};
use crate::config::{BudgetSpec, PortKind, PortSpec, SecuritySpec};
use crate::reload::{Change, FileNames, Running};

impl Ports {
    /// Sets the names that belong to the configuration file.
    pub fn set_of_file(&mut self, names: FileNames) {
        self.of_file = names;
    }

    /// The running ports and budgets, to be compared with a configuration. Disks are not in it.
    pub fn running(&self) -> Running {
        let budget = |name: String| {
            let limits = self.budgets.limits(&name)?;
            Some(BudgetSpec { name, limits })
        };
        let vif_budgets = self.vifs().into_iter().filter_map(|vif| {
            let settings = vif.status.settings.as_ref()?;
            Some((vif.name.clone(), settings.budget.clone()?))
        });
        Running {
            ports: self.specs().cloned().collect(),
            budgets: self.budgets.names().into_iter().filter_map(budget).collect(),
            overlays: Vec::new(),
            disks: Vec::new(),
            xen_disks: None,
            security: self.security.clone(),
            of_file: self.of_file.clone(),
            vif_budgets: vif_budgets.collect(),
        }
    }

    /// Makes these changes. Ports that cannot be put into service are tried again, as at the start.
    /// A socket or device of a port that is removed can be used by one that is added.
    pub fn reload(&mut self, changes: &[Change], security: &SecuritySpec) -> Vec<ReloadChange> {
        for change in changes {
            match change {
                Change::RemovePort(name) => self.remove_of_file(name),
                Change::ReplacePort(port, _) => self.remove_of_file(&port.name),
                _ => {}
            }
        }
        let regrouped = self.security != *security;
        self.security.clone_from(security);
        self.reload_budgets(changes);
        for change in changes {
            match change {
                Change::SetPort(port, _) => self.exchange(port),
                Change::AddPort(port) | Change::ReplacePort(port, _) => {
                    self.add_configured(port.clone());
                }
                _ => {}
            }
        }
        if regrouped {
            self.restrict(|port| !port.spec.settings.security_groups.is_empty());
        }
        changes.iter().map(|change| self.done(change)).collect()
    }

    fn remove_of_file(&mut self, name: &str) {
        // The changes name existing ports.
        let _ = self.remove(name);
    }

    /// Changes the settings of a port in service.
    fn exchange(&mut self, spec: &PortSpec) {
        if let Some(port) = self.ports.get_mut(&spec.name) {
            port.spec = Arc::new(spec.clone());
            tracing::info!(port = %spec.name, "changed");
            self.restrict(|port| port.spec.name == spec.name);
            self.follow_mirrors();
        }
    }

    /// Adds and changes budgets, and removes those that no port shares any more.
    fn reload_budgets(&mut self, changes: &[Change]) {
        let (mut changed, mut any) = (Vec::new(), false);
        for change in changes {
            match change {
                Change::AddBudget(budget) => self.budgets.insert(budget.clone()),
                Change::SetBudget(budget, _) => {
                    self.budgets.insert(budget.clone());
                    changed.push(&budget.name);
                }
                Change::RemoveBudget(name) => {
                    self.budgets.remove(name);
                }
                _ => continue,
            }
            any = true;
            let ReloadChange { action, name, .. } = change.report();
            tracing::info!(budget = %name, action = action.name(), "the budget is reloaded");
        }
        self.restrict(|port| {
            let budget = port.spec.settings.budget.as_ref();
            // Vifs name budgets in their own keys.
            let names_any = any && port.spec.kind == PortKind::Xen;
            names_any || budget.is_some_and(|name| changed.contains(&name))
        });
    }

    /// The report about a change.
    fn done(&self, change: &Change) -> ReloadChange {
        let report = change.report();
        let comes = matches!(report.action, ReloadAction::Add | ReloadAction::Replace);
        let port = self.ports.get(&report.name);
        let port = port.filter(|_| comes && report.subject == ReloadSubject::Port);
        let reason = port.and_then(|port| Some(port.backend.as_ref().err()?.to_string()));
        ReloadChange { reason, ..report }
    }
}
