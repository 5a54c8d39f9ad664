//! Changes of ports in service: their settings, and the budgets that they share.

use std::sync::Arc;

use serde_json::{Map, Value as Json};
use switch::filter::RuleSet;
use tracing::info;

use super::{Port, Ports, unknown};
use crate::api::BudgetReport;
use crate::config::{BudgetSpec, Known, PortKind, PortSpec, SecuritySpec};
use crate::kind::Kind;
use crate::report;

impl Ports {
    /// Changes settings of a port: the keys and values of a `port.set` request.
    ///
    /// # Errors
    /// Lines for people, when there is no such port, or something is wrong with a value. Then
    /// nothing has changed.
    pub fn set(&mut self, name: &str, object: &Map<String, Json>) -> Result<(), String> {
        let mirrors = self.possible_mirrors(name);
        let Some(port) = self.ports.get(name) else { return Err(self.not_changeable(name)) };
        let PortSpec { settings, kind, .. } = &*port.spec;
        let changed = self.with_known(|known| {
            let known = Known { mirrors: Some(&mirrors), ..known };
            settings.changed(kind.kind(), object, known)
        });
        let settings = changed.map_err(|errors| errors.to_string())?;
        if !settings.security_groups.is_empty() && kind.device_queue().is_some() {
            return Err("security_groups: frames of a device queue bypass filters".to_owned());
        }
        let Some(port) = self.ports.get_mut(name) else { return Err(unknown(name)) };
        if settings != port.spec.settings {
            port.spec = Arc::new(PortSpec { settings, ..PortSpec::clone(&port.spec) });
            info!(port = %name, "changed");
            self.restrict(|port| port.spec.name == name);
            self.follow_mirrors();
        }
        Ok(())
    }

    /// The error for a name that is no port that can be changed.
    fn not_changeable(&self, name: &str) -> String {
        match self.vifs().into_iter().find(|vif| vif.name == name) {
            Some(vif) if vif.kind == Kind::Xen => format!(
                "{name} follows its keys in the store (ringmain/rate, ringmain/addresses, ringmain/budget), and the \
                 port of kind xen: set that port"
            ),
            Some(_) => {
                let host = name.split('/').next().unwrap_or(name);
                format!("{name} follows port {host:?}: set that port")
            }
            None => unknown(name),
        }
    }

    /// Applies the present settings, budgets and limits of memory to these ports.
    pub(super) fn restrict(&self, concerned: impl Fn(&Port) -> bool) {
        for (_, port, backend) in self.in_service().filter(|(_, port, _)| concerned(port)) {
            backend.restrict(&self.fabric, &self.template(&port.spec.settings));
            backend.limit_memory(port.spec.settings.memory);
        }
    }

    /// Sets the groups of the configuration, at the start.
    pub fn set_security(&mut self, security: SecuritySpec) {
        self.security = security;
    }

    /// The rules of a port that is not in service, or that stands for others; `None`: it is in no
    /// security group.
    ///
    /// # Errors
    /// A line for people, when there is no such port.
    pub fn rules_of(&self, name: &str) -> Result<Option<Arc<RuleSet>>, String> {
        let port = self.ports.get(name).ok_or_else(|| unknown(name))?;
        Ok(self.security.rules(&port.spec.settings.security_groups))
    }

    /// Adds a budget of the configuration.
    pub fn add_budget(&mut self, budget: BudgetSpec) {
        self.budgets.insert(budget);
    }

    /// Adds a budget: the keys and values of a `budget.add` request.
    ///
    /// # Errors
    /// Lines for people, when the request has mistakes.
    pub fn request_budget(&mut self, object: &Map<String, Json>) -> Result<(), String> {
        let budget = BudgetSpec::from_request(object, &self.budgets.names());
        let budget = budget.map_err(|errors| errors.to_string())?;
        info!(budget = %budget.name, "added");
        self.budgets.insert(budget);
        // Vifs may already name the new budget.
        self.restrict(|port| port.spec.kind == PortKind::Xen);
        Ok(())
    }

    /// Changes a budget, for all ports that share it: the keys and values of a `budget.set`
    /// request.
    ///
    /// # Errors
    /// Lines for people, when there is no such budget, or something is wrong with a value. Then
    /// nothing has changed.
    pub fn set_budget(&mut self, name: &str, object: &Map<String, Json>) -> Result<(), String> {
        let present = self.budgets.limits(name).ok_or_else(|| unknown_budget(name))?;
        let limits = present.changed(object).map_err(|errors| errors.to_string())?;
        if limits != present {
            self.budgets.insert(BudgetSpec { name: name.to_owned(), limits });
            info!(budget = %name, "changed");
            // Vifs name budgets in their own keys.
            self.restrict(|port| {
                port.spec.settings.budget.as_deref() == Some(name)
                    || port.spec.kind == PortKind::Xen
            });
        }
        Ok(())
    }

    /// Removes a budget.
    ///
    /// # Errors
    /// A line for people, when there is none of this name, or ports share it.
    pub fn remove_budget(&mut self, name: &str) -> Result<(), String> {
        let ports = self.sharing(name);
        if !ports.is_empty() {
            let ports = ports.join(", ");
            return Err(format!("ports share budget {name:?}: {ports}; set their budget first"));
        }
        if !self.budgets.remove(name) {
            return Err(unknown_budget(name));
        }
        self.restrict(|port| port.spec.kind == PortKind::Xen);
        info!(budget = %name, "removed");
        Ok(())
    }

    /// All budgets, by name.
    pub fn budgets(&self) -> Vec<BudgetReport> {
        let report = |name: String| BudgetReport {
            limits: report::limits(&self.budgets.limits(&name).unwrap_or_default()),
            ports: self.sharing(&name),
            name,
        };
        self.budgets.names().into_iter().map(report).collect()
    }

    /// The ports that share a budget: those of the configuration, and vifs that name it.
    fn sharing(&self, budget: &str) -> Vec<String> {
        let sharing = self.specs().filter(|spec| spec.settings.budget.as_deref() == Some(budget));
        let vifs = self.vifs().into_iter().filter(|vif| {
            let settings = vif.status.settings.as_ref();
            settings.is_some_and(|settings| settings.budget.as_deref() == Some(budget))
        });
        sharing.map(|spec| spec.name.clone()).chain(vifs.map(|vif| vif.name)).collect()
    }
}

/// The error for a name that no budget has.
pub fn unknown_budget(name: &str) -> String {
    format!("there is no budget {name:?}; `ringmain budget list` shows those that are there")
}
