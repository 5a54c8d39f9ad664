//! A disk that a guest's firmware boots from: a FAT file system that fills the disk, with SYSLINUX
//! for a BIOS, and a script for the shell of a UEFI firmware.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::image::{output, write_whole};
use super::{Accel, GuestError, Image};

/// Bytes of the disk, of which the kernel and the initramfs take about a half.
const BYTES: u64 = 128 << 20;
/// The geometry that the boot sector has: the disk's sectors, sectors of a track, and heads.
const GEOMETRY: [&str; 6] = ["-T", "262144", "-s", "32", "-h", "64"];

/// The path of Debian's UEFI firmware for virtual machines.
const UEFI: &str = "/usr/share/ovmf/OVMF.fd";

/// The boot loader of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// QEMU's BIOS.
    SeaBios,
    /// A UEFI firmware in this file.
    Uefi(PathBuf),
}

impl Firmware {
    /// The UEFI firmware of this host; `None`: there is none.
    pub fn uefi() -> Option<Firmware> {
        let path = PathBuf::from(UEFI);
        path.exists().then_some(Firmware::Uefi(path))
    }

    pub(super) fn args(&self) -> Vec<String> {
        match self {
            Firmware::SeaBios => Vec::new(),
            Firmware::Uefi(path) => vec!["-bios".into(), path.display().to_string()],
        }
    }
}

/// Makes a disk with the guest's kernel and initramfs at `path`.
///
/// # Errors
/// When a tool is missing or fails, or a file cannot be written.
pub fn make_boot_disk(image: &Image, accel: Accel, path: &Path) -> Result<(), GuestError> {
    let file = |source| GuestError::File { path: path.to_owned(), source };
    let disk = std::fs::File::create(path).map_err(file)?;
    disk.set_len(BYTES).map_err(file)?;
    let arguments = accel.kernel_arguments();
    let folder = path.parent().unwrap_or(Path::new("."));
    let [bios, uefi] = ["syslinux.cfg", "startup.nsh"].map(|name| folder.join(name));
    let text = format!(
        "DEFAULT guest\nPROMPT 0\nLABEL guest\nKERNEL vmlinuz\nINITRD initrd\nAPPEND {arguments}\n"
    );
    write_whole(&bios, text.as_bytes())?;
    write_whole(&uefi, format!("fs0:\r\nvmlinuz.efi initrd=\\initrd {arguments}\r\n").as_bytes())?;
    let at: &[&OsStr] = &["-i".as_ref(), path.as_os_str()];
    let geometry = GEOMETRY.map(OsStr::new);
    output("mformat", &[at, &geometry, &["-F".as_ref(), "::".as_ref()]].concat())?;
    let files = [
        (image.kernel.as_path(), "::vmlinuz"),
        (image.kernel.as_path(), "::vmlinuz.efi"),
        (image.initramfs.as_path(), "::initrd"),
        (bios.as_path(), "::syslinux.cfg"),
        (uefi.as_path(), "::startup.nsh"),
    ];
    for (from, to) in files {
        output("mcopy", &[at, &[from.as_os_str(), to.as_ref()]].concat())?;
    }
    output("syslinux", &["--install".as_ref(), path.as_os_str()])?;
    Ok(())
}
