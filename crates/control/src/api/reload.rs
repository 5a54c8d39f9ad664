//! The changes of a reload.

use serde::{Deserialize, Serialize};

/// The changes of a reload of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Whether the changes were made; false of a dry run.
    pub applied: bool,
    /// The changes: budgets, then groups, ports, overlays, disks. Empty: the daemon matches the
    /// file.
    pub changes: Vec<ReloadChange>,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReloadChange {
    /// The action.
    pub action: ReloadAction,
    /// The kind of object that changes.
    pub subject: ReloadSubject,
    /// The name of the port, budget, group, overlay or disk.
    pub name: String,
    /// The keys that differ, in snake case, and `size` where the image of a disk has grown; empty
    /// where something is added or removed.
    pub keys: Vec<String>,
    /// Why a port, overlay or disk that was added is not in service. It is tried again.
    pub reason: Option<String>,
}

/// The action on a port or budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadAction {
    /// The object is added.
    Add,
    /// The object changes in service.
    Set,
    /// The object is removed and added again, so that its sessions end.
    Replace,
    /// The object is removed.
    Remove,
}

/// The kind of object that changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadSubject {
    /// A `[[port]]`.
    Port,
    /// A `[[budget]]`.
    Budget,
    /// An `[[address-group]]`.
    AddressGroup,
    /// A `[[security-group]]`.
    SecurityGroup,
    /// A `[[disk]]`.
    Disk,
    /// An `[[overlay]]`.
    Overlay,
}

impl ReloadAction {
    /// The name in JSON, and for people.
    pub fn name(self) -> &'static str {
        match self {
            ReloadAction::Add => "add",
            ReloadAction::Set => "set",
            ReloadAction::Replace => "replace",
            ReloadAction::Remove => "remove",
        }
    }
}

impl ReloadSubject {
    /// The name in JSON, and for people.
    pub fn name(self) -> &'static str {
        match self {
            ReloadSubject::Port => "port",
            ReloadSubject::Budget => "budget",
            ReloadSubject::AddressGroup => "address_group",
            ReloadSubject::SecurityGroup => "security_group",
            ReloadSubject::Disk => "disk",
            ReloadSubject::Overlay => "overlay",
        }
    }
}
