//! A root file system that holds only the paths that the daemon needs: an empty one in memory, with
//! these paths of the host bound into it, in a mount namespace.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, mount_move, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, chroot, pivot_root};
use rustix::thread::UnshareFlags;

use crate::namespaces;
use crate::paths::{self, Access};

/// The kernel's file system of processes.
const PROC: &str = "/proc";

/// Enters a mount namespace whose root holds nothing but these paths, and `/proc` with only this
/// process in it. Paths that do not exist are left out.
///
/// When this fails, the process is left with the file system that it had.
pub fn enter(paths: &[paths::Path]) -> io::Result<String> {
    let mut paths: Vec<&paths::Path> = paths.iter().filter(|path| path.path.exists()).collect();
    if paths.iter().any(|path| path.path == Path::new("/")) {
        return Err(io::Error::other("a socket lies in the root folder; give it another one"));
    }
    // A folder within another one is mounted after it.
    paths.sort_by_key(|path| path.path.components().count());
    let place = paths.iter().find(|path| path.path.is_dir());
    let place = place.ok_or_else(|| io::Error::other("there is no folder of sockets"))?;
    let working = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    namespaces::enter(UnshareFlags::NEWNS)?;
    // Nothing that is mounted from here on is seen by the host.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let trees = trees(&paths)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", &place.path, "tmpfs", flags, Some(c"mode=0755,size=64k"))?;
    let entered = chdir(&place.path)
        .map_err(io::Error::from)
        .and_then(|()| fill(&trees))
        .and_then(|()| switch());
    if entered.is_err() {
        // Returns to the old namespace, where nothing has changed. A failure of this step also
        // leaves the host untouched.
        let _ = chdir("/");
        let _ = unmount(&place.path, UnmountFlags::DETACH);
        let _ = chdir(&working);
    }
    entered?;
    let _ = mount_remount("/", flags | MountFlags::BIND | MountFlags::RDONLY, c"");
    // Relative paths of sockets are resolved from there.
    chdir(&working).or_else(|_| chdir("/"))?;
    Ok(format!("{} paths", trees.len()))
}

/// A path of the host, held while other mounts cover it.
struct Tree {
    path: PathBuf,
    is_folder: bool,
    access: Access,
    mount: OwnedFd,
}

fn trees(paths: &[&paths::Path]) -> io::Result<Vec<Tree>> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = |path: &&paths::Path| {
        let mount = open_tree(CWD, &path.path, flags)?;
        let is_folder = path.path.is_dir();
        Ok(Tree { path: path.path.clone(), is_folder, access: path.access, mount })
    };
    paths.iter().map(tree).collect()
}

/// Binds the paths into the working directory.
fn fill(trees: &[Tree]) -> io::Result<()> {
    for tree in trees {
        let target = below(&tree.path);
        if tree.path == Path::new(PROC) {
            fs::create_dir_all(&target)?;
            if mount_processes(&target).is_ok() {
                continue;
            }
        }
        bind(tree, &target)?;
    }
    Ok(())
}

/// A path as seen from the working directory.
fn below(path: &Path) -> PathBuf {
    Path::new(".").join(path.strip_prefix("/").unwrap_or(path))
}

/// Mounts `/proc` without the processes of others.
fn mount_processes(target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", target, "proc", flags, Some(c"hidepid=2"))?)
}

fn bind(tree: &Tree, target: &Path) -> io::Result<()> {
    if tree.is_folder {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::create_dir_all(target.parent().unwrap_or(Path::new(".")))?;
        fs::File::create(target)?;
    }
    move_mount(&tree.mount, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NOEXEC;
    match tree.access {
        Access::Read => flags |= MountFlags::RDONLY | MountFlags::NODEV,
        Access::Sockets => flags |= MountFlags::NODEV,
        Access::Images | Access::Device => {}
    }
    Ok(mount_remount(target, flags, c"")?)
}

/// Makes the working directory the root.
fn switch() -> io::Result<()> {
    if pivot_root(".", ".").is_ok() {
        return Ok(unmount(".", UnmountFlags::DETACH)?);
    }
    // The root of an initial RAM disk cannot be exchanged, but only covered.
    mount_move(".", "/")?;
    Ok(chroot(".")?)
}
