//! The releases of Debian that a guest's QEMU and kernel come from.

use std::path::Path;

use serde::Serialize;

use super::{Emulator, GuestError, Image};

/// Where a guest's QEMU, or its kernel, comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The release of Debian that is installed; Debian 12 has QEMU 7.2 and Linux 6.1
    #[default]
    Installed,
    /// Debian's backports for the installed release: QEMU 10 and Linux 6.12
    Backports,
}

impl Release {
    /// The QEMU, which is looked for in the folder `cache` unless it is installed.
    ///
    /// # Errors
    /// When it is not there.
    pub fn emulator(self, cache: &Path) -> Result<Emulator, GuestError> {
        match self {
            Release::Installed => Ok(Emulator::installed()),
            Release::Backports => Emulator::backports(cache),
        }
    }

    /// What a guest boots with the kernel.
    ///
    /// # Errors
    /// When the kernel or a tool is missing.
    pub fn image(self, cache: &Path) -> Result<Image, GuestError> {
        match self {
            Release::Installed => Image::prepare(cache),
            Release::Backports => Image::prepare_backports(cache),
        }
    }
}
