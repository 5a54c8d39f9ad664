//! The image that a guest boots: Debian's own kernel, and an initramfs of busybox, iperf, ethtool,
//! e2fsprogs and the kernel's modules.

use super::GuestError;
use super::agent::{PROGRAM, SCRIPT};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first process of a guest.
const INIT: &str = include_str!("init.sh");
/// Host programs that a guest gets, with the libraries that they are linked to.
const PROGRAMS: [&str; 4] = ["iperf", "ethtool", "mke2fs", "e2fsck"];
/// Another one, for guests that measure disks.
const FIO: &str = "fio";
/// Modules that a guest loads, after those that they depend on.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_console", "virtio_net", "virtio_blk"];
/// Folders that are searched for programs besides `PATH`, which lacks `sbin` for many users.
const SBIN: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The files of a guest, besides those that every guest has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Programs of the host, by their names.
    pub programs: &'a [&'a str],
    /// Programs that are where they are on the host.
    pub at_their_paths: &'a [&'a Path],
    /// Modules of the kernel that are loaded.
    pub modules: &'a [&'a str],
}

/// A kernel and an initramfs, ready to boot.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
}

impl Image {
    /// Finds the kernel that `scripts/kernel` left in the folder `cache`, and makes the initramfs
    /// beside it unless it is there and made of the same files.
    ///
    /// # Errors
    /// When something that it is made of is missing, or the cache cannot be written.
    pub fn prepare(cache: &Path) -> Result<Image, GuestError> {
        Image::make(cache, "kernel", "initramfs", &Extras::default())
    }

    /// The same with the kernel of Debian's backports, which `scripts/backports` left in `cache`.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_backports(cache: &Path) -> Result<Image, GuestError> {
        Image::make(cache, "backports/kernel", "initramfs-backports", &Extras::default())
    }

    /// The same with more in it, as the initramfs `name` of its own.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with(cache: &Path, name: &str, extras: &Extras) -> Result<Image, GuestError> {
        Image::make(cache, "kernel", name, extras)
    }

    /// The same with the program fio, which takes many libraries along.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with_fio(cache: &Path) -> Result<Image, GuestError> {
        if find(FIO).is_err() {
            return Err(GuestError::Missing { what: FIO.into(), part: "disks" });
        }
        let extras = Extras { programs: &[FIO], ..Extras::default() };
        Image::make(cache, "kernel", "initramfs-fio", &extras)
    }

    /// An archive of the program fio and its libraries, to be unpacked before the initramfs of
    /// another guest.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_fio_alone(cache: &Path) -> Result<PathBuf, GuestError> {
        let _one = PREPARES.lock();
        if find(FIO).is_err() {
            return Err(GuestError::Missing { what: FIO.into(), part: "disks" });
        }
        let mut tree = Tree::default();
        tree.add(FIO)?;
        let path = cache.join("fio.cpio");
        write_unless_fresh(&path, &tree.fingerprint()?, || {
            let mut archive = Archive::default();
            tree.add_files(&mut archive)?;
            Ok(archive.end())
        })?;
        Ok(path)
    }

    /// Makes the initramfs `name` for the kernel in `folder`.
    fn make(cache: &Path, folder: &str, name: &str, extras: &Extras) -> Result<Image, GuestError> {
        let _one = PREPARES.lock();
        let root = cache.join(folder);
        let version =
            std::fs::read_to_string(root.join("version")).map_err(|_| GuestError::Missing {
                what: format!("a guest kernel in {}", cache.display()),
                part: "guests",
            })?;
        let version = version.trim();
        let kernel = root.join(format!("boot/vmlinuz-{version}"));
        let tree = Tree::of(&root, version, extras)?;

        let initramfs = cache.join(format!("{name}.cpio"));
        write_unless_fresh(&initramfs, &tree.fingerprint()?, || tree.archive())?;
        Ok(Image { kernel, initramfs })
    }
}

/// One thread at a time makes an archive: others must not boot a file that is half written.
static PREPARES: Mutex<()> = Mutex::new(());

/// Writes an archive, unless it is there and was made of the same files.
fn write_unless_fresh(
    path: &Path,
    made_of: &str,
    make: impl FnOnce() -> Result<Vec<u8>, GuestError>,
) -> Result<(), GuestError> {
    let stamp = path.with_extension("made-of");
    if std::fs::read_to_string(&stamp).is_ok_and(|old| old == made_of) && path.exists() {
        return Ok(());
    }
    write_whole(path, &make()?)?;
    write_whole(&stamp, made_of.as_bytes())
}

/// Writes a file so that others see all of it or nothing.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), GuestError> {
    let part = path.with_extension(format!("part-{}", std::process::id()));
    std::fs::write(&part, bytes)
        .and_then(|()| std::fs::rename(&part, path))
        .map_err(|source| GuestError::File { path: path.to_owned(), source })
}

/// The contents of the initramfs: each path, and the file of the host for it.
#[derive(Default)]
struct Tree {
    files: BTreeMap<String, PathBuf>,
    /// The modules' file names, in the order in which they must be loaded.
    order: Vec<String>,
}

impl Tree {
    fn of(root: &Path, version: &str, extras: &Extras) -> Result<Tree, GuestError> {
        let mut tree = Tree::default();
        tree.files.insert("bin/busybox".into(), find("busybox")?);
        PROGRAMS.iter().chain(extras.programs).try_for_each(|program| tree.add(program))?;
        extras.at_their_paths.iter().try_for_each(|path| tree.add_at(path, path))?;
        for module in MODULES.iter().chain(extras.modules) {
            for path in insertion_order(root, version, module)? {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if !tree.order.contains(&name) {
                    tree.files.insert(format!("modules/{name}"), path);
                    tree.order.push(name);
                }
            }
        }
        Ok(tree)
    }

