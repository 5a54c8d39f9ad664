//! What a reload changes.

use serde::{Deserialize, Serialize};

/// What a reload of the configuration changes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Whether the changes were made; false of a dry run.
    pub applied: bool,
    /// The changes: budgets, then ports. Empty: what runs is what the file says.
    pub changes: Vec<ReloadChange>,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReloadChange {
    /// What is done.
    pub action: ReloadAction,
    /// What it is done to.
    pub subject: ReloadSubject,
    /// The name of the port or budget.
    pub name: String,
    /// The keys that differ, in snake case; empty where something is added or removed.
    pub keys: Vec<String>,
    /// Why a port that was added is not in service. It is tried again.
    pub reason: Option<String>,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadAction {
    /// It is added.
    Add,
    /// It changes in service.
    Set,
    /// It is removed and added anew, so that its sessions end.
    Replace,
    /// It is removed.
    Remove,
}

/// What has changed in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadSubject {
    /// A `[[port]]`.
    Port,
    /// A `[[budget]]`.
    Budget,
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
        }
    }
}
