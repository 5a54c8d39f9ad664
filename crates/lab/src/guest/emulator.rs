//! The QEMU that runs a guest, and the differences between versions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::GuestError;
use super::pace::Pace;

/// The program, by its name.
const PROGRAM: &str = "qemu-system-x86_64";

/// A QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// The folder that its packages are unpacked in; `None`: it is installed.
    folder: Option<PathBuf>,
    /// The first number of its version.
    major: u32,
}

impl Emulator {
    /// The QEMU that is installed.
    pub fn installed() -> Emulator {
        static MAJOR: OnceLock<u32> = OnceLock::new();
        // A QEMU that is missing is missed when it is started.
        let major = *MAJOR.get_or_init(|| {
            let said = Command::new(PROGRAM).arg("-version").output();
            said.ok().and_then(|said| major(&String::from_utf8_lossy(&said.stdout))).unwrap_or(0)
        });
        Emulator::of_version(None, major)
    }

    /// The QEMU of Debian's backports, which `scripts/backports` left in the folder `cache`.
    ///
    /// # Errors
    /// When it is not there.
    pub fn backports(cache: &Path) -> Result<Emulator, GuestError> {
        let folder = cache.join("backports/qemu");
        std::fs::read_to_string(folder.join("version"))
            .ok()
            .and_then(|version| version.split('.').next()?.parse().ok())
            .map(|major| Emulator::of_version(Some(folder), major))
            .ok_or_else(|| GuestError::Missing {
                what: format!("QEMU of Debian's backports in {}", cache.display()),
                part: "guests",
            })
    }

    pub(super) fn of_version(folder: Option<PathBuf>, major: u32) -> Emulator {
        Emulator { folder, major }
    }

    /// Whether the queues of a vhost-user device have an interrupt vector each. Those of emulated
    /// guests of older versions have none: QEMU 7.2 crashes as the driver of such a device with
    /// MSI-X vectors starts.
    pub fn has_vectors(&self, accel: super::Accel) -> bool {
        accel == super::Accel::Kvm || self.major >= 10
    }

    /// The number of vectors of a vhost-user device for which `wanted` are best.
    pub(super) fn vectors(&self, accel: super::Accel, wanted: u16) -> u16 {
        if self.has_vectors(accel) { wanted } else { 0 }
    }

    /// The property of a socket that QEMU connects to, again after a second when the other end is
    /// gone. Versions from 9.2 have `reconnect-ms`; later ones have nothing else.
    pub(super) fn reconnect(&self) -> &'static str {
        if self.major >= 10 { "reconnect-ms=1000" } else { "reconnect=1" }
    }

    /// How its guests migrate. QEMU 7.2 loses writes of emulated processors to pages that it copies
    /// at the same time: after 5 of 12 gradual migrations of a guest without devices, some pages
    /// differed; with QEMU 10, after none of 12.
    pub(super) fn pace(&self, accel: super::Accel) -> Pace {
        if accel == super::Accel::Kvm || self.major >= 10 { Pace::GRADUAL } else { Pace::STOPPED }
    }

    /// A command that prints its version.
    pub fn version(&self) -> Command {
        let mut command = Command::new(self.program());
        command.arg("-version");
        command
    }

    pub(crate) fn program(&self) -> PathBuf {
        match &self.folder {
            Some(folder) => folder.join("usr/bin").join(PROGRAM),
            None => PROGRAM.into(),
        }
    }

    /// The options with the folder of firmware for an unpacked QEMU. Firmware of network cards
    /// comes from the installed one.
    pub(crate) fn args(&self) -> Vec<OsString> {
        let Some(folder) = &self.folder else { return Vec::new() };
        [
            folder.join("usr/share/qemu"),
            folder.join("usr/share/seabios"),
            "/usr/lib/ipxe/qemu".into(),
        ]
        .into_iter()
        .flat_map(|folder| ["-L".into(), folder.into_os_string()])
        .collect()
    }
}

/// The first number of "QEMU emulator version 10.0.2 (Debian ...)".
fn major(text: &str) -> Option<u32> {
    text.split("version ").nth(1)?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_first_number() {
        assert_eq!(major("QEMU emulator version 10.0.2 (Debian 1:10.0.2)\nCopyright"), Some(10));
        assert_eq!(major("no such program"), None);
    }

    #[test]
    fn a_missing_qemu_names_the_command_that_gets_it() {
        let cache = tempfile::tempdir().unwrap();
        let error = Emulator::backports(cache.path()).unwrap_err();
        assert!(error.to_string().contains("scripts/deps guests"), "{error}");
    }
}
