//! The parts of a Xen host.

use crate::guest::{Emulator, GuestError};
use std::path::{Path, PathBuf};

/// The pieces that `scripts/xen` built.
#[derive(Clone, Debug)]
pub struct Testbed {
    /// The hypervisor.
    pub xen: PathBuf,
    /// The kernel of dom0 and of guests, as an ELF file.
    pub kernel: PathBuf,
    /// The file that dom0 boots first.
    pub first: PathBuf,
    /// dom0's disk.
    pub disk: PathBuf,
    /// The QEMU that runs the host. [`find`](Self::find) gives the one that is installed.
    pub emulator: Emulator,
}

impl Testbed {
    /// Finds them in the folder `cache`.
    ///
    /// # Errors
    /// When they are not there, or not all.
    pub fn find(cache: &Path) -> Result<Testbed, GuestError> {
        let at = cache.join("xen");
        // The script writes this last.
        if !at.join("made-of").exists() {
            return Err(GuestError::Missing {
                what: format!("a Xen host in {}", cache.display()),
                part: "xen",
            });
        }
        Ok(Testbed {
            xen: at.join("xen"),
            kernel: at.join("vmlinux"),
            first: at.join("first.cpio.gz"),
            disk: at.join("dom0.img"),
            emulator: Emulator::installed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_the_command_that_gets_it() {
        let cache = tempfile::tempdir().unwrap();
        let error = Testbed::find(cache.path()).unwrap_err();
        assert!(error.to_string().contains("scripts/deps xen"), "{error}");
    }
}
