//! The paths that the daemon may use, and Landlock's rules for them.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::layer::LayerState;

/// The newest interface whose rights are used. Rights of newer ones would forbid something that
/// this version does not expect.
const INTERFACE: ABI = ABI::V6;

/// The daemon's access to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A folder: create, remove and connect to sockets in it, create folders, and use files as
    /// images.
    Sockets,
    /// The same, and also use devices as images.
    Images,
    /// A file or folder: read.
    Read,
    /// A device, or a folder of devices: open, read, write, ioctl.
    Device,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Access::Sockets => {
                AccessFs::ReadDir
                    | AccessFs::ReadFile
                    | AccessFs::WriteFile
                    | AccessFs::Truncate
                    | AccessFs::MakeSock
                    | AccessFs::MakeDir
                    | AccessFs::RemoveFile
            }
            Access::Images => Access::Sockets.rights() | AccessFs::IoctlDev,
            Access::Read => AccessFs::ReadDir | AccessFs::ReadFile,
            Access::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        }
    }
}

/// A path that the daemon needs. Where there is nothing, it is left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// The path, which is absolute.
    pub path: PathBuf,
    /// The daemon's access there.
    pub access: Access,
}

/// Forbids this thread, and those that it will start, all paths except these.
pub(crate) fn restrict(paths: &[Path]) -> LayerState {
    match apply(paths) {
        Ok(state) => state,
        Err(error) => LayerState::Missing(error.to_string()),
    }
}

fn apply(paths: &[Path]) -> Result<LayerState, Box<dyn std::error::Error>> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(INTERFACE))?
        .handle_access(AccessNet::from_all(INTERFACE))?
        .scope(Scope::from_all(INTERFACE))?
        .create()?;
    for Path { path, access } in paths {
        let Ok(file) = PathFd::new(path) else { continue };
        let rights = access.rights();
        // Rights of folders cannot be given for a file.
        let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(INTERFACE) };
        rules = rules.add_rule(PathBeneath::new(file, rights))?;
    }
    let status = rules.restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotImplemented) => {
            LayerState::Missing("the kernel is built without Landlock".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => {
            LayerState::Missing("Landlock is not enabled in this kernel".to_owned())
        }
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            LayerState::Partial(format!("the kernel offers version {effective_abi:?} only"))
        }
        (_, _) => LayerState::Active(format!("{} paths", paths.len())),
    })
}
