//! The list of what a running daemon serves, for a process that takes over.

use serde::{Deserialize, Serialize};

/// The list of what a running daemon serves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the state that will come.
    pub format: u32,
    /// The daemon's version.
    pub release: String,
    /// The ports, sorted by name.
    pub ports: Vec<ManifestPort>,
    /// The address or path where metrics are served; null: nowhere.
    pub metrics: Option<String>,
}

/// A port of a running daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ManifestPort {
    /// Its name.
    pub name: String,
    /// The end that it attaches to, with its kind.
    pub attachment: String,
    /// Its queue pairs.
    pub queues: u16,
}
