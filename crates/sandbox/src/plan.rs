//! The permissions that the sandbox leaves, and the entry into it.

use std::io;
use std::path::PathBuf;

use rustix::thread::{CapabilitySet, UnshareFlags};

use crate::capabilities;
use crate::folders;
use crate::identity::{self, Group, User};
use crate::layer::{Layer, LayerReport, LayerState};
use crate::namespaces;
use crate::paths::{self, Access, Path};
use crate::root;
use crate::seccomp::{self, Extras};

/// A folder of sockets that is missing and cannot be created. Its sockets cannot be created either
/// then, even if the folder appears later: the sandbox does not hold it.
#[derive(Debug, thiserror::Error)]
#[error("cannot create {}: {error}", .path.display())]
pub struct MissingFolder {
    /// The folder.
    pub path: PathBuf,
    /// The system's error.
    pub error: io::Error,
}

/// A sandbox that the process has entered.
#[derive(Debug)]
pub struct Entered {
    /// All layers, and which of them are active.
    pub layers: Vec<LayerReport>,
    /// The folders that the sandbox lacks.
    pub missing: Vec<MissingFolder>,
}

/// Capabilities that are kept, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capability {
    /// The capabilities.
    pub set: CapabilitySet,
    /// The part that needs them, for people.
    pub reason: String,
}

/// The permissions that the sandbox leaves to the process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The user to run as, or why the present one is kept.
    pub user: Result<User, String>,
    /// Groups that the process is in beside the user's own.
    pub groups: Vec<Group>,
    /// Capabilities that are kept.
    pub capabilities: Vec<Capability>,
    /// Paths that are needed. Missing folders of sockets are created.
    pub paths: Vec<Path>,
    /// Permissions of control threads beyond those that every configuration needs.
    pub extras: Extras,
    /// Layers that are left out.
    pub without: Vec<Layer>,
}

impl Plan {
    /// Enters the sandbox, as far as the kernel offers it. The process must have one thread.
    pub fn enter(&self) -> Entered {
        let is_root = rustix::process::geteuid().is_root();
        let missing = self.create_folders(is_root);
        let report = |layer| {
            let state = match self.without.contains(&layer) {
                true => LayerState::Missing("left out by the configuration".to_owned()),
                false => self.enter_layer(layer, is_root),
            };
            LayerReport { layer, state }
        };
        let layers = Layer::ALL.into_iter().map(report).collect();
        identity::seal();
        Entered { layers, missing }
    }

    fn enter_layer(&self, layer: Layer, is_root: bool) -> LayerState {
        let namespace = |entered: io::Result<String>| match entered {
            Err(error) if !is_root => LayerState::Missing(format!("not started as root: {error}")),
            other => LayerState::of(other),
        };
        let done = |()| String::new();
        match layer {
            Layer::IpcNamespace => namespace(namespaces::enter(UnshareFlags::NEWIPC).map(done)),
            Layer::MountNamespace => namespace(root::enter(&self.paths)),
            Layer::NoNewPrivileges => {
                LayerState::of(rustix::thread::set_no_new_privs(true).map(done))
            }
            Layer::Landlock => paths::restrict(&self.paths),
            Layer::User => self.change_user(is_root),
            Layer::Capabilities => LayerState::of(self.drop_capabilities()),
            Layer::Seccomp => seccomp::enter(self.extras),
        }
    }

    /// Creates the folders that are missing. Returns those that cannot be created.
    fn create_folders(&self, is_root: bool) -> Vec<MissingFolder> {
        let user = self.user.as_ref().ok().filter(|_| is_root);
        let missing = self.folders().filter_map(|Path { path, .. }| {
            let error = folders::create(path, user).err()?;
            Some(MissingFolder { path: path.clone(), error })
        });
        missing.collect()
    }

    fn folders(&self) -> impl Iterator<Item = &Path> {
        let is_folder = |path: &&Path| matches!(path.access, Access::Sockets | Access::Images);
        self.paths.iter().filter(is_folder)
    }

    fn change_user(&self, is_root: bool) -> LayerState {
        match &self.user {
            Err(reason) => LayerState::Missing(reason.clone()),
            Ok(_) if !is_root => {
                let User { name, .. } = User::current();
                LayerState::Active(format!("{name}, as started"))
            }
            Ok(user) => {
                let changed = identity::change_to(user, &self.groups);
                LayerState::of(changed.map(|()| format!("{} ({})", user.name, user.uid)))
            }
        }
    }

    /// Gives up capabilities that are not needed. Folders that the user cannot write to are found
    /// while no capability is effective.
    fn drop_capabilities(&self) -> io::Result<String> {
        capabilities::suspend()?;
        let mut needed = self.capabilities.clone();
        let closed = self.folders().find(|folder| folders::is_closed(&folder.path));
        if let Some(folder) = closed {
            let path = folder.path.display();
            let reason = format!("{path} belongs to another user");
            needed.push(Capability { set: CapabilitySet::DAC_OVERRIDE, reason });
        }
        let all = needed.iter().fold(CapabilitySet::empty(), |all, one| all | one.set);
        let kept = capabilities::keep(all)?;
        let lines: Vec<String> = needed
            .iter()
            .filter(|one| kept.contains(one.set))
            .map(|one| format!("{} ({})", capabilities::names(one.set), one.reason))
            .collect();
        Ok(if lines.is_empty() { "none".to_owned() } else { lines.join(", ") })
    }
}
