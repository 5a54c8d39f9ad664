//! The layers, and whether they are active.

use std::fmt;

/// A layer of the sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// An IPC namespace of the daemon's own.
    IpcNamespace,
    /// A file system that holds only what the daemon needs.
    MountNamespace,
    /// No program that is executed later has more rights than the daemon.
    NoNewPrivileges,
    /// Landlock: rights for paths, and no TCP ports, signals or abstract sockets of others.
    Landlock,
    /// An ordinary user in place of root.
    User,
    /// Only the capabilities that are needed.
    Capabilities,
    /// A filter for system calls, for each kind of thread.
    Seccomp,
}

impl Layer {
    /// All layers, in the order in which they are entered: each needs what a later one takes away.
    pub const ALL: [Layer; 7] = [
        Layer::IpcNamespace,
        Layer::MountNamespace,
        Layer::NoNewPrivileges,
        Layer::Landlock,
        Layer::User,
        Layer::Capabilities,
        Layer::Seccomp,
    ];

    /// The name, as in logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Layer::User => "user",
            Layer::Capabilities => "capabilities",
            Layer::NoNewPrivileges => "no-new-privileges",
            Layer::IpcNamespace => "ipc-namespace",
            Layer::MountNamespace => "mount-namespace",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
        }
    }
}

/// Whether a layer is active.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayerState {
    /// The layer is active, with these details.
    Active(String),
    /// Only a part of the layer is active, for this reason.
    Partial(String),
    /// The layer is missing, for this reason.
    Missing(String),
}

impl LayerState {
    /// The name, as in logs and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            LayerState::Active(_) => "active",
            LayerState::Partial(_) => "partial",
            LayerState::Missing(_) => "missing",
        }
    }

    /// Details, or the reason.
    pub fn detail(&self) -> &str {
        let (LayerState::Active(text) | LayerState::Partial(text) | LayerState::Missing(text)) =
            self;
        text
    }

    /// Active with these details, or missing with the error as the reason.
    pub(crate) fn of<E: fmt::Display>(result: Result<String, E>) -> LayerState {
        match result {
            Ok(detail) => LayerState::Active(detail),
            Err(error) => LayerState::Missing(error.to_string()),
        }
    }
}

/// A layer and its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerReport {
    /// The layer.
    pub layer: Layer,
    /// Its state.
    pub state: LayerState,
}