    /// Adds a program of the host, and the libraries that it is linked to.
    fn add(&mut self, program: &str) -> Result<(), GuestError> {
        self.add_at(&find(program)?, &Path::new("bin").join(program))
    }

    /// Adds a program at a path in the guest, and the libraries that it is linked to.
    fn add_at(&mut self, program: &Path, path: &Path) -> Result<(), GuestError> {
        for library in libraries(program)? {
            self.files.insert(library.trim_start_matches('/').into(), library.into());
        }
        let path = path.to_string_lossy();
        self.files.insert(path.trim_start_matches('/').into(), program.to_owned());
        Ok(())
    }

    /// A text that changes with any of the files in the initramfs.
    fn fingerprint(&self) -> Result<String, GuestError> {
        let mut agent = DefaultHasher::new();
        PROGRAM.hash(&mut agent);
        let mut text = format!("{INIT}\n{SCRIPT}\n{:x}\n{:?}\n", agent.finish(), self.order);
        for (name, path) in &self.files {
            let meta = std::fs::metadata(path)
                .map_err(|source| GuestError::File { path: path.clone(), source })?;
            let changed = meta
                .modified()
                .ok()
                .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
                .unwrap_or_default();
            text.push_str(&format!("{name} {} {}\n", meta.len(), changed.as_secs()));
        }
        Ok(text)
    }

    /// The initramfs, in the kernel's format.
    fn archive(&self) -> Result<Vec<u8>, GuestError> {
        let mut archive = Archive::default();
        for folder in ["dev", "proc", "sys", "tmp"] {
            archive.folder(folder);
        }
        archive.file("init", 0o755, INIT.as_bytes());
        archive.file("agent", 0o755, PROGRAM);
        archive.file("agent.sh", 0o755, SCRIPT.as_bytes());
        archive.link("bin/sh", "busybox");
        let order: String = self.order.iter().map(|name| format!("{name}\n")).collect();
        archive.file("modules/order", 0o644, order.as_bytes());
        self.add_files(&mut archive)?;
        Ok(archive.end())
    }

    fn add_files(&self, archive: &mut Archive) -> Result<(), GuestError> {
        for (name, path) in &self.files {
            let file = |source| GuestError::File { path: path.clone(), source };
            let mode = std::fs::metadata(path).map_err(file)?.permissions().mode();
            archive.file(name, mode, &std::fs::read(path).map_err(file)?);
        }
        Ok(())
    }
}

fn find(program: &str) -> Result<PathBuf, GuestError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SBIN.map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| GuestError::Missing { what: program.into(), part: "guests" })
}

pub(super) fn output(program: &str, args: &[&OsStr]) -> Result<String, GuestError> {
    let done = Command::new(find(program)?)
        .args(args)
        .output()
        .map_err(|source| GuestError::Channel { what: "cannot start a tool", source })?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(GuestError::Tool {
        tool: program.into(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    })
}

/// The shared libraries of a program, the loader included.
fn libraries(program: &Path) -> Result<Vec<String>, GuestError> {
    // "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)", and the loader without an arrow.
    let listing = output("ldd", &[program.as_os_str()])?;
    Ok(listing.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}

/// The files to insert for a module, those that it depends on first; modprobe knows.
fn insertion_order(root: &Path, version: &str, module: &str) -> Result<Vec<PathBuf>, GuestError> {
    let args = [
        OsStr::new("-d"),
        root.as_os_str(),
        "-S".as_ref(),
        version.as_ref(),
        "--show-depends".as_ref(),
        module.as_ref(),
    ];
    let listing = output("modprobe", &args)?;
    Ok(listing
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .map(|path| path.trim().into())
        .collect())
}

/// A cpio archive in the kernel's format ("newc",
/// Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    /// Folders that have an entry: each must stand before what it holds.
    folders: std::collections::HashSet<String>,
}

impl Archive {
    const FOLDER: u32 = 0o040_000;
    const FILE: u32 = 0o100_000;
    const LINK: u32 = 0o120_000;

    fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.above(name);
            self.entry(name, Self::FOLDER | 0o755, &[]);
        }
    }

    fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.above(name);
        self.entry(name, Self::FILE | (mode & 0o777), content);
    }

    fn link(&mut self, name: &str, target: &str) {
        self.above(name);
        self.entry(name, Self::LINK | 0o777, target.as_bytes());
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn above(&mut self, name: &str) {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a program of 4 GB");
        let length = u32::try_from(name.len() + 1).expect("a name of 4 GB");
        // inode, mode, uid, gid, links, mtime, file size, device (2), special device (2), name
        // length, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_starts_on_four_bytes_and_after_its_folder() {
        let mut archive = Archive::default();
        archive.file("a/b/file", 0o755, b"12345");
        archive.link("a/link", "b/file");
        let bytes = archive.end();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let at: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(at.len(), 5);
        assert!(at.iter().all(|at| at % 4 == 0));
        let names: Vec<&str> =
            at.iter().map(|at| text[at + 110..].split('\0').next().unwrap()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/file", "a/link", "TRAILER!!!"]);
    }

    #[test]
    fn a_missing_kernel_names_the_command_that_gets_it() {
        let cache = tempfile::tempdir().unwrap();
        let error = Image::prepare(cache.path()).unwrap_err();
        assert!(error.to_string().contains("scripts/deps"), "{error}");
    }
}
